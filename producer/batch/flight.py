"""Jobs in flight: submitted within a window, and written as they end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from contract.errors import (
    Conflict,
    InvalidInput,
    KeyDamaged,
    KeyTaken,
    NotFound,
    OverLimit,
    PrefillqError,
    QueueFull,
    RecordDamaged,
    RedisUnreachable,
    SpecInvalid,
    TimedOut,
)
from contract.types import Result
from producer.batch.lines import BadLine, BatchLine
from producer.batch.results import Output

H = TypeVar("H", bound="Handle")

_LONGEST_PAUSE_S = 5.0  # a limit may be raised while a batch waits for its turn
_FULL_PAUSE_S = 1.0  # between tries while a queue is full of others' jobs
_LOOK_S = 1.0  # at least so long between looks at what ended while it does


class Handle(Protocol):
    """The part of `JobHandle` that a batch needs."""

    @property
    def id(self) -> str: ...
    def outcome(self, timeout: float | None = ...) -> Result: ...


class Submitter(Protocol[H]):
    """Where jobs go: a `Producer`, or something in memory for tests."""

    def submit(self, line: BatchLine, idempotency_key: str) -> H:
        """Enqueue a line's job. Raises RecordDamaged or KeyTaken when there is one already that is
        not to be had, Conflict when there is no room, and whatever else `Producer.submit` does."""
        ...

    def ended(self, handles: Collection[H], timeout: float | None) -> Iterator[H]:
        """The handles as their jobs end. Raises TimedOut after so many seconds."""
        ...


def _nothing(*_: object) -> None: ...


def run_batch(
    lines: Iterable[BatchLine | BadLine],
    output: Output,
    submitter: Submitter[H],
    *,
    window: int,
    timeout: float | None = None,
    skip_invalid: bool = False,
    on_done: Callable[[], None] = _nothing,
    on_wait: Callable[[PrefillqError], None] = _nothing,
) -> int:
    """Run what `output` lacks, with at most `window` jobs in flight, for `timeout` seconds. Gives
    how many jobs were enqueued a second time, because their records had gone.

    `on_wait` is told of a queue that is full of others' jobs, at each try. A line that its template
    takes no longer is written as an error with `skip_invalid`; else that passes through, as errors
    of Redis and TimedOut do; `output` can then be taken up again.
    """
    flight = _Flight(
        output,
        submitter,
        window=window,
        timeout=timeout,
        skip_invalid=skip_invalid,
        on_done=on_done,
        on_wait=on_wait,
    )
    for line in lines:
        if line.index in output.indexes:
            continue
        if isinstance(line, BadLine):
            flight.refuse(line)
        else:
            flight.launch(line)
    flight.finish()
    return len(flight.again)


class _Flight(Generic[H]):
    """Jobs that were submitted and whose results are not written yet."""

    def __init__(
        self,
        output: Output,
        submitter: Submitter[H],
        *,
        window: int,
        timeout: float | None,
        skip_invalid: bool,
        on_done: Callable[[], None],
        on_wait: Callable[[PrefillqError], None],
    ) -> None:
        self.again: set[int] = set()  # lines whose jobs were gone and are enqueued a second time
        self._running: dict[str, tuple[H, BatchLine]] = {}
        self._gone: list[BatchLine] = []  # those of them that are yet to be enqueued
        self._output = output
        self._submitter = submitter
        self._window = window
        self._give_up = None if timeout is None else time.monotonic() + timeout
        self._skip_invalid = skip_invalid
        self._on_done = on_done
        self._on_wait = on_wait
        self._looked_at = -math.inf

    def launch(self, line: BatchLine) -> None:
        """Enqueue a line's job, once there is room for it.

        Jobs in flight are topped up once half of them have ended: waiting for them costs one
        subscription each time, so it is not renewed for every job.
        """
        self._enqueue(line)
        while self._gone:
            self._enqueue(self._gone.pop())

    def finish(self) -> None:
        """Write what is in flight."""
        while self._running or self._gone:
            self._drain(0)
            while self._gone:
                self._enqueue(self._gone.pop())

    def refuse(self, line: BadLine) -> None:
        self._output.refuse(line)
        self._on_done()

    def _enqueue(self, line: BatchLine) -> None:
        handle = self._submit(line)
        if handle is None:
            return
        self._running[handle.id] = (handle, line)
        if len(self._running) >= self._window:
            self._drain(self._window // 2)

    def _submit(self, line: BatchLine) -> H | None:
        """None: the line's answer is an error, which is written."""
        while True:
            try:
                return self._submitter.submit(line, f"batch:{self._output.batch}:{line.index}")
            except (RecordDamaged, KeyTaken) as error:
                self._fail(line, error, job_id=None)
                return None
            except (InvalidInput, NotFound, SpecInvalid) as error:
                if not self._skip_invalid:
                    raise
                self.refuse(BadLine(index=line.index, id=line.id, error=error))
                return None
            except Conflict as error:
                if isinstance(error, OverLimit) and error.retry_after_s is not None:
                    self._rest(error.retry_after_s, error)
                elif self._running:  # make room, if it is ours
                    self._drain(len(self._running) - 1)
                elif isinstance(error, OverLimit | QueueFull):
                    self._on_wait(error)
                    self._rest(_FULL_PAUSE_S, error)
                else:
                    raise

    def _drain(self, down_to: int) -> None:
        """Write results until no more jobs than that are in flight. Raises TimedOut."""
        while len(self._running) > down_to:
            for handle in self._ended(self._left()):
                self._land(handle)
                if len(self._running) <= down_to:
                    return

    def _rest(self, seconds: float, why: PrefillqError) -> None:
        """Do not submit for so long, and write what ends meanwhile.

        Raises TimedOut once there is no time left.
        """
        left = self._left()
        if left == 0:
            self._write_ended(0.0)
            raise TimedOut(
                "not all of the batch could be enqueued in time",
                given=why.problem,
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
        ended: Iterator[H] = self._ended(max(0.0, seconds)) if self._running else iter(())
        while True:
            try:
                handle = next(ended)
            except (StopIteration, TimedOut, RedisUnreachable):
                return
            self._land(handle)

    def _land(self, handle: H) -> None:
        """Write how a job ended. One that goes on stays in flight: anybody may publish its end."""
        _, line = self._running[handle.id]
        try:
            result = handle.outcome(0)
        except TimedOut:
            return
        except NotFound as error:
            del self._running[handle.id]
            # Its record expired, or Redis lost it. Nobody else has its answer.
            if line.index in self.again:
                self._fail(line, error, handle.id)
            else:
                self.again.add(line.index)
                self._gone.append(line)
            return
        except (RecordDamaged, KeyDamaged) as error:
            del self._running[handle.id]
            self._fail(line, error, handle.id)
            return
        del self._running[handle.id]
        self._output.write(line, result)
        self._on_done()

    def _fail(self, line: BatchLine, error: PrefillqError, job_id: str | None) -> None:
        if isinstance(error, KeyDamaged):  # which says nothing of jobs
            error = RecordDamaged(
                "a job's record is damaged",
                given=f"{job_id}: {error.given}"[:160],
                expected="a record as prefillq writes it",
            )
        self._output.fail(line, error, job_id)
        self._on_done()

    def _ended(self, timeout: float | None) -> Iterator[H]:
        return self._submitter.ended([handle for handle, _ in self._running.values()], timeout)

    def _left(self) -> float | None:
        return None if self._give_up is None else max(0.0, self._give_up - time.monotonic())
