"""The output of a batch: a line for each line of the input, and what an earlier run left there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from contract.console import json_line
from contract.errors import Conflict, InvalidInput, PrefillqError, RecordDamaged
from contract.types import JobState, Result
from producer.batch.formats import OWN, Format, Written
from producer.batch.lines import BadLine, BatchLine, lines_of
from producer.batch.seen import Indexes

_MAX_LINE = 2**26  # bytes of a line, unless told otherwise
# What comes of lines that are none of ours.
_ODD = (ValueError, LookupError, TypeError, AttributeError, RecursionError, InvalidInput)


def longest_line(max_result_bytes: int) -> int:
    """Bytes that a line may have for results of that size in msgpack.

    JSON may spell each of their bytes with six characters, and has names around them.
    """
    return 8 * max_result_bytes + 2**16


@dataclass(slots=True)
class Summary:
    """What an output holds; tokens are counted over all its results."""

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
    """Where results go. Opening it reads what is done, and drops a torn last line."""

    def __init__(
        self,
        file: IO[bytes],
        batch: str,
        format_: Format = OWN,
        *,
        max_bytes: int = _MAX_LINE,
        begun: bool = True,
    ) -> None:
        """`file` is open for reading and writing; unless `begun`, for writing is enough.

        No line is longer than `max_bytes`. Raises Conflict when the file is another batch's.
        """
        self.batch = batch
        self.indexes = Indexes()
        self.summary = Summary()
        self._format = format_
        self._file = file
        self._max_bytes = max_bytes
        if begun:
            self._take_up()

    def write(self, line: BatchLine, result: Result) -> None:
        """Append the result of a line's job, unless it is there already."""
        try:
            self._append(line, lambda where: self._format.result(result, **where))
        except _ODD as error:
            # Producers of the tenant can write records by hand, such that no line holds them.
            odd = RecordDamaged(
                "a job's result makes no line of this file",
                given=result.job_id,
                expected=f"JSON of at most {self._max_bytes} bytes, and a state that ends a job",
                remedy="If workers have a higher PREFILLQ_MAX_RESULT_BYTES, give it to the batch.",
            )
            odd.__cause__ = error
            self.fail(line, odd, result.job_id)

    def fail(self, line: BatchLine, error: PrefillqError, job_id: str | None) -> None:
        """Append that a line's job can have no answer, unless it is there already."""
        self._append(line, lambda where: self._format.failed(error, job_id=job_id, **where))

    def refuse(self, line: BadLine) -> None:
        """Append what is wrong with a line, unless it is there already."""
        self._append(line, lambda where: self._format.refused(line.error, **where))

    def _append(self, line: BatchLine | BadLine, make: Callable[[dict[str, Any]], Any]) -> None:
        if line.index in self.indexes:
            return
        made = make({"batch": self.batch, "index": line.index, "id_": line.id})
        # Before it is written: what a later run could not read must not be in the file.
        written = self._format.written(made)
        text = json_line(made).encode("utf-8") + b"\n"
        if len(text) > self._max_bytes:
            raise ValueError("a line that is too long")
        self._file.write(text)
        self._file.flush()
        self._count(written)

    def _count(self, line: Written) -> None:
        self.indexes.add(line.index)
        self.summary.add(line)

    def _take_up(self) -> None:
        end = 0
        for text in lines_of(self._file, max_bytes=self._max_bytes):
            if self._torn(text):
                break  # the process that wrote it was killed
            line = self._own_line(text)
            end += len(text)
            if line.index not in self.indexes:
                self._count(line)
        self._file.seek(end)
        self._file.truncate()

    def _torn(self, text: bytes) -> bool:
        """True for the beginning of a line that `Output` made; other files are not cut."""
        if text.endswith(b"\n") or len(text) > self._max_bytes:
            return False
        beginning = self._format.beginning
        return text.startswith(beginning) or beginning.startswith(text)

    def _own_line(self, text: bytes) -> Written:
        try:
            if not text.startswith(self._format.beginning) or len(text) > self._max_bytes:
                raise ValueError("no beginning or no end of ours")
            line = self._format.written(json.loads(text))
        except _ODD as error:
            size = f"{len(text)}" if len(text) <= self._max_bytes else f"over {self._max_bytes}"
            raise Conflict(
                "the output file holds something else",
                given=f"a line of {size} bytes that is no result",
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
