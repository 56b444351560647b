"""Jobs whose message is lost are rung for again, by one worker, with bounded work."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

import worker.janitor
from contract import keys
from contract.celery_app import make_celery, ring
from contract.doorbell import made
from contract.errors import PrefillqError, RedisFull, RedisRefused, RedisUnreachable
from contract.ids import new_job_id
from contract.job_store import Claimed, Doorbell, JobStore, Refused, Submission, TenantLimits
from contract.records import RedisJobStore
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import Job, JobState, Result, VersionRef
from tests.support.record_rig import redis_rig
from worker.doorbell import job_in
from worker.janitor import LIMIT, Janitor

QUEUE = keys.queue("acme", "triage", "a" * 64)
LEASE_S = 10.0
OVERDUE_S = LEASE_S + 1
SWEEPS = 20


@dataclass(kw_only=True)
class Rig:
    """A janitor that trusts leases, and queues that nobody consumes. `client` is the test's own."""

    client: Client
    worker_client: Client
    worker_settings: Settings
    open_store: Callable[[Settings], JobStore]

    def __post_init__(self) -> None:
        self.now = 0.0  # of the janitors' clock; the server's is `advance`
        self.settings = self.worker_settings.model_copy(
            update={"lease_s": LEASE_S, "default_deadline_s": 1e5, "max_attempts": 99}
        )
        self.store = self.open_store(self.settings)
        self.advance = redis_rig(self.client, self.settings).advance
        self.janitor = self.make_janitor("w1")
        self.now += LEASE_S
        self.client.sadd(keys.TENANTS, "acme")

    def make_janitor(self, worker_id: str) -> Janitor:
        return Janitor(
            client=self.worker_client,
            settings=self.settings,
            store=self.store,
            worker_id=worker_id,
            clock=lambda: self.now,
        )

    def job(self, tenant: str = "acme") -> Job:
        ref = VersionRef(tenant=tenant, template="triage", version=1, digest="d" * 64)
        queue = keys.queue(tenant, "triage", "a" * 64)
        return Job(id=new_job_id(tenant), ref=ref, queue=queue, variables={})

    def submit(self, tenant: str = "acme", **terms: Any) -> str:
        job = self.job(tenant)
        self.store.submit(job, input_digest="x", **terms)
        return job.id

    def claim(self, job_id: str, lease_s: float = LEASE_S) -> Claimed:
        claim = self.store.claim(job_id, "w0", lease_s)
        assert isinstance(claim, Claimed)
        return claim

    def limit(self, **most: int) -> None:
        """As an operator does."""
        RedisJobStore(self.client, self.settings).set_limits("acme", TenantLimits(**most))

    def fail(self, job_id: str, *, delay_s: float = 1.0) -> None:
        """One attempt that fails; the next may begin in a second."""
        job = self.claim(job_id).job
        failed = Result(job_id=job_id, ref=job.ref, status=JobState.FAILED, attempt=job.attempt)
        assert self.store.retry(failed, job.fence, delay_s) is JobState.QUEUED

    def sweep(self) -> int:
        self.client.delete(keys.JANITOR)
        return self.janitor.sweep()

    def line(self, queue: str = QUEUE) -> list[str | None]:
        """Which jobs the queue rings for, the next one first; None is no doorbell."""
        entries: Any = self.client.lrange(keys.messages(queue), 0, -1)
        return [job_in(entry, queue) for entry in reversed(entries)]


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


# --- who is rung for


def test_running_job_whose_lease_ran_out_is_rung_for(rig: Rig) -> None:
    """Case Q1, and a message that came back too early: the record alone brings the job back."""
    job_id = rig.submit()
    rig.claim(job_id)
    rig.advance(OVERDUE_S)
    assert rig.sweep() == 1
    assert rig.line() == [job_id]


