"""A compiled template: the trusted control tokens, and the ordinary text between them.

Everything a worker needs to turn variables into token ids without rendering a chat template
again. Plain data, stored with the version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from templates.placeholders import Literal, Part, Variable


@dataclass(frozen=True, slots=True)
class Control:
    """One control token that the chat template or the author's model put there."""

    id: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive parts; `strip` names the ends whose white space the chat template removes.

    `strip` is "", "l", "r" or "lr" and applies to the filled span as a whole.
    """

    parts: tuple[Part, ...]
    strip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of ordinary text between two control tokens; encoded as one."""

    spans: tuple[Span, ...]

    @property
    def constant(self) -> bool:
        """True when no variable occurs in it."""
        return all(isinstance(part, Literal) for span in self.spans for part in span.parts)


Segment = Control | Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledTemplate:
    """Segments in prompt order, and the ids that every request starts with."""

    segments: tuple[Segment, ...]
    prefix_ids: tuple[int, ...]

    def to_plain(self) -> dict[str, Any]:
        return {
            "segments": [_segment_to_plain(segment) for segment in self.segments],
            "prefix_ids": list(self.prefix_ids),
        }

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_plain`. Raises KeyError or TypeError for anything else."""
        ids = data["prefix_ids"]
        if not isinstance(ids, list) or any(type(id_) is not int for id_ in ids):
            raise TypeError("prefix_ids are no list of integers")
        return cls(
            segments=tuple(_segment_from_plain(segment) for segment in data["segments"]),
            prefix_ids=tuple(ids),
        )


def _segment_to_plain(segment: Segment) -> dict[str, Any]:
    if isinstance(segment, Control):
        return {"control": segment.id, "text": segment.text}
    return {
        "spans": [
            {
                "strip": span.strip,
                "parts": [
                    {"text": part.text} if isinstance(part, Literal) else {"variable": part.name}
                    for part in span.parts
                ],
            }
            for span in segment.spans
        ]
    }


def _segment_from_plain(data: Mapping[str, Any]) -> Segment:
    if "control" in data:
        if type(data["control"]) is not int:
            raise TypeError("a control token's id is no integer")
        return Control(data["control"], _text(data, "text"))
    return Piece(
        spans=tuple(
            Span(
                strip=_text(span, "strip"),
                parts=tuple(
                    Literal(_text(part, "text"))
                    if "text" in part
                    else Variable(_text(part, "variable"))
                    for part in span["parts"]
                ),
            )
            for span in data["spans"]
        )
    )


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text")
    return value
