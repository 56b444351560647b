"""A file of inputs becomes a file of results: checked first, bounded, resumable.

The input is JSON lines, `{"variables": {...}, "template": ..., "id": ..., "sticky_key": ...}`, of
which the last three are optional. Each result is one JSON line with the input's `index` (its line,
counted from 0), its `id` and the batch's name, in the order in which jobs end. The batch's name is
made of the input's bytes and of what was asked for it; it stands in every line of the output, so
that a later run knows, without any other file, whether the output is its own and what is left to
do. Idempotency keys are made of it too: a job enqueued by an interrupted run is found again, never
enqueued twice.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Protocol, TypeVar

from contract.canonical import digest
from contract.codec import check_plain
from contract.console import json_line
from contract.described import describe
from contract.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    OverLimit,
    PrefillqError,
    SpecInvalid,
)
from contract.ids import parse_address
from contract.types import JobState, Result
from templates.rollouts.plain import check_key

H = TypeVar("H", bound="Handle")
Check = Callable[[str, Mapping[str, Any], str | None], None]

INVALID = "invalid"  # the status of a line that could not become a job
_LONGEST_PAUSE_S = 5.0  # a limit may be raised while a batch waits for its turn
_MAX_RESULT_LINE = 2**29  # JSON of the largest result that settings allow, and then some
_FIELDS = {"variables", "template", "id", "sticky_key"}


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


class Handle(Protocol):
    """The part of `JobHandle` that a batch needs."""

    @property
    def id(self) -> str: ...
    def outcome(self, timeout: float | None = ...) -> Result: ...


class Submitter(Protocol[H]):
    """Where jobs go: a `Producer`, or something in memory for tests."""

    def submit(self, line: BatchLine, idempotency_key: str) -> H: ...

    def ended(self, handles: Collection[H]) -> Iterator[H]:
        """The handles as their jobs end. Raises TimedOut."""
        ...


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


def read_line(
    text: bytes, index: int, *, template: str | None, check: Check, max_bytes: int = 2**26
) -> BatchLine | BadLine:
    """Read one input line. `check` is given template, variables and sticky key, and raises a
    PrefillqError when they do not fit."""
    id_: str | int | None = None
    try:
        # Some editors begin a file with a byte order mark, and it is no part of the first line.
        data = _json_object(_text_of(text, max_bytes, "utf-8-sig" if index == 0 else "utf-8"))
        id_ = _id(data)
        address = _address(data, template)
        variables = _variables(data)
        sticky_key = _sticky_key(data)
        check(address, variables, sticky_key)
    except (InvalidInput, NotFound, SpecInvalid) as error:  # Redis out of reach is no bad line
        return BadLine(index=index, id=id_, error=error)
    return BatchLine(
        index=index, id=id_, template=address, variables=variables, sticky_key=sticky_key
    )


def read_lines(
    file: Iterable[bytes], *, template: str | None, check: Check, max_bytes: int = 2**26
) -> Iterator[BatchLine | BadLine]:
    """Every line that is not blank, one at a time."""
    for index, text in enumerate(file):
        if text.strip() not in (b"", codecs.BOM_UTF8):
            yield read_line(text, index, template=template, check=check, max_bytes=max_bytes)


def batch_name(file: Iterable[bytes], *, template: str | None, use_cache: bool, run: str) -> str:
    """16 hex digits that name the input and what was asked for it."""
    content = hashlib.sha256()
    for text in file:
        content.update(text)
    asked = {"template": template, "use_cache": use_cache, "run": run}
    return digest({"input": content.hexdigest(), **asked})[:16]


@dataclass(slots=True)
class Summary:
    """What an output file holds; tokens are counted over all its results."""

    statuses: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def done(self) -> int:
        return self.statuses.total()

    @property
    def succeeded(self) -> bool:
        """True when every line has an answer."""
        return self.statuses[JobState.SUCCEEDED] == self.done

    def add(self, line: Mapping[str, Any]) -> None:
        self.statuses[line["status"]] += 1
        usage = line.get("usage")
        if usage is not None:
            self.prompt_tokens += usage["prompt_tokens"]
            self.completion_tokens += usage["completion_tokens"]
            self.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]


class Output:
    """The file of results. Opening it drops a torn last line and reads what is done."""

    def __init__(self, file: IO[bytes], batch: str) -> None:
        """`file` is open for reading and writing. Raises Conflict when it is another batch's."""
        self.batch = batch
        self.indexes: set[int] = set()
        self.summary = Summary()
        self._file = file
        end = 0
        for text in lines_of(file, max_bytes=_MAX_RESULT_LINE):
            if not text.endswith(b"\n") and _torn(text):
                break  # the process that wrote it was killed
            line = self._own_line(text)
            end += len(text)
            if line["index"] not in self.indexes:
                self._count(line)
        file.seek(end)
        file.truncate()

    def write(self, index: int, id_: str | int | None, content: Mapping[str, Any]) -> None:
        """Append one line and flush it. An index that is there already is left alone."""
        if index in self.indexes:
            return
        line = {"index": index, "id": id_, "batch": self.batch, **content}
        self._file.write(json_line(line).encode("utf-8") + b"\n")
        self._file.flush()
        self._count(line)

    def _count(self, line: Mapping[str, Any]) -> None:
        self.indexes.add(line["index"])
        self.summary.add(line)

    def _own_line(self, text: bytes) -> Mapping[str, Any]:
        try:
            line = json.loads(text)
            whose = _own(line)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise Conflict(
                "the output file holds something else",
                given=f"a line of {len(text)} bytes that is no result",
                expected="results of an earlier run of this batch, or nothing",
                remedy="Name another file with -o.",
            ) from error
        if whose != self.batch:
            raise Conflict(
                "the output file belongs to another batch",
                given=f"results of batch {whose[:40]}",
                expected=f"results of batch {self.batch}, or nothing",
                remedy="Name another file with -o; input and options must be those it began with.",
            )
        result: Mapping[str, Any] = line
        return result


