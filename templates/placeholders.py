"""`{{ name }}` in message contents: finding it, and nothing else.

No expression is ever evaluated. A backslash keeps the braces as text: `\\{{ name }}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

_TOKEN = re.compile(r"\\\{\{|\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


@dataclass(frozen=True, slots=True)
class Literal:
    """Text by the template's author."""

    text: str


@dataclass(frozen=True, slots=True)
class Variable:
    """The place of a variable's text."""

    name: str


Part = Literal | Variable


def parse_content(content: str) -> tuple[Part, ...]:
    """Split a message's content into literals and variables, in order, without empty literals."""
    parts: list[Part] = []
    text, position = "", 0
    for match in _TOKEN.finditer(content):
        text += content[position : match.start()]
        position = match.end()
        if match.group(1) is None:
            text += "{{"
        else:
            if text:
                parts.append(Literal(text))
            parts.append(Variable(match.group(1)))
            text = ""
    text += content[position:]
    if text:
        parts.append(Literal(text))
    return tuple(parts)


def variables_in(content: str) -> tuple[str, ...]:
    """Names of the variables in a content, in order, each as often as it occurs."""
    return tuple(part.name for part in parse_content(content) if isinstance(part, Variable))


def first_variable_at(content: str) -> int | None:
    """The character at which the first variable begins, or None."""
    return next((match.start() for match in _TOKEN.finditer(content) if match.group(1)), None)


def without_placeholders(content: str) -> str:
    """The author's text, with blanks for variables and for braces that a backslash keeps."""
    return _TOKEN.sub(lambda match: " " * len(match.group()), content)


def content_of(parts: Iterable[Part]) -> str:
    """The inverse of `parse_content`: a content with these parts."""
    return "".join(
        f"{{{{ {part.name} }}}}" if isinstance(part, Variable) else part.text.replace("{{", r"\{{")
        for part in parts
    )


def to_text(value: object) -> str:
    """A variable's value as prompt text: strings as they are, all else as compact JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
