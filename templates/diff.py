"""What differs between two versions: their text, how tokens are chosen, and the prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from templates.skeleton import common_length
from templates.spec import TemplateSpec
from templates.transfer import spec_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two: a published version, or a file."""

    name: str
    spec: TemplateSpec
    prefix_ids: tuple[int, ...] | None = None  # None: not compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixChange:
    """Both prefixes in tokens. Only `shared` tokens have the same keys and values in both."""

    before: int
    after: int
    shared: int

    @property
    def same(self) -> bool:
        return self.before == self.after == self.shared

    @property
    def removed(self) -> int:
        return self.before - self.shared

    @property
    def added(self) -> int:
        return self.after - self.shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`generation` gives (before, after) by field; `prefix` is None if a side is not compiled."""

    text: tuple[str, ...]  # lines of a unified diff, without line ends
    generation: dict[str, tuple[Any, Any]]
    prefix: PrefixChange | None

    def to_dict(self) -> dict[str, Any]:
        prefix = self.prefix
        return {
            "equal": not self.text,
            "diff": "\n".join(self.text),
            "generation": {name: list(pair) for name, pair in self.generation.items()},
            "prefix": None
            if prefix is None
            else {
                "same": prefix.same,
                "before": prefix.before,
                "after": prefix.after,
                "shared": prefix.shared,
                "removed": prefix.removed,
                "added": prefix.added,
            },
        }


def diff_sides(before: Side, after: Side) -> Difference:
    """Compare two sides. Order of keys and comments never count as a difference."""
    old = before.spec.generation.model_dump(mode="json")
    new = after.spec.generation.model_dump(mode="json")
    return Difference(
        text=tuple(
            unified_diff(
                spec_text(before.spec).splitlines(),
                spec_text(after.spec).splitlines(),
                fromfile=before.name,
                tofile=after.name,
                lineterm="",
            )
        ),
        generation={name: (old[name], new[name]) for name in old if old[name] != new[name]},
        prefix=_prefix(before.prefix_ids, after.prefix_ids),
    )


def _prefix(before: Sequence[int] | None, after: Sequence[int] | None) -> PrefixChange | None:
    if before is None or after is None:
        return None
    return PrefixChange(before=len(before), after=len(after), shared=common_length(before, after))