def test_jobs_of_a_dead_worker_do_not_wait_for_a_backlog(rig: Rig) -> None:
    """All are rung for in one sweep, whatever the next message is: the longest overdue next."""
    dead = [rig.submit() for _ in range(3)]
    rig.client.lpush(keys.messages(QUEUE), b"another job's")
    for job_id in dead:
        rig.claim(job_id)
    rig.advance(OVERDUE_S)
    assert rig.sweep() == 3
    assert rig.line() == [*dead, None]


def test_job_that_failed_and_is_due_again_does_not_wait_for_a_backlog(rig: Rig) -> None:
    """Its message was used up by the attempt that failed."""
    job_id = rig.submit()
    rig.client.lpush(keys.messages(QUEUE), b"another job's")
    rig.fail(job_id)
    assert rig.sweep() == 0, "not before its time"
    rig.advance(2)
    assert rig.sweep() == 1
    assert rig.line() == [job_id, None]


def test_job_that_is_due_again_does_not_wait_for_a_backlog_to_be_looked_at(rig: Rig) -> None:
    """Two thousand jobs have been overdue for longer, a sweep looks at few of them."""
    job_id = rig.submit()
    backlog = [Submission(job=rig.job(), input_digest="x") for _ in range(2000)]
    rig.store.submit_many(backlog)
    rig.client.zadd(keys.queued("acme"), dict.fromkeys((each.job.id for each in backlog), 0))
    rig.client.lpush(keys.messages(QUEUE), b"another job's")
    rig.fail(job_id, delay_s=0.001)
    rig.sweep()
    rig.sweep()
    assert rig.line() == [job_id, None]


def test_running_job_under_a_lease_is_left_alone(rig: Rig) -> None:
    """Nobody rings for a job that its worker holds."""
    rig.claim(rig.submit(), lease_s=60.0)
    rig.advance(OVERDUE_S)
    assert rig.sweep() == 0


def test_queued_job_without_a_message_is_rung_for(rig: Rig) -> None:
    """Case Q2: a message in no key; the queue is empty and the record is old."""
    job_id = rig.submit()
    rig.advance(OVERDUE_S)
    assert rig.sweep() == 1
    assert rig.line() == [job_id]


def test_queued_job_in_a_queue_with_messages_waits_for_its_turn(rig: Rig) -> None:
    """A backlog is not rung for: each of its jobs has a message of its own."""
    rig.submit()
    rig.client.lpush(keys.messages(QUEUE), b"message")
    rig.advance(OVERDUE_S)
    assert rig.sweep() == 0


def test_message_lost_behind_a_backlog_is_found_by_the_next_in_line(rig: Rig) -> None:
    """The queue never runs empty, but its next message is of a job that came later."""
    lost = rig.submit()
    later = _shifted(lost, 5000)
    app = make_celery(rig.settings)
    ring(app, QUEUE, later)
    app.close()
    rig.advance(OVERDUE_S)
    assert rig.sweep() == 1
    assert rig.line() == [lost, later]


def test_next_message_of_an_earlier_job_says_nothing(rig: Rig) -> None:
    """The job's own message may stand behind it."""
    job_id = rig.submit()
    app = make_celery(rig.settings)
    ring(app, QUEUE, _shifted(job_id, -5000))
    app.close()
    rig.advance(OVERDUE_S)
    assert rig.sweep() == 0


def test_a_message_longer_than_ours_is_not_read(rig: Rig) -> None:
    """It might be a doorbell of a later job; what a tenant writes has any length."""
    message = made(_shifted(rig.submit(), 5000), QUEUE)
    rig.client.lpush(keys.messages(QUEUE), json.dumps(message | {"more": "x" * 5000}))
    rig.advance(OVERDUE_S)
    assert len(rig.line()) == 1
    assert rig.line() != [None]
    assert rig.sweep() == 0


def _shifted(job_id: str, ms: int) -> str:
    """The id of a job that was submitted so much later."""
    return f"acme.{int(job_id[-32:-20], 16) + ms:012x}{'0' * 20}"


