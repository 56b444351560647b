"""A rollout with the real model: its gates run on the engine that answers the jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.model_folder import ModelFolder
from contract.settings import Settings
from contract.types import JobState
from local.workers import WorkerProcess
from producer.client import Producer
from producer.handle import JobHandle
from templates.registry import Registry
from templates.rollouts.control import Rollouts
from templates.rollouts.rollout import Limits, Plan
from tests.support.fakes import log_lines
from tests.support.templates import make_spec, publish
from tests.support.waiting import until

# What is slow on a busy machine is not the version's doing.
LIMITS = Limits(min_samples=3, latency=50.0, fallbacks=0.5)
CHOICES = ("payment", "error", "login")
NOTE = "I was charged twice for my order and want the money back."


def plan(stable: int, canary: int) -> Plan:
    return Plan(
        label="production",
        stable=stable,
        canary=canary,
        steps=(5000,),
        bake_s=1.0,
        limits=LIMITS,
    )


@pytest.mark.model
def test_the_real_model_leads_a_good_version_in_and_keeps_a_wrong_one_out(
    registry: Registry,
    producer: Producer,
    worker_settings: Settings,
    smollm2: ModelFolder,
    tmp_path: Path,
) -> None:
    """Version 2 answers its sample as expected, cached as uncached, and is promoted; version 3
    expects what this model does not say, and no job ever gets it.
    """

    def publish_one(description: str, expected: str | None) -> None:
        samples = [{"input": {"note": NOTE}, "expected": expected}]
        spec = make_spec(output={"choices": CHOICES}, samples=samples, description=description)
        publish(registry, spec, smollm2)

    def submit() -> JobHandle:
        handles.append(producer.submit("acme/notes", {"note": NOTE}))
        handles[-1].result(timeout=30)
        return handles[-1]

    def over() -> bool:
        submit()
        return rollouts.get("acme", "notes") is None

    handles: list[JobHandle] = []
    rollouts, log = Rollouts(registry), tmp_path / "worker.log"
    publish_one("Version 1.", None)
    with WorkerProcess(worker_settings, log_path=log, options=["--model", str(smollm2.path)]):
        right = submit().result().choice
        publish_one("Version 2.", right)
        publish_one("Version 3.", next(choice for choice in CHOICES if choice != right))
        rollouts.start("acme", "notes", plan(1, 2))
        until(over, 60, what="version 2 is promoted")
        assert registry.labels("acme", "notes") == {"production": 2}
        rollouts.start("acme", "notes", plan(2, 3))
        until(over, 60, what="version 3 is refused")
    last = rollouts.journal("acme", "notes")[-1]
    assert (last.action, last.why) == (
        "abort",
        "expected: sample 1 does not give the output that it expects",
    )
    assert registry.labels("acme", "notes") == {"production": 2}
    views = [handle.view() for handle in handles]
    assert {view.state for view in views} == {JobState.SUCCEEDED}
    assert {view.job.ref.version for view in views} == {1, 2}
    assert {view.result.choice for view in views if view.result} == {right}
    assert [line["now"] for line in log_lines(log, "rollout_moved")] == [
        "warming",
        "baking",
        "promoted",
        "aborted",
    ]
