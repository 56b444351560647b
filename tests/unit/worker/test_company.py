"""Who runs beside whom in a worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from worker.company import Company


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Job:
    """A thread that wants a turn, has it, and keeps it until it is told to end."""

    def __init__(self, company: Company, kind: str) -> None:
        self._turn = company.alone if kind == "alone" else company.together
        self._end = threading.Event()
        self.runs = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._turn():
            self.runs.set()
            self._end.wait(20)

    def has_turn(self, within_s: float = 5.0) -> bool:
        return self.runs.wait(within_s)

    def end(self) -> None:
        self._end.set()
        self._thread.join(5)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def start(clock: Clock) -> Iterator[Callable[[str], Job]]:
    company = Company(clock=clock)
    with ExitStack() as stack:

        @contextmanager
        def ended(kind: str) -> Iterator[Job]:
            job = Job(company, kind)
            try:
                yield job
            finally:
                job.end()

        yield lambda kind: stack.enter_context(ended(kind))


def test_others_run_together(start: Callable[[str], Job]) -> None:
    """As many as there are."""
    assert all(start("together").has_turn() for _ in range(5))


def test_one_alone_waits_for_those_that_run_and_keeps_out_others(
    start: Callable[[str], Job],
) -> None:
    """Those that come later wait for it, else it would wait for ever."""
    first = start("together")
    assert first.has_turn()
    alone = start("alone")
    assert not alone.has_turn(0.5)
    later = start("together")
    assert not later.has_turn(0.5)
    first.end()
    assert alone.has_turn()
    assert not later.has_turn(0.5)
    alone.end()
    assert later.has_turn()


def test_two_alone_are_alone(start: Callable[[str], Job]) -> None:
    """One after the other, at once where nobody else waits."""
    one, two = start("alone"), start("alone")
    assert one.has_turn() or two.has_turn()
    assert not (one.runs.is_set() and two.has_turn(0.5))
    for job in (one, two):
        if job.runs.is_set():
            job.end()
            break
    assert one.has_turn()
    assert two.has_turn()


def test_others_have_as_long_as_one_alone_took(start: Callable[[str], Job], clock: Clock) -> None:
    """A tenant with many suspects has half of the worker's time at the most."""
    alone = start("alone")
    assert alone.has_turn()
    waiting = start("together")
    time.sleep(0.3)
    clock.now = 10.0
    alone.end()
    assert waiting.has_turn()
    next_alone = start("alone")
    clock.now = 19.0
    assert start("together").has_turn(), "the others' time is not over"
    waiting.end()
    assert not next_alone.has_turn(0.5)
    clock.now = 20.0
    late = start("together")
    assert not late.has_turn(0.7)


def test_nobody_waits_when_the_worker_ends() -> None:
    """Whoever waited looks for itself what to do."""
    ends = False
    company = Company(give_up=lambda: ends)
    first, alone = Job(company, "together"), None
    assert first.has_turn()
    alone = Job(company, "alone")
    assert not alone.has_turn(0.3)
    ends = True
    assert alone.has_turn()
    alone.end()
    first.end()
