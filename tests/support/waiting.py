"""Waiting for what must happen, with a bound and a word about what did not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from contract.types import JobState
from producer.handle import JobHandle

T = TypeVar("T")


def until(condition: Callable[[], T], timeout: float = 30.0, *, what: str = "") -> T:
    """The first true value of `condition`; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s: {what or condition}"
        time.sleep(0.02)
    return value


def running(job: JobHandle, timeout: float = 30.0, *, attempt: int = 1) -> str:
    """Wait until a worker has the job, in this attempt or a later one; the worker's id."""

    def worker() -> str:
        view = job.view()
        claimed = view.state is JobState.RUNNING and view.job.attempt >= attempt
        return view.worker if claimed else ""

    return until(worker, timeout, what=f"{job.id} runs, attempt {attempt}")
