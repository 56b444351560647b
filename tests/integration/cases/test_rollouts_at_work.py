"""Rollouts with real worker processes and jobs: led in, stopped, taken back, and never stuck.

What the model would answer does not matter here, so the workers are whole but for their model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from contract import keys
from contract.model_folder import ModelFolder
from contract.records import RedisJobStore
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import JobState
from contract.worker_reports import list_workers
from producer.client import Producer
from templates.registry import Registry
from templates.rollouts.control import Rollouts
from templates.rollouts.outcomes import describe
from templates.rollouts.plain import to_text
from templates.rollouts.rollout import Limits, Outcome, Phase, Plan, Rollout
from templates.version import PublishedVersion
from tests.support.fakes import FakeWorker, StartFake
from tests.support.load import under_load
from tests.support.templates import RULES, make_spec, publish
from tests.support.waiting import until

# Two cores run workers, Redis and the test: what is fast or slow here says little.
LIMITS = Limits(min_samples=3, latency=20.0, fallbacks=0.8)
Publish = Callable[..., PublishedVersion]


def plan(*steps: int, bake_s: float = 1.0, limits: Limits = LIMITS, **changes: Any) -> Plan:
    return Plan(
        label="production", stable=1, canary=2, steps=steps, bake_s=bake_s, limits=limits, **changes
    )


@pytest.fixture
def rollouts(registry: Registry) -> Rollouts:
    return Rollouts(registry)


@pytest.fixture
def start_worker(start_fake: StartFake, worker_settings: Settings) -> Callable[..., FakeWorker]:
    """A worker that logs in as one."""

    def start(*options: str, ready: bool = True) -> FakeWorker:
        return start_fake(*options, ready=ready, settings=worker_settings)

    return start


@pytest.fixture
def versions(publish_template: Publish) -> list[PublishedVersion]:
    """Version 1, and a version 2 whose prompts begin with "Version B"."""
    return [publish_template(), publish_template(rules=f"Version B. {RULES}")]


def ended(rollouts: Rollouts, timeout: float = 40.0) -> tuple[str, str]:
    """Wait for the rollout's end: how it ended, and why."""
    until(lambda: rollouts.get("acme", "notes") is None, timeout, what="the rollout ends")
    last = rollouts.journal("acme", "notes")[-1]
    return last.action, last.why


def phase(rollouts: Rollouts) -> Phase | None:
    rollout = rollouts.get("acme", "notes")
    return None if rollout is None else rollout.phase


def active(rollouts: Rollouts) -> Rollout:
    rollout = rollouts.get("acme", "notes")
    assert rollout is not None
    return rollout


def findings(rollouts: Rollouts) -> dict[str, Outcome]:
    return {finding.gate: finding.outcome for finding in active(rollouts).findings}


def test_a_good_version_takes_over_by_itself(
    rollouts: Rollouts,
    registry: Registry,
    settings: Settings,
    client: Client,
    producer: Producer,
    start_worker: Callable[..., FakeWorker],
    versions: list[PublishedVersion],
) -> None:
    """From 1 % over a half to all, under load, on two workers; no job fails, every move is told."""
    pair = [start_worker(), start_worker()]
    began = rollouts.start("acme", "notes", plan(100, 5000, 10_000))
    with under_load(producer, per_s=120) as load:
        assert ended(rollouts)[0] == "promote"
        rows = describe(client, settings, "acme", "notes", began)
    assert registry.labels("acme", "notes") == {"production": 2}
    moves = [(entry.action, entry.was, entry.now) for entry in rollouts.journal("acme", "notes")]
    assert moves[3:] == [
        ("phase", "gates", "warming"),
        ("step", "0 %", "1 %"),
        ("phase", "baking", "warming"),
        ("step", "1 %", "50 %"),
        ("phase", "baking", "warming"),
        ("step", "50 %", "100 %"),
        ("promote", "production=1", "production=2"),
    ]
    load.wait_all()
    states = {handle.view().state for handle in load.handles}
    assert states == {JobState.SUCCEEDED}
    assert load.handles[-1].view().job.ref == versions[1].ref
    assert [(row.role, row.version, row.digest) for row in rows] == [
        ("stable", 1, versions[0].ref.digest),
        ("canary", 2, versions[1].ref.digest),
    ]
    assert all(row.summary.jobs >= 3 and row.summary.failed == 0 for row in rows)
    told = [line for worker in pair for line in worker.lines("rollout_moved")]
    assert sorted(line["now"] for line in told) == [*["baking"] * 3, "promoted", *["warming"] * 3]
    assert {line["canary_digest"] for line in told} == {versions[1].ref.digest}
    workers = {report["id"] for report in list_workers(client, settings)}
    assert {entry.who for entry in rollouts.journal("acme", "notes")[3:]} <= workers


