"""A file of inputs becomes a file of results: checked first, bounded, resumable.

Input and output are JSON lines, in prefillq's own words or in another's (`batch_format`). Each
result is one line that says which line of the input it is of (its `index`, counted from 0), its
`id` and the batch's name, in the order in which jobs end. The batch's name is made of the input's
bytes and of what was asked for it; it stands in every line of the output, so
that a later run knows, without any other file, whether the output is its own and what is left to
do. Idempotency keys are made of it too: a job enqueued by an interrupted run is found again, never
enqueued twice.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Generic, Protocol, TypeVar

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
    RedisUnreachable,
    SpecInvalid,
    TimedOut,
)
from contract.types import JobState, Result
from producer.batch_format import INVALID, OWN, Format, OnlyVariable, Written
from templates.rollouts.plain import check_key

__all__ = ["INVALID"]  # and all that is defined here

H = TypeVar("H", bound="Handle")
Check = Callable[[str, Mapping[str, Any], str | None], None]

_LONGEST_PAUSE_S = 5.0  # a limit may be raised while a batch waits for its turn
_LOOK_S = 1.0  # at least so long between looks at what ended while it does
_MAX_RESULT_LINE = 2**29  # JSON of the largest result that settings allow, and then some


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

    def ended(self, handles: Collection[H], timeout: float | None) -> Iterator[H]:
        """The handles as their jobs end. Raises TimedOut after so many seconds."""
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
        return BadLine(index=index, id=id_, error=error)
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
) -> Iterator[BatchLine | BadLine]:
    """Every line that is not blank, one at a time. Where ids must be, none may be there twice."""
    seen: dict[str, int] = {}
    for index, text in enumerate(file):
        if text.strip() in (b"", codecs.BOM_UTF8):
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
            first = seen.setdefault(line.id, index)
            if first != index:
                line = BadLine(index=index, id=line.id, error=_there_already(first))
        yield line


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

    def add(self, line: Written) -> None:
        self.statuses[line.status] += 1
        if line.usage is not None:
            self.prompt_tokens += line.usage.prompt_tokens
            self.completion_tokens += line.usage.completion_tokens
            self.cached_tokens += line.usage.cached_tokens


class Output:
    """The file of results. Opening it drops a torn last line and reads what is done."""

    def __init__(self, file: IO[bytes], batch: str, format_: Format = OWN) -> None:
        """`file` is open for reading and writing. Raises Conflict when it is another batch's."""
        self.batch = batch
        self._format = format_
        self.indexes: set[int] = set()
        self.summary = Summary()
        self._file = file
        end = 0
        for text in lines_of(file, max_bytes=_MAX_RESULT_LINE):
            if not text.endswith(b"\n") and _torn(text, format_.beginning):
                break  # the process that wrote it was killed
            line = self._own_line(text)
            end += len(text)
            if line.index not in self.indexes:
                self._count(line)
        file.seek(end)
        file.truncate()

    def write(self, line: BatchLine, result: Result) -> None:
        """Append the result of a line's job, unless it is there already."""
        where: Any = {"batch": self.batch, "index": line.index, "id_": line.id}
        self._append(line.index, lambda: self._format.result(result, **where))

    def refuse(self, line: BadLine) -> None:
        """Append what is wrong with a line, unless it is there already."""
        where: Any = {"batch": self.batch, "index": line.index, "id_": line.id}
        self._append(line.index, lambda: self._format.refused(line.error, **where))

    def _append(self, index: int, make: Callable[[], Any]) -> None:
        if index in self.indexes:
            return
        line = make()
        self._file.write(json_line(line).encode("utf-8") + b"\n")
        self._file.flush()
        self._count(self._format.written(line))

    def _count(self, line: Written) -> None:
        self.indexes.add(line.index)
        self.summary.add(line)

    def _own_line(self, text: bytes) -> Written:
        try:
            line = self._format.written(json.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise Conflict(
                "the output file holds something else",
                given=f"a line of {len(text)} bytes that is no result",
                expected=f"results of an earlier run of this batch as {self._format.name} lines, "
                "or nothing",
                remedy="Name another file with -o.",
            ) from error
        if line.batch != self.batch:
            raise Conflict(
                "the output file belongs to another batch",
                given=f"results of batch {line.batch[:40]}",
                expected=f"results of batch {self.batch}, or nothing",
                remedy="Name another file with -o; input and options must be those it began with.",
            )
        return line


def _torn(text: bytes, beginning: bytes) -> bool:
    """True for the beginning of a line that `Output` made; other files are not cut."""
    return text.startswith(beginning) or beginning.startswith(text)


def run_batch(
    lines: Iterable[BatchLine | BadLine],
    output: Output,
    submitter: Submitter[H],
    *,
    window: int,
    timeout: float | None = None,
    on_done: Callable[[], None] = lambda: None,
) -> None:
    """Run what `output` lacks, with at most `window` jobs in flight, for `timeout` seconds.

    Jobs in flight are topped up once half of them have ended: waiting for them costs one
    subscription each time, so it is not renewed for every job. Errors of Redis and TimedOut
    pass through; `output` can then be taken up again.
    """
    flight = _Flight(output, submitter, timeout=timeout, on_done=on_done)
    for line in lines:
        if line.index in output.indexes:
            continue
        if isinstance(line, BadLine):
            output.refuse(line)
            on_done()
            continue
        while True:
            try:
                handle = submitter.submit(line, f"batch:{output.batch}:{line.index}")
                break
            except Conflict as error:
                if isinstance(error, OverLimit) and error.retry_after_s is not None:
                    flight.rest(error.retry_after_s)
                    continue
                if not flight.running:
                    raise
                # Perhaps the queue is full: make room, if it is ours.
                flight.drain(len(flight.running) - 1)
        flight.running[handle.id] = (handle, line)
        if len(flight.running) >= window:
            flight.drain(window // 2)
    flight.drain(0)


class _Flight(Generic[H]):
    """Jobs that were submitted and whose results are not written yet."""

    def __init__(
        self,
        output: Output,
        submitter: Submitter[H],
        *,
        timeout: float | None,
        on_done: Callable[[], None],
    ) -> None:
        self.running: dict[str, tuple[H, BatchLine]] = {}
        self._output = output
        self._submitter = submitter
        self._give_up = None if timeout is None else time.monotonic() + timeout
        self._on_done = on_done
        self._looked_at = -math.inf

    def drain(self, down_to: int) -> None:
        """Write results until no more jobs than that are in flight. Raises TimedOut."""
        if len(self.running) <= down_to:
            return
        for handle in self._ended(self._left()):
            self._write(handle)
            if len(self.running) <= down_to:
                return

    def rest(self, seconds: float) -> None:
        """Do not submit for so long, as a rate limit asks, and write what ends meanwhile.

        Raises TimedOut once there is no time left.
        """
        left = self._left()
        if left == 0:
            self._write_ended(0.0)
            raise TimedOut(
                "not all of the batch could be enqueued in time",
                given="a rate limit that is reached",
                remedy="The jobs go on; the same again goes on with the batch.",
            )
        until = time.monotonic() + min(
            seconds, _LONGEST_PAUSE_S, math.inf if left is None else left
        )
        if time.monotonic() - self._looked_at >= _LOOK_S:
            self._write_ended(until - time.monotonic())
            self._looked_at = time.monotonic()
        time.sleep(max(0.0, until - time.monotonic()))

    def _write_ended(self, seconds: float) -> None:
        """What ends within that time; whether Redis is there the next submit will tell."""
        ended: Iterator[H] = self._ended(max(0.0, seconds)) if self.running else iter(())
        while True:
            try:
                handle = next(ended)
            except (StopIteration, TimedOut, RedisUnreachable):
                return
            self._write(handle)

    def _write(self, handle: H) -> None:
        self._output.write(self.running[handle.id][1], handle.outcome(0))
        del self.running[handle.id]
        self._on_done()

    def _ended(self, timeout: float | None) -> Iterator[H]:
        return self._submitter.ended([handle for handle, _ in self.running.values()], timeout)

    def _left(self) -> float | None:
        return None if self._give_up is None else max(0.0, self._give_up - time.monotonic())


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