def test_ended_jobs_are_not_rung_for(rig: Rig) -> None:
    """A cancelled job is in no index."""
    rig.store.cancel(rig.submit())
    rig.advance(OVERDUE_S)
    assert rig.sweep() == 0


# --- a queue that nobody consumes


def _dead_worker(rig: Rig, jobs: Sequence[str]) -> None:
    for job_id in jobs:
        rig.claim(job_id)


def _failed(rig: Rig, jobs: Sequence[str]) -> None:
    for job_id in jobs:
        rig.fail(job_id)


def _held(rig: Rig, jobs: Sequence[str]) -> None:
    rig.limit(max_running=0)
    for job_id in jobs:
        assert isinstance(rig.store.claim(job_id, "w0", LEASE_S), Refused)
    rig.limit()


@pytest.mark.parametrize("wait", [_dead_worker, _failed, _held])
@pytest.mark.parametrize("step_s", [OVERDUE_S, 0.0])
def test_a_job_has_one_ring_however_long_nobody_comes(
    rig: Rig, wait: Callable[[Rig, Sequence[str]], None], step_s: float
) -> None:
    """The queue holds no more messages than jobs; a ring that is lost is made up for."""
    jobs = [rig.submit() for _ in range(5)]
    wait(rig, jobs)
    rig.advance(OVERDUE_S)
    for _ in range(SWEEPS):
        rig.sweep()
        rig.advance(step_s)
    assert sorted(map(str, rig.line())) == sorted(jobs)
    rig.client.delete(keys.messages(QUEUE))
    rig.advance(OVERDUE_S)
    rig.sweep()
    assert sorted(map(str, rig.line())) == sorted(jobs)


def test_a_long_queue_takes_no_more_rings_than_there_are_jobs(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring further back than is looked for may be there: nobody counts on it to be the first."""
    monkeypatch.setattr("worker.ringing.WINDOW", 3)
    jobs = [rig.submit() for _ in range(10)]
    _failed(rig, jobs)
    for _ in range(SWEEPS):
        rig.advance(OVERDUE_S)
        rig.sweep()
    assert len(rig.line()) <= 3 * len(jobs)
    before = len(rig.line())
    rig.advance(OVERDUE_S)
    rig.sweep()
    assert len(rig.line()) == before


def test_jobs_without_room_are_not_rung_for(rig: Rig) -> None:
    """The end of another does; until then each ring would be one more refused claim."""
    rig.limit(max_running=1)
    rig.claim(rig.submit(), lease_s=1000.0)
    for _ in range(3):
        assert isinstance(rig.store.claim(rig.submit(), "w0", LEASE_S), Refused)
    for _ in range(3):
        rig.advance(OVERDUE_S)
        assert rig.sweep() == 0
    rig.limit(max_running=3)
    assert rig.sweep() == 2


def test_what_nobody_will_do_ends_and_counts_no_more(rig: Rig) -> None:
    """Past its deadline, in a queue without workers: there is room for others then."""
    rig.limit(max_queued=3)
    late = [rig.submit(deadline_s=5.0) for _ in range(3)]
    rig.fail(late[0])
    rig.advance(OVERDUE_S)
    assert rig.sweep() == 0
    for index in (keys.queued("acme"), keys.retries("acme"), keys.waiting("acme", "triage")):
        assert rig.client.zcard(index) == 0
    rig.submit()
    assert set(rig.store.states(late)) == {JobState.EXPIRED}


def test_a_dead_workers_job_waits_again_when_nobody_comes(rig: Rig) -> None:
    """It takes no running job's place any more; its attempt is counted and its fence is old."""
    rig.limit(max_running=1)
    job_id, other = rig.submit(), rig.submit()
    old = rig.claim(job_id)
    for _ in range(2):
        rig.advance(OVERDUE_S)
        rig.sweep()
    assert rig.store.states([job_id]) == [JobState.QUEUED]
    rig.claim(other)
    assert rig.line().count(job_id) == 1
    rig.limit()
    assert rig.store.renew(job_id, old.job.fence, LEASE_S) == "lost"
    assert rig.claim(job_id).job.attempt == 2


# --- outages


@pytest.mark.parametrize("error", [RedisUnreachable, RedisRefused, RedisFull])
def test_after_an_outage_leases_have_time_to_be_renewed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: type[PrefillqError]
) -> None:
    """While Redis was away or full nobody could renew: a lease that ran out says nothing then.

    A queued job has no lease, and is rung for at once.
    """
    running, queued = rig.submit(), rig.submit()
    rig.claim(running)
    rig.advance(OVERDUE_S)
    with monkeypatch.context() as away:
        away.setattr(rig.store, "overdue", _raises(error("Redis is away")))
        away.setattr(rig.worker_client, "ping", _raises(ConnectionError("away")))
        # A refusal is this tenant's alone; the others are swept.
        with pytest.raises(error) if error is RedisUnreachable else nullcontext():
            rig.sweep()
    assert (rig.sweep(), rig.line()) == (1, [queued])
    rig.now += LEASE_S
    assert (rig.sweep(), rig.line()) == (1, [running, queued])