def test_a_version_that_misses_what_it_expects_gets_no_job(
    rollouts: Rollouts,
    registry: Registry,
    producer: Producer,
    start_worker: Callable[..., FakeWorker],
    publish_template: Publish,
) -> None:
    """It is stopped at its gates: the label stays, and nobody saw the new version."""
    publish_template()
    samples = [{"input": {"note": "The parcel came."}, "expected": "delivered"}]
    publish_template(rules=f"Version B. {RULES}", samples=samples)
    start_worker("--answer", "garbage")
    with under_load(producer, per_s=20) as load:
        rollouts.start("acme", "notes", plan(10_000))
        how, why = ended(rollouts)
    assert (how, why) == ("abort", "expected: sample 1 does not give the output that it expects")
    assert registry.labels("acme", "notes") == {"production": 1}
    load.wait_all()
    assert set(load.versions()) == {1}


def test_a_version_that_crashes_on_its_sample_gets_no_job(
    rollouts: Rollouts, start_worker: Callable[..., FakeWorker], versions: list[PublishedVersion]
) -> None:
    """The worker that tried it goes on."""
    worker = start_worker("--fail-on", "Version B")
    rollouts.start("acme", "notes", plan(10_000))
    how, why = ended(rollouts)
    assert (how, why) == ("abort", "runs: sample 1: RuntimeError in the worker")
    worker.check_alive()


def test_a_version_that_fails_at_work_is_taken_back_within_its_bake(
    rollouts: Rollouts,
    registry: Registry,
    producer: Producer,
    settings: Settings,
    client: Client,
    start_worker: Callable[..., FakeWorker],
    versions: list[PublishedVersion],
) -> None:
    """Its samples pass, its jobs fail: aborted at once, and all that were given to it end."""
    for _ in range(2):
        start_worker("--fail-match", "Version B.*live")
    rollouts.start("acme", "notes", plan(5000, 10_000, bake_s=30.0))
    with under_load(producer, per_s=60) as load:
        until(lambda: phase(rollouts) is Phase.BAKING, 30, what="it bakes")
        began = time.monotonic()
        how, why = ended(rollouts)
        assert time.monotonic() - began < 30
        time.sleep(0.5)
    assert how == "abort"
    assert why.startswith("failures: failed jobs: canary 100.00%")
    assert registry.labels("acme", "notes") == {"production": 1}
    load.wait_all()
    last = [entry for entry in rollouts.journal("acme", "notes") if entry.action == "abort"]
    by_version = load.versions()
    assert by_version[2] > 3
    failed = {
        handle.view().job.ref.version
        for handle in load.handles
        if handle.view().state is JobState.FAILED
    }
    assert failed == {2}
    assert RedisJobStore(client, settings).pinned("acme", "notes") == {}
    after = [
        handle.view().job.ref.version
        for handle in load.handles
        if handle.view().job.created_at > last[0].at + 0.001
    ]
    assert after
    assert set(after) == {1}


def test_a_rollout_without_traffic_stays_inconclusive(
    rollouts: Rollouts, start_worker: Callable[..., FakeWorker], versions: list[PublishedVersion]
) -> None:
    """Long after its bake: nothing passes for want of jobs, and nothing fails."""
    start_worker()
    rollouts.start("acme", "notes", plan(100, bake_s=0.5))
    until(lambda: phase(rollouts) is Phase.BAKING, 30, what="it bakes")
    time.sleep(5)
    assert findings(rollouts) == dict.fromkeys(
        ("failures", "fallbacks", "latency", "length"), Outcome.INCONCLUSIVE
    )
    assert active(rollouts).step == 0


def test_a_paused_rollout_holds_its_weight(
    rollouts: Rollouts,
    producer: Producer,
    start_worker: Callable[..., FakeWorker],
    versions: list[PublishedVersion],
) -> None:
    """However bad or good: what the gates find is kept for people, who decide."""
    start_worker("--fail-match", "Version B.*live")
    rollouts.start("acme", "notes", plan(5000, bake_s=0.5))
    until(lambda: phase(rollouts) is Phase.BAKING, 30, what="it bakes")
    rollouts.pause("acme", "notes")
    with under_load(producer, per_s=40):
        until(lambda: findings(rollouts).get("failures") is Outcome.FAIL, 30, what="it is seen")
        time.sleep(2.5)
        assert (active(rollouts).paused, active(rollouts).step) == (True, 0)
        rollouts.resume("acme", "notes")
        assert ended(rollouts)[0] == "abort"


def test_a_step_waits_until_the_workers_are_warm(
    rollouts: Rollouts,
    producer: Producer,
    settings: Settings,
    client: Client,
    start_worker: Callable[..., FakeWorker],
    versions: list[PublishedVersion],
) -> None:
    """One of two takes 6 s to prefill: no job has the version before, and none meets it cold."""
    start_worker()
    rollouts.start("acme", "notes", plan(10_000, bake_s=3600.0))
    slow = start_worker("--prefill-s", "6")
    digest = versions[1].ref.digest

    def holding() -> int:
        return sum(
            listed["digest"] == digest and listed["cached"]
            for report in list_workers(client, settings)
            for listed in report["versions"]
        )

    with under_load(producer, per_s=20) as load:
        until(lambda: phase(rollouts) is Phase.BAKING, 40, what="it bakes")
        assert holding() == 2
        until(lambda: load.versions()[2] > 20, 20, what="it gets jobs")
    load.wait_all()
    cold = [
        handle.view().result.cache.reason  # type: ignore[union-attr]
        for handle in load.handles
        if handle.view().job.ref.version == 2
    ]
    assert set(cold) == {""}
    assert slow.lines("version_warmed")


