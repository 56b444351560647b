"""Jobs whose message is lost are rung for again, by one worker, with bounded work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from contract import keys
from contract.celery_app import make_celery, ring
from contract.errors import PrefillqError, RedisRefused, RedisUnreachable
from contract.ids import new_job_id
from contract.job_store import Claimed, JobStore
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import Job, JobState, Result, VersionRef
from worker.janitor import LIMIT, Janitor

QUEUE = keys.queue("acme", "triage", "a" * 64)


@dataclass(kw_only=True)
class Rig:
    """A janitor that writes down what it rings. `client` is the test's own."""

    client: Client
    worker_client: Client
    worker_settings: Settings
    open_store: Callable[[Settings], JobStore]

    def __post_init__(self) -> None:
        self.rung: list[tuple[str, str]] = []
        self.now = 0.0
        # A lease of a few milliseconds: what is older than it is overdue at once.
        self.settings = self.worker_settings.model_copy(update={"lease_s": 0.02})
        self.store = self.open_store(self.settings)
        self.janitor = self.make_janitor("w1")
        self.client.sadd(keys.TENANTS, "acme")

    def make_janitor(self, worker_id: str) -> Janitor:
        return Janitor(
            client=self.worker_client,
            settings=self.settings,
            store=self.store,
            worker_id=worker_id,
            ring=lambda queue, job_id: self.rung.append((queue, job_id)),
            clock=lambda: self.now,
        )

    def submit(self) -> str:
        ref = VersionRef(tenant="acme", template="triage", version=1, digest="d" * 64)
        job = Job(id=new_job_id("acme"), ref=ref, queue=QUEUE, variables={})
        self.store.submit(job, input_digest="x")
        return job.id

    def sweep(self) -> int:
        self.client.delete(keys.JANITOR)
        return self.janitor.sweep()


@pytest.fixture
def rig(
    client: Client,
    worker_client: Client,
    worker_settings: Settings,
    open_store: Callable[[Settings], JobStore],
) -> Rig:
    return Rig(
        client=client,
        worker_client=worker_client,
        worker_settings=worker_settings,
        open_store=open_store,
    )


def _until_overdue() -> None:
    import time

    time.sleep(0.03)  # the server's clock decides; it cannot be set


def test_running_job_whose_lease_ran_out_is_rung_for(rig: Rig) -> None:
    """Case Q1, and a message that came back too early: the record alone brings the job back."""
    job_id = rig.submit()
    rig.store.claim(job_id, "dead", 0.02)
    _until_overdue()
    assert rig.sweep() == 1
    assert rig.rung == [(QUEUE, job_id)]


def test_jobs_of_a_dead_worker_do_not_wait_for_a_backlog(rig: Rig) -> None:
    """All are rung for in one sweep, whatever the next message is: the longest overdue last, since
    a ring goes before those that are there.
    """
    dead = [rig.submit() for _ in range(3)]
    rig.client.lpush(keys.messages(QUEUE), b"another job's")
    for job_id in dead:
        rig.store.claim(job_id, "dead", 0.02)
        _until_overdue()
    assert rig.sweep() == 3
    assert rig.rung == [(QUEUE, job_id) for job_id in reversed(dead)]


def test_job_that_failed_and_is_due_again_does_not_wait_for_a_backlog(rig: Rig) -> None:
    """Its message was used up by the attempt that failed."""
    job_id = rig.submit()
    rig.client.lpush(keys.messages(QUEUE), b"another job's")
    claim = rig.store.claim(job_id, "w1", 60.0)
    assert isinstance(claim, Claimed)
    failed = Result(job_id=job_id, ref=claim.job.ref, status=JobState.FAILED, attempt=1)
    assert rig.store.retry(failed, claim.job.fence, 0.01) is JobState.QUEUED
    _until_overdue()
    assert rig.sweep() == 1
    assert rig.rung == [(QUEUE, job_id)]


def test_running_job_under_a_lease_is_left_alone(rig: Rig) -> None:
    """Nobody rings for a job that its worker holds."""
    rig.store.claim(rig.submit(), "alive", 60.0)
    _until_overdue()
    assert rig.sweep() == 0


