"""YAML text to plain data, and where in the text the messages stand.

A template file may be anybody's, so it is read in time and memory that its length bounds.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from contract.errors import SpecInvalid
from contract.files import read_text

MAX_SPEC_BYTES = 4 * 2**20
MAX_NODES = 20_000  # keys and values of one file
MAX_DIGITS = 64
_TEXT_TAG = "tag:yaml.org,2002:str"
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentPlace:
    """Where a message's content stands in its file."""

    line: int  # of its first character, from 1
    block: bool  # True: written with `|`, so that each of its lines is a line of the file

    def line_of(self, content: str, at: int) -> int:
        """The line of the content's character number `at`, from 0; the first one if not known."""
        return self.line + (content.count("\n", 0, at) if self.block else 0)


def load_documents(path: Path) -> tuple[object, ...]:
    """The YAML documents of a regular file. Raises SpecInvalid when it cannot be read."""
    return parse_documents(read_source(path), source=str(path))


def read_source(path: Path) -> str:
    """The text of a regular file. Raises SpecInvalid when it cannot be read."""
    try:
        return read_text(path, max_bytes=MAX_SPEC_BYTES)
    except OSError as error:
        remedy = "Make it smaller." if error.errno == errno.EFBIG else ""
        raise SpecInvalid(f"{path} cannot be read", given=error.strerror, remedy=remedy) from error
    except UnicodeDecodeError as error:
        raise SpecInvalid(
            f"{path} cannot be read as YAML", given=str(error), expected="UTF-8"
        ) from error


def parse_documents(text: str, *, source: str = "the text") -> tuple[object, ...]:
    """The YAML documents of a text, in time that its length bounds. Raises SpecInvalid."""
    try:
        return tuple(yaml.load_all(text, Loader=_Bounded))
    except yaml.MarkedYAMLError as error:
        # Without the lines that it quotes.
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        given = f"{error.problem or error.context}{where}"
        raise SpecInvalid(f"{source} cannot be read as YAML", given=given[:200]) from error
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise SpecInvalid(
            f"{source} cannot be read as YAML", given=" ".join(str(error).split())[:200]
        ) from error


def content_places(text: str) -> list[Sequence[ContentPlace | None]]:
    """For each document, the places of its messages' contents; None for what is none.

    `text` must be one that `parse_documents` reads.
    """
    return [_places(document) for document in yaml.compose_all(text, Loader=_Bounded)]


def _places(document: yaml.Node | None) -> list[ContentPlace | None]:
    messages = _value(document, "messages")
    if not isinstance(messages, yaml.SequenceNode):
        return []
    return [_place(_value(message, "content")) for message in messages.value]


def _place(content: yaml.Node | None) -> ContentPlace | None:
    if not isinstance(content, yaml.ScalarNode):
        return None
    line = content.start_mark.line + 1
    if content.style in ("|", ">"):  # the text begins on the line after the sign
        return ContentPlace(line=line + 1, block=content.style == "|")
    return ContentPlace(line=line, block=False)


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    """The value of a mapping's key; the last one, as for PyYAML, should it stand there twice."""
    found = None
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if isinstance(name, yaml.ScalarNode) and name.value == key:
                found = value
    return found


class _Bounded(yaml.SafeLoader):
    """Safe loading of what a template needs, and of nothing that costs more than its length.

    No aliases: nine lines of them can unfold to gigabytes. No tags but text's: `!!int ''` and the
    like end PyYAML with whatever error comes first. A limit to nodes, which take some 30 us each,
    and to digits: 1:1:1 is a number to base 60, and a megabyte of it takes hours.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: yaml.events.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.events.AliasEvent):
            raise _refused("aliases (*name) are not used in template files", event)
        if getattr(event, "tag", None) not in (None, "!", _TEXT_TAG):
            raise _refused("tags (!name) are not used in template files", event)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _refused(f"more than {MAX_NODES} values", event)
        return super().compose_node(parent, index)

    def compose_scalar_node(self, anchor: Any) -> Any:
        node = super().compose_scalar_node(anchor)
        if node.tag in _NUMBER_TAGS and len(node.value) > MAX_DIGITS:
            problem = f"a number of {len(node.value)} characters; write text in quotes"
            raise _refused(problem, node)
        return node


def _refused(problem: str, at: Any) -> yaml.MarkedYAMLError:
    """`at` is an event or a node."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)
