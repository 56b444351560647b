"""What an input says: its lines, each of them a job to be or a bad one, and the batch's name."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, TypeVar

from contract.canonical import digest
from contract.codec import check_plain
from contract.described import describe
from contract.errors import InvalidInput, NotFound, PrefillqError, SpecInvalid
from producer.batch.formats import OWN, Format, OnlyVariable
from producer.batch.seen import Indexes, Names, check_index
from templates.rollouts.plain import check_key

Check = Callable[[str, Mapping[str, Any], str | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """One input that can become a job."""

    index: int
    id: str | int | None
    template: str
    variables: Mapping[str, Any]
    sticky_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """One input that cannot, and why."""

    index: int
    id: str | int | None
    error: PrefillqError

    def __str__(self) -> str:
        return f"line {self.index + 1}: {self.error}"

    def to_dict(self) -> dict[str, object]:
        return {"line": self.index + 1, "index": self.index, "id": self.id, **self.error.to_dict()}


def lines_of(file: IO[bytes], *, max_bytes: int) -> Iterator[bytes]:
    """The lines of a file. Of a longer one come the first `max_bytes` + 1 bytes, the rest is
    passed over, so that no line takes more memory than that."""
    while text := file.readline(max_bytes + 1):
        yield text
        while len(text) > max_bytes and not text.endswith(b"\n"):
            text = file.readline(max_bytes + 1)


def chunks_of(file: IO[bytes]) -> Iterator[bytes]:
    """A file in pieces of a megabyte."""
    while chunk := file.read(2**20):
        yield chunk


def no_variable(template: str) -> str:
    """`OnlyVariable` where no template is known."""
    raise InvalidInput("the template's variables are not known", given=template)


def read_line(
    text: bytes,
    index: int,
    *,
    template: str | None,
    check: Check,
    max_bytes: int = 2**26,
    format_: Format = OWN,
    only_variable: OnlyVariable = no_variable,
) -> BatchLine | BadLine:
    """Read one input line. `check` is given template, variables and sticky key, and raises a
    PrefillqError when they do not fit."""
    id_: str | int | None = None
    try:
        # Some editors begin a file with a byte order mark, and it is no part of the first line.
        data = _json_object(_text_of(text, max_bytes, "utf-8-sig" if index == 0 else "utf-8"))
        id_ = format_.id_of(data)
        check_plain(id_, path="id")
        asked = format_.read(data, template=template, only_variable=only_variable)
        if asked.sticky_key is not None:
            check_key("sticky_key", asked.sticky_key)
        check(asked.template, asked.variables, asked.sticky_key)
    except (InvalidInput, NotFound, SpecInvalid) as error:  # Redis out of reach is no bad line
        return BadLine(index=index, id=id_, error=bare(error))
    return BatchLine(
        index=index,
        id=id_,
        template=asked.template,
        variables=asked.variables,
        sticky_key=asked.sticky_key,
    )


def read_lines(
    file: Iterable[bytes],
    *,
    template: str | None,
    check: Check,
    max_bytes: int = 2**26,
    format_: Format = OWN,
    only_variable: OnlyVariable = no_variable,
    but: Indexes | None = None,
) -> Iterator[BatchLine | BadLine]:
    """Every line that is not blank, one at a time, but those, by index. Where ids must be, none may
    be there twice among them. Raises InvalidInput for more lines than a batch may have."""
    names = Names()
    for index, text in enumerate(file):
        check_index(index)
        if (but is not None and index in but) or text.strip() in (b"", codecs.BOM_UTF8):
            continue
        line = read_line(
            text,
            index,
            template=template,
            check=check,
            max_bytes=max_bytes,
            format_=format_,
            only_variable=only_variable,
        )
        if format_.unique_ids and isinstance(line.id, str):
            first = names.first(line.id, index)
            if first != index:
                line = BadLine(index=index, id=line.id, error=_there_already(first))
        yield line


E = TypeVar("E", bound=PrefillqError)


def bare(error: E) -> E:
    """An error to keep: its causes and traceback hold the whole line in memory."""
    error.__cause__ = error.__context__ = error.__traceback__ = None
    return error


def _there_already(first: int) -> InvalidInput:
    return InvalidInput(
        "the id is there already",
        given=f"that of line {first + 1}",
        expected="one of its own",
        remedy="Results come in another order and are told apart by it.",
    )


def batch_name(
    file: Iterable[bytes],
    *,
    template: str | None,
    use_cache: bool,
    run: str,
    format_: Format = OWN,
) -> str:
    """16 hex digits that name the input and what was asked for it."""
    content = hashlib.sha256()
    for text in file:
        content.update(text)
    asked: dict[str, Any] = {"template": template, "use_cache": use_cache, "run": run}
    if format_ is not OWN:  # whose batches keep the names that they had when there was no other
        asked["format"] = format_.name
    return digest({"input": content.hexdigest(), **asked})[:16]


def _text_of(line: bytes, max_bytes: int, encoding: str) -> str:
    if len(line) > max_bytes:
        raise InvalidInput(
            "the line is too long",
            given=f"over {max_bytes} bytes",
            remedy="Shorten its variables, or raise PREFILLQ_MAX_VARIABLES_BYTES.",
        )
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as error:
        raise InvalidInput(
            "not a line of JSON", given=f"no UTF-8 at byte {error.start}", expected="UTF-8"
        ) from error


def _json_object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "too deeply nested"
        raise InvalidInput(
            "not a line of JSON", given=reason[:120], expected="one JSON object"
        ) from error
    if not isinstance(data, dict):
        raise InvalidInput("not a JSON object", given=describe(data), expected="one JSON object")
    return data


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