@pytest.mark.parametrize("error", [RedisUnreachable, RedisRefused])
def test_one_tenants_trouble_is_no_outage(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: type[PrefillqError]
) -> None:
    """A call took too long, but Redis answers: the others are swept, and their leases trusted."""
    rig.client.sadd(keys.TENANTS, "aaa")
    job_id = rig.submit()
    rig.claim(job_id)
    rig.advance(OVERDUE_S)
    overdue = rig.store.overdue

    def fails_for_one(tenant: str, **terms: Any) -> list[Doorbell]:
        if tenant == "aaa":
            raise error("an answer took too long")
        return overdue(tenant, **terms)

    monkeypatch.setattr(rig.store, "overdue", fails_for_one)
    assert (rig.sweep(), rig.line()) == (1, [job_id])


def test_a_worker_trusts_leases_once_it_has_watched_for_one(rig: Rig) -> None:
    """It may have been started just after an outage; or it stood still, and nobody renewed."""
    job_id = rig.submit()
    rig.claim(job_id)
    rig.advance(OVERDUE_S)
    rig.janitor = rig.make_janitor("new")
    assert rig.sweep() == 0
    rig.now += LEASE_S
    rig.now += 2 * LEASE_S
    assert rig.sweep() == 0, "it stood still"
    rig.now += LEASE_S
    assert (rig.sweep(), rig.line()) == (1, [job_id])


def _raises(error: Exception) -> Any:
    def act(*_args: object, **_kwargs: object) -> Any:
        raise error

    return act


# --- one at a time, bounded


def test_one_worker_sweeps_at_a_time(rig: Rig) -> None:
    """Two janitors within an interval: the second does nothing."""
    rig.submit()
    rig.advance(OVERDUE_S)
    other = rig.make_janitor("w2")
    assert rig.janitor.sweep() == 1
    left_ms: Any = rig.client.pttl(keys.JANITOR)
    assert 0 < left_ms <= rig.janitor.interval_s * 800
    rig.client.delete(keys.messages(QUEUE))
    rig.advance(OVERDUE_S)
    assert other.sweep() == 0
    rig.client.delete(keys.JANITOR)
    assert other.sweep() == 1