@pytest.mark.parametrize("error", [RedisUnreachable, RedisRefused])
def test_after_an_outage_leases_have_time_to_be_renewed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: type[PrefillqError]
) -> None:
    """While Redis was away or full nobody could renew: a lease that ran out says nothing then.

    A queued job has no lease, and is rung for at once.
    """
    running, queued = rig.submit(), rig.submit()
    rig.store.claim(running, "alive", 0.02)
    _until_overdue()
    with monkeypatch.context() as away:
        away.setattr(rig.store, "overdue", _raises(error("Redis is away")))
        # A refusal is this tenant's alone; the others are swept.
        with pytest.raises(error) if error is RedisUnreachable else nullcontext():
            rig.sweep()
    assert (rig.sweep(), rig.rung) == (1, [(QUEUE, queued)])
    rig.now += rig.settings.lease_s
    rig.client.zrem(keys.queued("acme"), queued)
    assert (rig.sweep(), rig.rung[1:]) == (1, [(QUEUE, running)])


def _raises(error: Exception) -> Any:
    def act(*_args: object, **_kwargs: object) -> Any:
        raise error

    return act


def test_queued_job_without_a_message_is_rung_for(rig: Rig) -> None:
    """Case Q2: a message in no key; the queue is empty and the record is old."""
    job_id = rig.submit()
    _until_overdue()
    assert rig.sweep() == 1
    assert rig.rung == [(QUEUE, job_id)]


def test_queued_job_in_a_queue_with_messages_waits_for_its_turn(rig: Rig) -> None:
    """A backlog is not rung for: each of its jobs has a message of its own."""
    rig.submit()
    rig.client.lpush(keys.messages(QUEUE), b"message")
    _until_overdue()
    assert rig.sweep() == 0


def test_message_lost_behind_a_backlog_is_found_by_the_next_in_line(rig: Rig) -> None:
    """The queue never runs empty, but its next message is of a job that came later."""
    lost = rig.submit()
    later = f"acme.{int(lost[-32:-20], 16) + 5000:012x}{'0' * 20}"
    app = make_celery(rig.settings)
    ring(app, QUEUE, later)
    app.close()
    _until_overdue()
    assert rig.sweep() == 1
    assert rig.rung == [(QUEUE, lost)]


def test_next_message_of_an_earlier_job_says_nothing(rig: Rig) -> None:
    """The job's own message may stand behind it."""
    job_id = rig.submit()
    earlier = f"acme.{int(job_id[-32:-20], 16) - 5000:012x}{'0' * 20}"
    app = make_celery(rig.settings)
    ring(app, QUEUE, earlier)
    app.close()
    _until_overdue()
    assert rig.sweep() == 0


def test_ended_jobs_are_not_rung_for(rig: Rig) -> None:
    """A cancelled job is in no index."""
    rig.store.cancel(rig.submit())
    _until_overdue()
    assert rig.sweep() == 0


def test_one_worker_sweeps_at_a_time(rig: Rig, client: Client, settings: Settings) -> None:
    """Two janitors within an interval: the second does nothing."""
    rig.submit()
    _until_overdue()
    other = rig.make_janitor("w2")
    slow = settings.model_copy(update={"lease_s": 60.0})
    client.set(
        keys.JANITOR,
        "w1",
        px=round(
            Janitor(
                client=client, settings=slow, store=rig.store, worker_id="w1", ring=print
            ).interval_s
            * 800
        ),
    )
    assert other.sweep() == 0
    assert rig.sweep() == 1


def test_a_sweep_is_bounded(rig: Rig) -> None:
    """However many jobs are overdue, a sweep rings for at most LIMIT of each kind."""
    for _ in range(LIMIT + 10):
        rig.submit()
    _until_overdue()
    assert rig.sweep() == LIMIT


def test_a_damaged_record_hides_no_other_and_leaves_the_index(rig: Rig) -> None:
    """A record that is gone or is no hash is dropped from the index; the rest is rung for."""
    gone, other_type, whole = rig.submit(), rig.submit(), rig.submit()
    rig.client.delete(keys.job(gone), keys.job(other_type))
    rig.client.set(keys.job(other_type), "x")
    _until_overdue()
    assert rig.sweep() == 1
    assert rig.rung == [(QUEUE, whole)]
    assert rig.client.zrange(keys.queued("acme"), 0, -1) == [whole.encode()]
