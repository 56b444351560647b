"""What a worker does with a job that failed for a reason that may pass, and when it ends itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from contract.types import JobState
from worker.engine.base import EngineClosed, GenerationRequest
from worker.engine.fake import FakeEngine
from worker.runner import BACKOFF_S, LONGEST_BACKOFF_S, JobReturned


class Raises(FakeEngine):
    """Raises the errors it is given, one a call, and answers when there are none left."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    def generate(self, request: GenerationRequest) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return super().generate(request)


def warm(make_stack: Any, *errors: Exception, **options: Any) -> Any:
    """A stack whose prefix is there, so that the errors meet the job and not the first check."""
    engine = Raises()
    stack = make_stack(engine=engine, **options)
    stack.runner.run(stack.submit("warm"))
    engine.errors = list(errors)
    return stack


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (
            RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            ),
            "out_of_memory",
        ),
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), "device_lost"),
    ],
)
def test_trouble_of_the_machine_is_tried_again(
    make_stack: Any, error: Exception, code: str
) -> None:
    """The job is queued with its reason in the log, and the next attempt answers it."""
    lost: list[bool] = []
    stack = warm(make_stack, error, device_lost=lambda: lost.append(True))
    job_id = stack.submit()
    assert stack.runner.run(job_id) is None
    assert stack.store.get(job_id).state is JobState.QUEUED
    assert bool(lost) is (code == "device_lost"), "and a lost device is told to the worker"
    stack.clock.now += LONGEST_BACKOFF_S
    result = stack.runner.run(job_id)
    assert (result.status, result.attempt) == (JobState.SUCCEEDED, 2)


def test_error_that_cannot_pass_is_not_tried_again(make_stack: Any) -> None:
    """A bug gives the same again: the job fails at once."""
    stack = warm(make_stack, ValueError("a bug"), RuntimeError("another"))
    for code in ("internal_error", "internal_error"):
        result = stack.runner.run(stack.submit())
        assert (result.status, result.error.code, result.attempt) == (JobState.FAILED, code, 1)


def test_attempts_are_further_and_further_apart(make_stack: Any) -> None:
    """Doubled from attempt to attempt, a quarter more or less, up to the longest."""
    stack = warm(make_stack, *[MemoryError() for _ in range(4)])
    job_id = stack.submit()
    for attempt in range(1, 5):
        assert stack.runner.run(job_id) is None
        delay_s = stack.store._records[job_id].not_before - stack.clock.now
        expected = min(LONGEST_BACKOFF_S, BACKOFF_S * 2 ** (attempt - 1))
        assert 0.75 * expected <= delay_s <= 1.25 * expected
        stack.clock.now += delay_s
    assert stack.runner.run(job_id).status is JobState.SUCCEEDED


def test_last_attempt_returns_its_result(make_stack: Any) -> None:
    """And says what it failed of."""
    stack = warm(make_stack, *[MemoryError() for _ in range(5)])
    job_id = stack.submit()
    for _ in range(4):
        assert stack.runner.run(job_id) is None
        stack.clock.now += 2 * LONGEST_BACKOFF_S
    result = stack.runner.run(job_id)
    assert (result.status, result.error.code) == (JobState.FAILED, "out_of_memory")
    assert stack.store.get(job_id).dead


def test_draining_worker_takes_no_job(make_stack: Any) -> None:
    """The record stays as it is; the message goes back."""
    stack = make_stack(draining=lambda: True)
    job_id = stack.submit()
    with pytest.raises(JobReturned):
        stack.runner.run(job_id)
    view = stack.store.get(job_id)
    assert (view.state, view.job.fence) == (JobState.QUEUED, 0)


def test_closed_engine_gives_the_job_back(make_stack: Any) -> None:
    """A request that came after the engine ended is no failure of the job."""
    stack = warm(make_stack, EngineClosed("the engine is closed"))
    job_id = stack.submit()
    with pytest.raises(JobReturned):
        stack.runner.run(job_id)
    view = stack.store.get(job_id)
    assert (view.state, view.job.attempt) == (JobState.QUEUED, 0)


def test_returned_job_is_released_and_its_attempt_not_counted(make_stack: Any) -> None:
    """The worker ends while the engine works: the engine stops and the job is queued again."""
    stack = make_stack()

    class Ends(FakeEngine):
        def generate(self, request: GenerationRequest) -> Any:
            stack.leases.return_all()
            return super().generate(request)

    stack.runner._answers.engine = Ends()
    job_id = stack.submit()
    with pytest.raises(JobReturned):
        stack.runner.run(job_id)
    view = stack.store.get(job_id)
    assert (view.state, view.job.attempt) == (JobState.QUEUED, 0)


def test_job_that_ends_just_as_it_is_returned_is_committed(make_stack: Any) -> None:
    """An answer is not thrown away because the worker ends a moment later."""
    stack = make_stack()

    class EndsAfter(FakeEngine):
        def generate(self, request: GenerationRequest) -> Any:
            generation = super().generate(request)
            stack.leases.return_all()
            return generation

    stack.runner._answers.engine = EndsAfter()
    assert stack.runner.run(stack.submit()).status is JobState.SUCCEEDED
