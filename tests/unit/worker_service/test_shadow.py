"""The canary's copies of jobs: answered when there is room, and otherwise left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from contract.errors import RedisRefused, RedisUnreachable
from contract.types import Job, JobState
from templates.rollouts.compare import Answered
from templates.rollouts.rollout import Phase, Plan, Rollout
from worker.engine.base import GenerationRequest
from worker.engine.fake import FakeEngine, digest_text
from worker.rollouts.shadow import Shadowing, ShadowRunner

ROLLOUT = Rollout(
    id="ab" * 8,
    plan=Plan(label="production", stable=1, canary=2, steps=(100,), bake_s=1.0, shadow=10_000),
    phase=Phase.BAKING,
    step=0,
    started_at=1.0,
    since=1.0,
)


@dataclass
class Queue:
    """What waits and what was written, in memory."""

    waiting: list[str] = field(default_factory=list)
    written: list[tuple[str, Answered, Answered]] = field(default_factory=list)
    trouble: Exception | None = None

    def offer(self, job: Job) -> None:
        self.waiting.insert(0, job.id)

    def take(self, _tenant: str, _rollout_id: str) -> str | None:
        if self.trouble is not None:
            raise self.trouble
        return self.waiting.pop() if self.waiting else None

    def put_back(self, _tenant: str, _rollout_id: str, job_id: str) -> None:
        self.waiting.append(job_id)

    def write(
        self, tenant: str, rollout_id: str, job_id: str, stable: Answered, canary: Answered
    ) -> None:
        assert (tenant, rollout_id) == ("acme", ROLLOUT.id)
        self.written.append((job_id, stable, canary))


@dataclass
class Rig:
    """A worker whose stable version's jobs are answered by a second version too."""

    stack: Any
    queue: Queue
    runner: ShadowRunner
    canary: Any
    busy: list[bool]

    def job(self, note: str = "hello", **changed: Any) -> str:
        asked = {"rollout": ROLLOUT.id, "shadow": 2, **changed}
        job_id: str = self.stack.submit(note, **asked)
        self.stack.runner.run(job_id)
        return job_id


@pytest.fixture
def make_rig(make_stack: Any) -> Callable[..., Rig]:
    def make(engine: FakeEngine | None = None, **spec: Any) -> Rig:
        queue, busy = Queue(), [False]
        stack = make_stack(engine=engine, shadow=queue.offer)
        canary = stack.publish(rules="Answer in other words. Names are repeated.", **spec)
        canary = replace(canary, ref=replace(canary.ref, version=2))
        stack.versions[canary.ref.digest] = canary
        shadowing = Shadowing(tenant="acme", name="notes", rollout=ROLLOUT, canary=canary)
        runner = ShadowRunner(
            queue=queue,  # type: ignore[arg-type]
            store=stack.store,
            answers=stack.runner._answers,
            shadowing=lambda: [shadowing],
            busy=lambda: busy[0],
        )
        return Rig(stack=stack, queue=queue, runner=runner, canary=canary, busy=busy)

    return make


def test_both_answers_are_kept_and_the_job_is_not_touched(make_rig: Callable[..., Rig]) -> None:
    """The canary has the same variables; the record is as it was, also its fence and attempt."""
    rig = make_rig()
    job_id = rig.job("The parcel came.")
    before = rig.stack.store.get(job_id)
    assert rig.runner.look() == 1
    [(written, stable, canary)] = rig.queue.written
    assert (written, stable.version, canary.version) == (job_id, 1, 2)
    assert stable.text == before.result.text
    assert canary.text == digest_text(rig.stack.engine.requests[-1]) != stable.text
    assert stable.tokens == before.result.usage.completion_tokens
    assert canary.seconds >= 0
    assert rig.stack.store.get(job_id) == before
    assert rig.runner.look() == 0
    assert rig.queue.waiting == []


@pytest.mark.parametrize(
    "changed",
    [{"shadow": 0}, {"shadow": 0, "rollout": ""}],
    ids=["not meant for it", "not of the rollout"],
)
def test_other_jobs_are_not_offered(make_rig: Callable[..., Rig], changed: dict[str, Any]) -> None:
    """What the record does not say is not done."""
    rig = make_rig()
    rig.job(**changed)
    assert rig.queue.waiting == []