def test_a_long_sweep_keeps_its_turn(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long all tenants take together, no other sweeps beside it."""
    rig.client.sadd(keys.TENANTS, *(f"t{number}" for number in range(5)))
    other = rig.make_janitor("w2")
    left_ms: list[int] = []

    def slow(_tenant: str, **_terms: Any) -> list[Doorbell]:
        left: Any = rig.client.pttl(keys.JANITOR)
        left_ms.append(left)
        rig.client.pexpire(keys.JANITOR, 2000)  # so much time has passed since
        rig.now += LEASE_S - 2
        assert other._sweep() == 0
        return []

    monkeypatch.setattr(rig.store, "overdue", slow)
    rig.sweep()
    assert len(left_ms) == rig.client.scard(keys.TENANTS)
    assert min(left_ms) > 5000


def test_a_sweep_that_lost_its_turn_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tenant took longer than the turn lasts, and another worker sweeps by now."""
    rig.client.sadd(keys.TENANTS, "globex")
    looked: list[str] = []

    def slow(tenant: str, **_terms: Any) -> list[Doorbell]:
        looked.append(tenant)
        rig.client.set(keys.JANITOR, "w2", px=60000)
        rig.now += LEASE_S
        return []

    monkeypatch.setattr(rig.store, "overdue", slow)
    rig.sweep()
    assert looked == ["acme"]
    left_ms: Any = rig.client.pttl(keys.JANITOR)
    assert (rig.client.get(keys.JANITOR), left_ms > 50000) == (b"w2", True)


def test_a_sweep_is_bounded(rig: Rig) -> None:
    """However many jobs are overdue, a sweep rings for at most LIMIT of each kind."""
    for _ in range(LIMIT + 10):
        rig.submit()
    rig.advance(OVERDUE_S)
    assert rig.sweep() == LIMIT


def test_tenants_take_turns_where_a_sweep_is_full(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that one sweep did not come to are the first of the next."""
    tenants = ["acme", "broken", "globex"]
    rig.client.sadd(keys.TENANTS, *tenants)
    jobs = {tenant: rig.submit(tenant) for tenant in tenants}
    monkeypatch.setattr(worker.janitor, "SWEEP_LIMIT", 1)
    rung = []
    for _ in range(4):
        for tenant, job_id in jobs.items():
            rig.client.zadd(keys.queued(tenant), {job_id: 0})  # overdue each time
        rig.sweep()
        rung.append([tenant for tenant in tenants if rig.line(QUEUE.replace("acme", tenant))])
    assert rung == [tenants[:1], tenants[:2], tenants, tenants]


# --- what producers wrote


def test_a_damaged_record_hides_no_other_and_leaves_the_index(rig: Rig) -> None:
    """A record that is gone or is none of ours is dropped from the index; the rest is rung for."""
    gone, other_type, long, timeless, unended, whole = (rig.submit() for _ in range(6))
    rig.advance(OVERDUE_S)
    rig.client.delete(keys.job(gone), keys.job(other_type))
    rig.client.set(keys.job(other_type), "x")
    rig.client.hset(keys.job(long), "queue", QUEUE + "a" * 1000)
    rig.client.hset(keys.job(timeless), "deadline_at", "nan")
    rig.client.hset(keys.job(unended), mapping={"state": "running", "lease_until": "x"})
    rig.client.zadd(keys.running("acme"), {unended: 0})
    rig.client.zadd(keys.retries("acme"), {gone: 0})
    rig.client.zadd(keys.held("acme"), {gone: 0})
    assert rig.sweep() == 1
    assert rig.line() == [whole]
    assert rig.client.zrange(keys.queued("acme"), 0, -1) == [whole.encode()]
    for index in (keys.running("acme"), keys.retries("acme"), keys.held("acme")):
        assert rig.client.zcard(index) == 0


def test_an_attempt_that_has_begun_waits_for_none(rig: Rig) -> None:
    """What is left of it where the janitor looks first is taken out."""
    job_id = rig.submit()
    rig.fail(job_id)
    rig.advance(2)
    rig.claim(job_id, lease_s=60.0)
    assert rig.client.zcard(keys.retries("acme")) == 1
    assert rig.sweep() == 0
    assert rig.client.zcard(keys.retries("acme")) == 0
