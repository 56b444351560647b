"""What a runner tells its watcher: each attempt's end once, and each finished job once."""

from __future__ import annotations

from typing import Any

import pytest

from contract.errors import RedisRefused, RedisUnreachable
from contract.job_store import Refusal
from contract.types import JobState, Result
from worker import runner as runner_module
from worker.engine.base import EngineClosed, GenerationRequest, NonFiniteLogits
from worker.engine.fake import FakeEngine
from worker.runner import JobReturned
from worker.watcher import AttemptEnd, Watcher


class Told(Watcher):
    """Keeps all that it was told."""

    def __init__(self) -> None:
        self.refused: list[Refusal] = []
        self.ends: list[AttemptEnd] = []
        self.finished: list[Result] = []

    def claim_refused(self, reason: Refusal) -> None:
        self.refused.append(reason)

    def attempt_ended(self, end: AttemptEnd) -> None:
        self.ends.append(end)

    def job_finished(self, result: Result) -> None:
        self.finished.append(result)


class Raising(FakeEngine):
    """An engine whose every answer is this error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def generate(self, _: GenerationRequest) -> Any:
        raise self.error


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_finished_job_is_told_with_the_result_that_was_written(
    make_stack: Any, told: Told
) -> None:
    """The commit's own time included, as in the log line."""
    stack = make_stack(watcher=told)
    result = stack.runner.run(stack.submit())
    assert (told.ends, told.finished, told.refused) == (["ended"], [result], [])
    assert result.timings.commit_s > 0


def test_a_failed_job_is_finished_too(make_stack: Any, told: Told) -> None:
    """With its status."""
    stack = make_stack(engine=Raising(ValueError("x")), watcher=told)
    stack.runner.run(stack.submit())
    assert told.ends == ["ended"]
    assert [result.status for result in told.finished] == [JobState.FAILED]


def test_a_second_message_is_a_refused_claim(make_stack: Any, told: Told) -> None:
    """And neither an attempt nor a job."""
    stack = make_stack(watcher=told)
    job_id = stack.submit()
    stack.runner.run(job_id)
    stack.runner.run(job_id)
    assert told.refused == ["ended"]
    assert len(told.finished) == 1


def test_attempts_of_a_job_that_dies(make_stack: Any, told: Told) -> None:
    """Each is told, and the job once, at its end."""
    stack = make_stack(engine=Raising(NonFiniteLogits("nan")), watcher=told)
    job_id = stack.submit()
    for _ in range(5):
        stack.runner.run(job_id)
        stack.clock.now += 120
    assert told.ends == ["tried_later"] * 4 + ["dead"]
    assert [(result.status, result.attempt) for result in told.finished] == [(JobState.FAILED, 5)]


def test_a_lost_lease_is_told_and_its_job_is_not_finished(make_stack: Any, told: Told) -> None:
    """Another worker's claim came between."""
    stack = make_stack(watcher=told)
    job_id = stack.submit()

    class Slow(FakeEngine):
        def generate(self, request: GenerationRequest) -> Any:
            stack.clock.now += 100
            stack.store.claim(job_id, "w2", 6.0)
            return super().generate(request)

    stack.runner._answers.engine = Slow()
    assert stack.runner.run(job_id) is None
    assert (told.ends, told.finished) == (["lost"], [])


@pytest.mark.parametrize("error", [RedisUnreachable("away"), RedisRefused("full")])
def test_a_job_put_back_is_returned(make_stack: Any, told: Told, error: Exception) -> None:
    """Its attempt is not counted by Redis, and no job has ended."""
    stack = make_stack(engine=Raising(error), watcher=told)
    with pytest.raises(type(error)):
        stack.runner.run(stack.submit())
    assert (told.ends, told.finished) == (["returned"], [])


def test_a_job_of_a_worker_that_ends_is_returned(make_stack: Any, told: Told) -> None:
    """The engine was closed under it."""
    stack = make_stack(engine=Raising(EngineClosed("closed")), watcher=told)
    with pytest.raises(JobReturned):
        stack.runner.run(stack.submit())
    assert (told.ends, told.finished) == (["returned"], [])


def test_a_result_that_cannot_be_written_is_given_up(
    make_stack: Any, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After all the tries that a worker makes."""
    stack = make_stack(watcher=told)
    monkeypatch.setattr(runner_module, "COMMIT_PATIENCE_S", 0.0)
    monkeypatch.setattr(runner_module, "COMMIT_RETRY_S", 0.0)
    stack.leases.lease_s = 0.01

    def away(*_: object) -> None:
        raise RedisUnreachable("away")

    monkeypatch.setattr(stack.store, "commit", away)
    with pytest.raises(RedisUnreachable):
        stack.runner.run(stack.submit())
    assert (told.ends, told.finished) == (["given_up"], [])


def test_a_cancel_before_another_attempt_ends_the_last_one(make_stack: Any, told: Told) -> None:
    """The record says cancelled; no other attempt follows."""
    stack = make_stack(watcher=told)
    job_id = stack.submit()

    class Cancelled(FakeEngine):
        def generate(self, _: GenerationRequest) -> Any:
            stack.store.cancel(job_id)
            raise NonFiniteLogits("nan")

    stack.runner._answers.engine = Cancelled()
    stack.runner.run(job_id)
    assert stack.store.get(job_id).state is JobState.CANCELLED
    assert told.ends == ["ended"]
