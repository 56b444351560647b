"""The fixed text of a rendered chat, and where in it the contents with variables stand."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import Any

from contract.errors import TemplateRefused
from contract.model_folder import ModelFolder
from templates.chat import changing_calls, render_chat
from templates.compiled import Span
from templates.fill import fill_span
from templates.placeholders import Literal, Part, Variable, parse_content
from templates.spec import TemplateSpec

# Two moments that differ in every field a clock can show.
_NOW, _LATER = datetime(2021, 3, 4, 5, 6, 7), datetime(2032, 11, 28, 19, 48, 59)  # noqa: DTZ001
# White space to see trimming with; the two differ in length, so that neither is taken for
# the other. All kinds that a template may strip one by one.
_LEFT, _RIGHT = "\n \t", " \t\n\r\n "


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A spec's messages, with the model whose chat template renders them."""

    model: ModelFolder
    roles: tuple[str, ...]
    contents: tuple[tuple[Part, ...], ...]

    @classmethod
    def of(cls, spec: TemplateSpec, model: ModelFolder) -> Conversation:
        return cls(
            model=model,
            roles=tuple(message.role for message in spec.messages),
            contents=tuple(parse_content(message.content) for message in spec.messages),
        )

    @property
    def open(self) -> tuple[int, ...]:
        """Indices of the messages that hold a variable."""
        return tuple(i for i, parts in enumerate(self.contents) if holds_variable(parts))

    def render(self, variables: Mapping[str, Any]) -> str:
        """The prompt that the chat template itself makes."""
        return self.render_contents([fill_span(Span(parts=p), variables) for p in self.contents])

    def render_contents(self, contents: Sequence[str], *, now: datetime = _NOW) -> str:
        return render_chat(
            self.model.chat_template,
            [
                {"role": role, "content": content}
                for role, content in zip(self.roles, contents, strict=True)
            ],
            bos_token=self.model.bos_token,
            eos_token=self.model.eos_token,
            now=now,
        )


def holds_variable(parts: Sequence[Part]) -> bool:
    return any(isinstance(part, Variable) for part in parts)


def common_length(*sequences: Sequence[object]) -> int:
    """How many items all sequences have in common at their beginning."""
    for place, items in enumerate(zip(*sequences, strict=False)):
        if len(set(items)) > 1:
            return place
    return min(map(len, sequences))


def find_skeleton(chat: Conversation) -> tuple[Span, ...]:
    """Spans of the prompt in order: fixed text, and contents with the trimming they get.

    Raises TemplateRefused when the fixed text tells the time, or a content with variables is
    left out, repeated or changed.
    """
    marks = _marks(chat, length=8)
    text = _render_marked(chat, marks)
    _check_clock(chat.model, text, _render_marked(chat, marks, now=_LATER))
    order, fixed = _split(chat, text, marks)

    other = _marks(chat, length=11)
    padded = {i: f"{_LEFT}{mark}{_RIGHT}" for i, mark in other.items()}
    other_order, around = _split(chat, _render_marked(chat, padded), other)
    if order != other_order:
        raise _changed(order[0])
    return tuple(_spans(chat, order, fixed, _kept_padding(order, fixed, around)))


def _marks(chat: Conversation, *, length: int) -> dict[int, str]:
    """Stand-ins for contents. Mixed case and digits show a template that changes letters."""
    return {i: f"qZ{secrets.token_hex(length)}Xy" for i in chat.open}


def _render_marked(chat: Conversation, marks: Mapping[int, str], *, now: datetime = _NOW) -> str:
    contents = [
        marks[i] if i in marks else fill_span(Span(parts=parts), {})
        for i, parts in enumerate(chat.contents)
    ]
    return chat.render_contents(contents, now=now)


class ClockInChatTemplate(TemplateRefused):
    """The chat template gives another prompt each time, so that no prefix lasts."""

    code = "clock_in_chat_template"


def _check_clock(model: ModelFolder, text: str, later: str) -> None:
    if text == later:
        return
    start = common_length(text, later)
    end = common_length(text[start:][::-1], later[start:][::-1])
    # Whole words around the difference, to make it readable.
    begin = max(text.rfind(" ", 0, start), text.rfind("\n", 0, start)) + 1
    cause = ", ".join(changing_calls(model.chat_template)) or "nothing that is known to"
    raise ClockInChatTemplate(
        "the chat template writes the time, or something random, so no prefix lasts",
        given=f"{text[begin : len(text) - end]!r} once, {later[begin : len(later) - end]!r} later, "
        f"by {cause}",
        expected="the same text at any time",
        remedy="Write a fixed date into the chat template of the model's folder.",
    )


def _split(
    chat: Conversation, text: str, marks: Mapping[int, str]
) -> tuple[tuple[int, ...], list[str]]:
    """Order in which the marked messages occur, and the n + 1 texts around them."""
    for index, mark in marks.items():
        if (count := text.count(mark)) != 1:
            what = "leaves out" if count == 0 else "repeats"
            raise TemplateRefused(
                f"the chat template {what} or changes message {index + 1}",
                given=f"the {chat.roles[index]} message's content occurs {count} times",
                expected="each content with a variable once, as it is",
                remedy="Move its text into a message that the model's chat template keeps.",
            )
    order = tuple(sorted(marks, key=lambda index: text.index(marks[index])))
    pattern = "|".join(marks[index] for index in order) or r"(?!)"
    return order, re.split(pattern, text)


def _kept_padding(
    order: Sequence[int], fixed: Sequence[str], around: Sequence[str]
) -> dict[int, str]:
    """For each message, the ends ("", "l", "r", "lr") at which its padding was taken off."""
    strip = dict.fromkeys(order, "")
    for place, (bare, padded) in enumerate(zip(fixed, around, strict=True)):
        before = order[place - 1] if place > 0 else None
        after = order[place] if place < len(order) else None
        for right, left in product(
            ("", _RIGHT) if before is not None else ("",),
            ("", _LEFT) if after is not None else ("",),
        ):
            if padded == right + bare + left:
                if before is not None and not right:
                    strip[before] += "r"
                if after is not None and not left:
                    strip[after] += "l"
                break
        else:
            raise _changed(order[min(place, len(order) - 1)])
    return strip


def _changed(index: int) -> TemplateRefused:
    return TemplateRefused(
        f"the chat template changes its text with the content of message {index + 1}",
        given="another content, with white space at its ends",
        expected="the same fixed text around any content, and either all or none of the white "
        "space at an end removed",
        remedy="Begin and end that message with fixed text.",
    )


def _spans(
    chat: Conversation, order: Sequence[int], fixed: Sequence[str], strip: Mapping[int, str]
) -> Iterator[Span]:
    for place, text in enumerate(fixed):
        if text:
            yield Span(parts=(Literal(text),))
        if place < len(order):
            index = order[place]
            yield Span(parts=chat.contents[index], strip=strip[index])
