"""Values to try a template with before any job does."""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass

from templates.chat import compared_constants

_MAX_PAIRED = 40  # constants of which all pairs are tried
_MAX_LENGTH = 20_000


@dataclass(frozen=True, slots=True)
class Probe:
    """One value, and what it stands for in a message to the author."""

    value: str
    label: str


# What jobs hold at a seam: every printable ASCII character, white space of all kinds, ends of
# words, and what is special about Unicode. The first one is as harmless as text can be.
SEAMS: tuple[Probe, ...] = tuple(
    Probe(value, repr(value))
    for value in (
        "x",
        "",
        *string.printable,
        *(
            "  ",
            "   x",
            " x ",
            "\n\n",
            "\nx\n",
            "\r\n",
            "\t\tx",
            " \n",
            "\u00a0x",
            "\u3000",
            "\ufeffx",
        ),
        *("the", "The", "THE", "ing", "ed", "s", "'s", "n't", "tion", "_name", "://x.y/z", "..."),
        *("12", "007", "3.14", "-1", "2024-01-31", "</b>", '{"a": [1]}', "{{ 7*7 }}", "{% if %}"),
        *("é", "e\u0301", "\u0301x", "ß", "İ", "ﬁ", "日本語", "한국어", "नमस्ते", "שלום", "مرحبا"),
        *("\u200f", "\u202ex", "\u200b", "👍", "👩‍👩‍👧", "🇩🇪", "\0", "a\0b", "\x1b[0m", "\x1f"),
        "Two lines of text,\nwith a number (42) and a word at the end",
    )
)


def content_probes(chat_template: str) -> Iterator[Probe]:
    """Values that a chat template may treat in a way of their own.

    A template that looks at a message's content has to say what it looks for: its constants
    are tried alone, at both ends, in the middle, and in pairs; its numbers as lengths.
    """
    texts, numbers = compared_constants(chat_template)
    for text in texts:
        for value in (text, f"{text}x", f"x{text}", f"x{text}x", f"x\n{text}\nx", text * 2):
            yield Probe(value, f"text with {text!r}")
    for first in texts[:_MAX_PAIRED]:
        for last in texts[:_MAX_PAIRED]:
            yield Probe(f"{first}x{last}", f"text from {first!r} to {last!r}")
    for number in numbers:
        if 1 < number <= _MAX_LENGTH:
            for length in (number - 1, number, number + 1):
                yield Probe("x" * length, f"text of {length} characters")
    yield Probe("x y\n" * 2500, "text of 10,000 characters")