@pytest.mark.parametrize(
    "changed", [{"shadow": 3}, {"rollout": "cd" * 8}], ids=["another version", "another rollout"]
)
def test_records_that_say_something_else_are_passed_over(
    make_rig: Callable[..., Rig], changed: dict[str, Any]
) -> None:
    """Whoever submits can write the record, and the list's name alone proves nothing."""
    rig = make_rig()
    rig.job(**changed)
    assert len(rig.queue.waiting) == 1
    asked = len(rig.stack.engine.requests)
    assert rig.runner.look() == 0
    assert (rig.queue.waiting, rig.queue.written) == ([], [])
    assert len(rig.stack.engine.requests) == asked


@pytest.mark.parametrize(
    "job_id", ["acme." + "0" * 32, "x", "globex." + "0" * 32, "acme.planted\x1b"]
)
def test_ids_that_lead_nowhere_are_passed_over(make_rig: Callable[..., Rig], job_id: str) -> None:
    """Records expire, and what is in the list need not be an id."""
    rig = make_rig()
    rig.job()
    rig.queue.waiting.append(job_id)
    assert rig.runner.look() == 1


def test_jobs_that_failed_are_not_offered(make_rig: Callable[..., Rig]) -> None:
    """There is nothing to set beside the canary's answer."""

    def answer(request: GenerationRequest) -> str:
        raise RuntimeError("made to fail")

    rig = make_rig(FakeEngine(answer=answer))
    job_id = rig.job()
    assert rig.stack.store.get(job_id).state is JobState.FAILED
    assert rig.queue.waiting == []


def test_a_busy_worker_takes_none(make_rig: Callable[..., Rig]) -> None:
    """Jobs come first; what waits, waits."""
    rig = make_rig()
    job_id = rig.job()
    rig.busy[0] = True
    assert rig.runner.look() == 0
    assert rig.queue.waiting == [job_id]
    rig.busy[0] = False
    assert rig.runner.look() == 1


def test_a_shadow_makes_room_and_waits_again(make_rig: Callable[..., Rig]) -> None:
    """A job that wants the row has it at the next step; the shadow is the next to be tried."""
    rig = make_rig(FakeEngine(delay_s=0.2))
    first, second = rig.job("one"), rig.job("two")
    asked = iter([False, False, False, False, True, True, True, True])
    runner = rig.runner
    runner._busy = lambda: next(asked, True)
    assert runner.look() == 0
    assert rig.queue.written == []
    assert rig.queue.waiting == [second, first]


def test_a_canary_that_crashes_is_written_down(make_rig: Callable[..., Rig]) -> None:
    """That is what people look at a shadow for; the worker goes on."""
    rig = make_rig()
    rig.job("one"), rig.job("two")
    calls: list[GenerationRequest] = []

    def answer(request: GenerationRequest) -> str:
        calls.append(request)
        if len(calls) == 1:
            raise RuntimeError("made to fail")
        return "fine"

    rig.stack.engine._answer = answer
    assert rig.runner.look() == 2
    assert [(canary.error, canary.text) for _, _, canary in rig.queue.written] == [
        ("internal_error", ""),
        ("", "fine"),
    ]


def test_variables_that_the_canary_does_not_take_are_an_error_of_its(
    make_rig: Callable[..., Rig],
) -> None:
    """It may use one that the stable version has not."""
    rig = make_rig(
        messages=[{"role": "user", "content": "{{ other }}"}],
        input={"schema": {"type": "object", "properties": {"other": {}}, "required": ["other"]}},
        samples=[],
    )
    rig.job()
    assert rig.runner.look() == 1
    assert rig.queue.written[0][2].error == "invalid_input"


def test_a_redis_that_is_away_is_the_threads_business(make_rig: Callable[..., Rig]) -> None:
    """It is logged there and tried again; one tenant's refusal ends nothing."""
    rig = make_rig()
    rig.queue.trouble = RedisUnreachable("away")
    with pytest.raises(RedisUnreachable):
        rig.runner.look()
    rig.queue.trouble = RedisRefused("no permission")
    assert rig.runner.look() == 0


def test_an_offer_that_fails_loses_no_result(make_rig: Callable[..., Rig]) -> None:
    """The job has ended; a sample less."""
    rig = make_rig()

    def offer(_job: Job) -> None:
        raise RedisUnreachable("away")

    rig.stack.runner._shadow = offer
    job_id = rig.job()
    assert rig.stack.store.get(job_id).state is JobState.SUCCEEDED