def _own(line: Any) -> str:
    """The batch's name in a line of results. Raises LookupError or TypeError for other lines."""
    usage = line.get("usage") if isinstance(line, dict) else None
    if usage is not None:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        counts = (usage["prompt_tokens"], usage["completion_tokens"], cached)
        if any(type(count) is not int for count in counts):
            raise TypeError("counts that are none")
    index, whose, status = line["index"], line["batch"], line["status"]
    if (type(index), type(whose), type(status)) != (int, str, str):
        raise TypeError("fields of other types")
    name: str = whose
    return name


def _torn(text: bytes) -> bool:
    """True for the beginning of a line that `Output.write` made; other files are not cut."""
    beginning = b'{"index": '
    return text.startswith(beginning) or beginning.startswith(text)


def run_batch(
    lines: Iterable[BatchLine | BadLine],
    output: Output,
    submitter: Submitter[H],
    *,
    window: int,
    on_done: Callable[[], None] = lambda: None,
) -> None:
    """Run what `output` lacks, with at most `window` jobs in flight.

    Jobs in flight are topped up once half of them have ended: waiting for them costs one
    subscription each time, so it is not renewed for every job. Errors of Redis and TimedOut
    pass through; `output` can then be taken up again.
    """
    running: dict[str, tuple[H, BatchLine]] = {}

    def drain(down_to: int) -> None:
        if len(running) <= down_to:
            return
        for handle in submitter.ended([handle for handle, _ in running.values()]):
            _, line = running.pop(handle.id)
            output.write(line.index, line.id, handle.outcome(0).to_dict())
            on_done()
            if len(running) <= down_to:
                return

    for line in lines:
        if line.index in output.indexes:
            continue
        if isinstance(line, BadLine):
            output.write(line.index, line.id, {"status": INVALID, "error": line.error.to_dict()})
            on_done()
            continue
        while True:
            try:
                handle = submitter.submit(line, f"batch:{output.batch}:{line.index}")
                break
            except Conflict as error:
                if _waited(error):
                    continue
                if not running:
                    raise
                drain(len(running) - 1)  # perhaps the queue is full: make room, if it is ours
        running[handle.id] = (handle, line)
        if len(running) >= window:
            drain(window // 2)
    drain(0)


def _waited(error: Conflict) -> bool:
    """True after the pause that a rate limit asks for."""
    if not isinstance(error, OverLimit) or error.retry_after_s is None:
        return False
    time.sleep(min(error.retry_after_s, _LONGEST_PAUSE_S))
    return True


def _id(data: Mapping[str, Any]) -> str | int | None:
    value = data.get("id")
    if value is None or isinstance(value, str | int):
        check_plain(value, path="id")
        return value
    raise InvalidInput("id is neither text nor integer", given=describe(value))


def _sticky_key(data: Mapping[str, Any]) -> str | None:
    key = data.get("sticky_key")
    if key is not None:
        check_key("sticky_key", key)
    return key


def _address(data: Mapping[str, Any], default: str | None) -> str:
    address = data.get("template", default)
    if not isinstance(address, str):
        raise InvalidInput(
            "template is missing",
            given="no template" if address is None else describe(address),
            expected='"template": "tenant/name"',
            remedy="Name it on the line or with --template.",
        )
    parse_address(address)
    return address


def _variables(data: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(data) - _FIELDS):
        raise InvalidInput(
            "unknown fields",
            given=", ".join(map(ascii, unknown))[:120],
            expected="variables, template, id, sticky_key",
            remedy="Put the template's variables under 'variables'.",
        )
    variables = data.get("variables")
    if not isinstance(variables, dict):
        raise InvalidInput(
            "variables is no object",
            given="nothing" if variables is None else describe(variables),
            expected='"variables": {"name": value}',
        )
    return variables


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
            "not a line of JSON", given=reason[:120], expected='{"variables": {...}}'
        ) from error
    if not isinstance(data, dict):
        raise InvalidInput(
            "not a JSON object", given=describe(data), expected='{"variables": {...}}'
        )
    return data


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