def test_a_conductor_that_is_killed_is_replaced(
    rollouts: Rollouts,
    producer: Producer,
    client: Client,
    start_worker: Callable[..., FakeWorker],
    versions: list[PublishedVersion],
) -> None:
    """kill -9 in the midst of the gates: another begins them anew once the turn has expired."""
    # A sample takes seconds on the first worker, and no time on the second.
    first = start_worker("--seconds-per-token", "5")
    began = rollouts.start("acme", "notes", plan(10_000))
    turn = keys.conductor("acme", began.id)
    holder = until(lambda: client.get(turn), 20, what="a worker takes its turn")
    assert isinstance(holder, bytes)
    assert f"-{first.pid}-".encode() in holder
    start_worker()
    time.sleep(5)  # longer than a lease: it is renewed
    assert client.get(turn) == holder
    first.kill()
    with under_load(producer, per_s=40):
        assert ended(rollouts)[0] == "promote"
    moved_by = {entry.who for entry in rollouts.journal("acme", "notes")[3:]}
    assert holder.decode() not in moved_by


def test_a_version_for_a_model_that_nobody_serves_waits(
    rollouts: Rollouts,
    registry: Registry,
    model: ModelFolder,
    start_worker: Callable[..., FakeWorker],
    publish_template: Publish,
) -> None:
    """Its findings say so; neither a pass nor a fail."""
    publish_template()
    elsewhere = replace(model, model_digest="f" * 64)
    publish(registry, make_spec("notes", rules=f"Version B. {RULES}"), elsewhere)
    start_worker()
    rollouts.start("acme", "notes", plan(10_000))
    until(lambda: active(rollouts).findings, 20, what="a worker says so")
    [finding] = active(rollouts).findings
    assert (finding.gate, finding.outcome) == ("workers", Outcome.INCONCLUSIVE)
    assert "f" * 12 in finding.message
    assert active(rollouts).phase is Phase.GATES


def test_a_retired_version_leaves_the_workers_once_its_jobs_have_ended(
    registry: Registry,
    settings: Settings,
    client: Client,
    producer: Producer,
    start_worker: Callable[..., FakeWorker],
    versions: list[PublishedVersion],
) -> None:
    """A job that is pinned to it keeps it; then it goes, and the report says why."""
    start_worker("--batch", "1")
    producer.submit("acme/notes", {"note": "first"}).result(timeout=20)
    slow = producer.submit("acme/notes", {"note": "work=6"})
    queued = producer.submit("acme/notes", {"note": "waits"})
    registry.set_label("acme", "notes", "production", 2)
    registry.retire("acme", "notes", 1)

    def evictions() -> dict[str, int]:
        [report] = list_workers(client, settings)
        found: dict[str, int] = report["cache"]["evictions"]
        return found

    until(lambda: slow.status() is JobState.RUNNING, 20)
    time.sleep(3)
    assert evictions() == {}
    assert [queued.result(timeout=30).cache.state, slow.result(timeout=5).ref.version] == ["hit", 1]
    until(lambda: evictions() == {"retired": 1}, 20, what="version 1 is dropped")
    [report] = list_workers(client, settings)
    assert versions[0].ref.digest not in {listed["digest"] for listed in report["versions"]}


def test_a_damaged_rollout_keeps_no_other_one_waiting(
    rollouts: Rollouts,
    registry: Registry,
    client: Client,
    producer: Producer,
    start_worker: Callable[..., FakeWorker],
    versions: list[PublishedVersion],
    model: ModelFolder,
) -> None:
    """A tenant's admin can write its keys: text that is none, another type, versions that are not
    there. Other tenants' rollouts go on, and the worker too.
    """
    for name in ("broken", "missing", "other-type"):
        publish(registry, make_spec(name), model)
        client.sadd(keys.rollouts("acme"), name)
    client.set(keys.rollout("acme", "broken"), "{}")
    ghost = Rollout(
        id="f" * 16,
        plan=plan(10_000, bake_s=1.0),
        phase=Phase.BAKING,
        step=0,
        started_at=0.0,
        since=0.0,
    )
    client.set(keys.rollout("acme", "missing"), to_text(ghost))
    client.lpush(keys.rollout("acme", "other-type"), "x")
    client.sadd(keys.TENANTS, "broken")
    client.set(keys.rollouts("broken"), "no set")
    worker = start_worker()
    rollouts.start("acme", "notes", plan(10_000))
    with under_load(producer, per_s=40):
        # Its last step has all jobs: the stable version's are those from before.
        assert ended(rollouts)[0] == "promote"
    worker.check_alive()
    assert client.exists(keys.rollout("acme", "missing"))
