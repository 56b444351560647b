"""The job record: every behaviour holds for the store in Redis and for the one in memory."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from contract import keys, records
from contract.errors import (
    CodecError,
    Conflict,
    InvalidInput,
    NotFound,
    PrefillqError,
    RedisRefused,
)
from contract.ids import new_job_id
from contract.job_checks import MAX_DEADLINE_S
from contract.job_store import Claimed, JobStore, Submission
from contract.records import RedisJobStore
from contract.redis_client import Client, connect
from contract.settings import Settings
from contract.types import Job, JobState, VersionRef
from tests.support.record_rig import REF, Rig, answer, memory_rig, redis_rig
from tests.support.redis_state import out_of_memory


@pytest.fixture
def plain_settings() -> Settings:
    return Settings(result_ttl_s=100.0, default_deadline_s=1000.0, max_result_bytes=4096)


@pytest.fixture(params=["memory", "redis"])
def rig(request: pytest.FixtureRequest, plain_settings: Settings) -> Rig:
    if request.param == "memory":
        return memory_rig(plain_settings)
    in_redis: Rig = request.getfixturevalue("in_redis")
    return in_redis


@pytest.fixture
def in_redis(
    client: Client, rig_settings: Settings, open_store: Callable[[Settings], JobStore]
) -> Rig:
    """The rig of those tests that look into Redis."""
    return redis_rig(client, rig_settings, open_store(rig_settings))


@pytest.fixture
def redis_store(rig_settings: Settings, client: Client) -> RedisJobStore:
    return RedisJobStore(client, rig_settings)


@pytest.fixture
def rig_settings(plain_settings: Settings, settings: Settings) -> Settings:
    return plain_settings.model_copy(update={"redis_url": settings.redis_url})


# --- the way of a job


def test_a_job_goes_from_queued_to_running_to_succeeded(rig: Rig) -> None:
    """The record tells state, worker, times and result at each step."""
    job_id = rig.submit(deadline_s=60)
    queued = rig.store.get(job_id)
    assert (queued.state, queued.worker, queued.result) == (JobState.QUEUED, "", None)
    assert (queued.job.ref, queued.job.variables) == (REF, {"ticket": "refund?"})
    assert queued.job.deadline_at is not None
    assert queued.job.deadline_at - queued.job.created_at == pytest.approx(60)
    rig.advance(5)
    claim = rig.claim(job_id)
    assert (claim.job.attempt, claim.job.fence) == (1, 1)
    assert claim.queued_s == pytest.approx(5, abs=2)
    running = rig.store.get(job_id)
    assert (running.state, running.worker) == (JobState.RUNNING, "w1")
    assert rig.store.commit(answer(claim), claim.job.fence)
    ended = rig.store.get(job_id)
    assert (ended.state, ended.result) == (JobState.SUCCEEDED, answer(claim))
    assert ended.finished_at is not None
    assert rig.refusal(job_id) == "ended"


def test_use_cache_false_is_kept(rig: Rig) -> None:
    """The caller's wish for the plain path reaches the worker."""
    job = Job(id=new_job_id("acme"), ref=REF, variables={}, use_cache=False)
    rig.store.submit(job, input_digest="i")
    assert rig.claim(job.id).job.use_cache is False


def test_only_ends_can_be_committed(rig: Rig) -> None:
    """A result that says `running` is refused, and the job goes on."""
    claim = rig.claim(rig.submit())
    with pytest.raises(InvalidInput):
        rig.store.commit(answer(claim, status=JobState.RUNNING), claim.job.fence)
    assert rig.store.states([claim.job.id]) == [JobState.RUNNING]


def test_a_result_over_the_limit_becomes_a_failure_that_says_so(rig: Rig) -> None:
    """Case Q19: an oversized result ends the job as failed, with size and limit named."""
    claim = rig.claim(rig.submit())
    large = answer(claim, text="x" * 5000, data={"long": "x" * 5000})
    assert rig.store.commit(large, claim.job.fence)
    view = rig.store.get(claim.job.id)
    assert view.state is JobState.FAILED
    assert view.result is not None
    assert (view.result.text, view.result.data) == ("", None)
    assert view.result.error is not None
    assert view.result.error.code == "result_too_large"
    assert "4096" in view.result.error.message


def test_submitting_the_same_record_twice_writes_it_once(rig: Rig) -> None:
    """A client that lost the reply may repeat the call; a claimed job is not queued anew."""
    job = Job(id=new_job_id("acme"), ref=REF, variables={})
    assert rig.store.submit(job, input_digest="i").created
    rig.claim(job.id)
    again = rig.store.submit(job, input_digest="i")
    assert (again.created, again.state) == (True, JobState.RUNNING)


# --- fences and leases


def stale_fence_is_refused(rig: Rig) -> None:
    """Invariant 6: of two claims of one job, only the newer one's result is written."""
    job_id = rig.submit()
    first = rig.claim(job_id, "slow", lease_s=10)
    rig.advance(11)
    second = rig.claim(job_id, "fast", lease_s=10)
    assert second.job.attempt == 2
    assert second.job.fence > first.job.fence
    assert not rig.store.commit(answer(first, text="stale"), first.job.fence)
    assert rig.store.get(job_id).state is JobState.RUNNING
    assert rig.store.commit(answer(second, text="fresh"), second.job.fence)
    assert not rig.store.commit(answer(first, text="stale"), first.job.fence)
    result = rig.store.get(job_id).result
    assert result is not None
    assert result.text == "fresh"


def test_a_stale_fence_commits_nothing(rig: Rig) -> None:
    """Case Q4: a worker whose lease ran out and was taken over cannot write its result."""
    stale_fence_is_refused(rig)


@pytest.mark.unrestricted("an operator's commands stand for the failover")
def test_no_fence_is_given_twice_also_when_redis_forgot_a_claim(
    rig_settings: Settings, client: Client
) -> None:
    """A failover, or the last second of a file: the record is as it was before the claim, and its
    worker still there.
    """
    rig = redis_rig(client, rig_settings)
    job_id = rig.submit()
    before = client.dump(keys.job(job_id))
    first = rig.claim(job_id, "forgotten")
    client.restore(keys.job(job_id), 60_000, before, replace=True)
    client.zrem(keys.running("acme"), job_id)
    second = rig.claim(job_id, "w2")
    assert rig.stop_reason(job_id, first.job.fence) == "lost"
    assert rig.store.renew(job_id, first.job.fence, 10.0) == "lost"
    assert rig.store.retry(answer(first), first.job.fence, 5.0) is None
    assert not rig.store.release(job_id, first.job.fence)
    assert not rig.store.commit(answer(first, text="stale"), first.job.fence)
    assert rig.store.commit(answer(second, text="fresh"), second.job.fence)


@pytest.mark.parametrize(
    ("field", "size"), [("input", 16 * 2**20 + 1), ("queue", 257), ("traceparent", 257)]
)
def test_a_record_that_would_fill_a_worker_is_ended(
    rig_settings: Settings, client: Client, field: str, size: int
) -> None:
    """Its producers can write it by hand. No worker reads it, and it comes up once."""
    rig = redis_rig(client, rig_settings)
    job_id = rig.submit()
    client.hset(keys.job(job_id), field, b"x" * size)
    assert rig.refusal(job_id) == "damaged"
    assert rig.refusal(job_id) == "ended"
    assert client.hget(keys.job(job_id), "state") == b"failed"
    assert client.zcard(keys.queued("acme")) == 0


@pytest.mark.unrestricted("Redis holds the functions as they are; this breaks one")
def test_without_the_fence_check_the_stale_result_is_written(
    rig_settings: Settings, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the script forgets the fence, and the test above notices."""
    source = records.script_source
    check = "get('state') == 'running' and get('fence') == fence"
    assert check in source("commit")
    monkeypatch.setattr(
        records,
        "script_source",
        lambda name: source(name).replace(check, "get('state') == 'running'"),
    )
    with pytest.raises(AssertionError):
        stale_fence_is_refused(redis_rig(client, rig_settings))


def test_a_repeated_commit_is_still_true_and_tells_nobody_twice(rig: Rig) -> None:
    """A worker that lost the reply to its commit learns that it was written; one notice only."""
    stream = rig.store.notices()
    follow(stream)
    claim = rig.claim(rig.submit())
    assert rig.store.commit(answer(claim), claim.job.fence)
    assert rig.store.commit(answer(claim), claim.job.fence)
    assert not rig.store.commit(answer(claim, text="other"), claim.job.fence)
    assert drain(stream) == [claim.job.id]
    stream.close()


def test_a_leased_job_is_refused_until_the_lease_ends(rig: Rig) -> None:
    """A second delivery of the message does nothing while the first is being worked on."""
    job_id = rig.submit()
    rig.claim(job_id, lease_s=10)
    assert rig.refusal(job_id) == "leased"
    rig.advance(9)
    assert rig.refusal(job_id) == "leased"
    rig.advance(2)
    assert rig.claim(job_id).job.attempt == 2


def test_a_renewed_lease_lasts_longer(rig: Rig) -> None:
    """Renewal moves the end of the lease; a job longer than its first lease runs once."""
    claim = rig.claim(rig.submit(), lease_s=10)
    for _ in range(5):
        rig.advance(8)
        assert rig.store.renew(claim.job.id, claim.job.fence, 10) == "ok"
    assert rig.refusal(claim.job.id) == "leased"
    assert rig.store.commit(answer(claim), claim.job.fence)


def test_many_leases_are_renewed_and_looked_at_together(rig: Rig) -> None:
    """In the order asked, each with its own answer; one that is lost hides no other."""
    kept, lost, cancelled = (rig.claim(rig.submit(), lease_s=10) for _ in range(3))
    rig.store.cancel(cancelled.job.id)
    held = [(claim.job.id, claim.job.fence) for claim in (kept, lost, cancelled)]
    held[1] = (lost.job.id, lost.job.fence + 1)
    assert rig.store.stop_reasons(held) == [None, "lost", "cancelled"]
    rig.advance(8)
    assert rig.store.renew_many(held, 10) == ["ok", "lost", "cancel_requested"]
    rig.advance(8)
    assert rig.refusal(kept.job.id) == "leased"
    assert rig.store.renew_many([], 10) == rig.store.stop_reasons([]) == []


def test_a_damaged_record_is_refused_in_its_place(rig_settings: Settings, client: Any) -> None:
    """The leases around it are renewed."""
    rig = redis_rig(client, rig_settings)
    damaged, whole = (rig.claim(rig.submit(), lease_s=10) for _ in range(2))
    client.delete(keys.job(damaged.job.id))
    client.set(keys.job(damaged.job.id), "no hash")
    held = [(claim.job.id, claim.job.fence) for claim in (damaged, whole)]
    for replies in (rig.store.renew_many(held, 10), rig.store.stop_reasons(held)):
        assert isinstance(replies[0], RedisRefused)
        assert replies[1] in ("ok", None)


def test_a_lost_lease_is_not_renewed(rig: Rig) -> None:
    """Once somebody else has claimed the job, or it has ended, its old holder is told."""
    claim = rig.claim(rig.submit(), lease_s=10)
    rig.advance(11)
    newer = rig.claim(claim.job.id, "w2")
    assert rig.store.renew(claim.job.id, claim.job.fence, 10) == "lost"
    assert rig.stop_reason(claim.job.id, claim.job.fence) == "lost"
    assert not rig.store.release(claim.job.id, claim.job.fence)
    assert rig.store.commit(answer(newer), newer.job.fence)
    assert rig.store.renew(claim.job.id, newer.job.fence, 10) == "lost"


def test_a_released_job_is_queued_again_and_the_attempt_does_not_count(rig: Rig) -> None:
    """Case Q9's half: what a stopping worker gives back runs elsewhere, as attempt 1."""
    claim = rig.claim(rig.submit())
    assert rig.store.release(claim.job.id, claim.job.fence)
    view = rig.store.get(claim.job.id)
    assert (view.state, view.worker, view.job.attempt) == (JobState.QUEUED, "", 0)
    again = rig.claim(claim.job.id, "w2")
    assert (again.job.attempt, again.job.fence) == (1, 2)
    assert not rig.store.commit(answer(claim), claim.job.fence)


def test_two_hundred_jobs_and_two_racing_claimers_claim_each_once(
    in_redis: Rig, rig_settings: Settings, worker_settings: Settings
) -> None:
    """Case Q4: every job delivered twice at the same time is claimed and committed once."""
    barrier = threading.Barrier(2)
    job_ids = [in_redis.submit() for _ in range(200)]
    settings = rig_settings.model_copy(update={"redis_url": worker_settings.redis_url})

    def work(worker: str) -> list[str]:
        with connect(settings) as client:
            store, done = RedisJobStore(client, settings), []
            for job_id in job_ids:
                barrier.wait(timeout=30)
                claim = store.claim(job_id, worker, 30)
                if isinstance(claim, Claimed):
                    assert store.commit(answer(claim), claim.job.fence)
                    done.append(job_id)
            return done

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(work, ["w1", "w2"])
    assert sorted(first + second) == sorted(job_ids)
    assert first, "the race was none: one claimer took nothing"
    assert second, "the race was none: one claimer took nothing"


def test_a_workers_own_clock_decides_nothing(
    in_redis: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case Q23: with clocks five minutes apart no lease is stolen and no job expires."""
    rig = in_redis
    real = time.time
    job_id = rig.submit(deadline_s=60)
    claim = rig.claim(job_id, lease_s=60)
    for skew in (300, -300):
        monkeypatch.setattr(time, "time", lambda skew=skew: real() + skew)
        assert rig.refusal(job_id) == "leased"
        assert rig.store.renew(job_id, claim.job.fence, 60) == "ok"
        assert rig.stop_reason(job_id, claim.job.fence) is None
        created_at = rig.store.get(rig.submit()).job.created_at
        assert created_at == pytest.approx(real(), abs=5)


def test_a_claim_whose_reply_was_lost_is_not_lost(
    redis_store: RedisJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's own retry of a claim gets the same claim, not `leased`."""
    run = redis_store._run

    def twice(script: str, *args: Any, **kwargs: Any) -> Any:
        if script == "claim":
            run(script, *args, **kwargs)
        return run(script, *args, **kwargs)

    monkeypatch.setattr(redis_store, "_run", twice)
    job = Job(id=new_job_id("acme"), ref=REF, variables={})
    redis_store.submit(job, input_digest="i")
    claim = redis_store.claim(job.id, "w1", 10)
    assert isinstance(claim, Claimed)
    assert (claim.job.attempt, claim.job.fence) == (1, 1)


# --- cancel and deadline


def test_a_queued_job_is_cancelled_before_it_starts(rig: Rig) -> None:
    """Case Q15: it never runs, and its readers get a result that says cancelled."""
    job_id = rig.submit()
    assert rig.store.cancel(job_id) is JobState.CANCELLED
    assert rig.refusal(job_id) == "cancelled"
    view = rig.store.get(job_id)
    assert view.result is not None
    assert (view.result.status, view.result.finish_reason) == (JobState.CANCELLED, "cancelled")
    assert view.result.error is not None


def test_a_running_job_is_asked_to_stop(rig: Rig) -> None:
    """Case Q15: the worker sees the request in its checks, and its own result ends the job."""
    claim = rig.claim(rig.submit())
    assert rig.stop_reason(claim.job.id, claim.job.fence) is None
    assert rig.store.cancel(claim.job.id) is JobState.RUNNING
    assert rig.store.get(claim.job.id).cancel_requested
    assert rig.stop_reason(claim.job.id, claim.job.fence) == "cancelled"
    assert rig.store.renew(claim.job.id, claim.job.fence, 10) == "cancel_requested"
    assert rig.store.commit(answer(claim, status=JobState.CANCELLED), claim.job.fence)
    assert rig.store.get(claim.job.id).state is JobState.CANCELLED


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
def test_an_ended_job_cannot_be_cancelled(rig: Rig, end: str) -> None:
    """Case Q15: a conflict that names the state, exit code 7."""
    claim = rig.claim(rig.submit())
    rig.store.commit(answer(claim, status=JobState(end)), claim.job.fence)
    with pytest.raises(Conflict, match=end) as caught:
        rig.store.cancel(claim.job.id)
    assert caught.value.exit_code == 7


def test_a_cancel_outlives_the_worker_that_was_asked(rig: Rig) -> None:
    """A job that was asked to stop is not run again when its worker dies or gives it back."""
    dead, released = rig.claim(rig.submit()), rig.claim(rig.submit())
    stream = rig.store.notices()
    follow(stream)
    for claim in (dead, released):
        rig.store.cancel(claim.job.id)
    assert rig.store.release(released.job.id, released.job.fence)
    assert drain(stream) == [released.job.id], "its waiters are told at once"
    stream.close()
    rig.advance(11)
    for claim in (dead, released):
        assert rig.refusal(claim.job.id) == "cancelled"


def test_a_job_whose_worker_died_is_cancelled_at_once(rig: Rig) -> None:
    """With the lease over there is nobody to ask; the job ends now."""
    claim = rig.claim(rig.submit(), lease_s=10)
    rig.advance(11)
    assert rig.store.cancel(claim.job.id) is JobState.CANCELLED
    assert not rig.store.commit(answer(claim), claim.job.fence)


def test_a_deadline_that_passes_in_the_queue_expires_the_job(rig: Rig) -> None:
    """Case Q16: it is never claimed, and readers see `expired` with a result."""
    claimed_late, read_late = rig.submit(deadline_s=30), rig.submit(deadline_s=30)
    rig.advance(31)
    assert rig.refusal(claimed_late) == "expired"
    assert rig.store.states([read_late]) == [JobState.EXPIRED]
    for job_id in (claimed_late, read_late):
        view = rig.store.get(job_id)
        assert view.result is not None
        assert (view.result.status, view.result.finish_reason) == (JobState.EXPIRED, "expired")
        assert view.result.timings.total_s == pytest.approx(31, abs=2)


def test_a_deadline_that_passes_mid_decode_stops_the_worker(rig: Rig) -> None:
    """Case Q16: the worker's check says `expired`; while it holds the lease, it ends the job."""
    claim = rig.claim(rig.submit(deadline_s=30), lease_s=60)
    rig.advance(31)
    assert rig.stop_reason(claim.job.id, claim.job.fence) == "expired"
    assert rig.store.states([claim.job.id]) == [JobState.RUNNING]
    assert rig.store.commit(answer(claim, status=JobState.EXPIRED), claim.job.fence)
    assert rig.store.states([claim.job.id]) == [JobState.EXPIRED]


def test_a_job_whose_worker_died_expires_at_its_deadline(rig: Rig) -> None:
    """Lease and deadline both over: the job is expired for whoever looks."""
    claim = rig.claim(rig.submit(deadline_s=30), lease_s=10)
    rig.advance(31)
    assert rig.store.get(claim.job.id).state is JobState.EXPIRED
    assert not rig.store.commit(answer(claim), claim.job.fence)


@pytest.mark.parametrize("deadline_s", [0, -1, math.nan, math.inf, MAX_DEADLINE_S * 1.01])
def test_deadlines_that_are_none_are_refused(rig: Rig, deadline_s: float) -> None:
    """Zero, negative, endless and not-a-number deadlines are InvalidInput."""
    with pytest.raises(InvalidInput, match="not a deadline"):
        rig.submit(deadline_s=deadline_s)


# --- idempotency and limits


def test_the_same_key_and_input_is_the_same_job(rig: Rig) -> None:
    """Case Q17: the second submit gets the first one's id, whatever has become of the job."""
    first = rig.submit(idempotency_key="order-7")
    assert rig.submit(idempotency_key="order-7") == first
    claim = rig.claim(first)
    rig.store.commit(answer(claim), claim.job.fence)
    newer = Job(id=new_job_id("acme"), ref=REF, variables={})
    again = rig.store.submit(newer, input_digest="i" * 64, idempotency_key="order-7")
    assert (again.job_id, again.created, again.state) == (first, False, JobState.SUCCEEDED)
    with pytest.raises(NotFound):
        rig.store.get(newer.id)


def test_the_same_key_with_other_input_is_a_conflict_that_names_the_first(rig: Rig) -> None:
    """Case Q17: exit code 7, the first job's id in the message, nothing enqueued."""
    first = rig.submit(idempotency_key="order-7")
    with pytest.raises(Conflict, match=first) as caught:
        rig.submit(idempotency_key="order-7", input_digest="other")
    assert caught.value.exit_code == 7


def test_a_key_is_its_tenants_own(rig: Rig) -> None:
    """Two tenants may use the same key for different jobs."""
    theirs = VersionRef(tenant="globex", template="triage", version=1, digest="e" * 64)
    assert rig.submit(idempotency_key="k") != rig.submit(idempotency_key="k", ref=theirs)


def test_a_key_lasts_as_long_as_its_job(rig: Rig) -> None:
    """When the first job's record is gone, the key makes a new one."""
    first = rig.submit(idempotency_key="order-7")
    rig.store.cancel(first)
    rig.advance(101)
    second = rig.submit(idempotency_key="order-7", input_digest="other")
    assert second != first
    assert rig.submit(idempotency_key="order-7", input_digest="other") == second


@pytest.mark.parametrize("key", ["", "x" * 257, "\ud800"])
def test_keys_that_are_none_are_refused(rig: Rig, key: str) -> None:
    """Empty, very long and undecodable keys are InvalidInput."""
    with pytest.raises(InvalidInput, match="not an idempotency key"):
        rig.submit(idempotency_key=key)


def test_a_full_queue_refuses_until_there_is_room(rig: Rig) -> None:
    """The limit counts jobs of this template that wait; claims, cancels and expiry make room."""
    for _ in range(2):
        rig.submit(max_queue=2, deadline_s=50)
    third = rig.submit(max_queue=3, deadline_s=50)
    with pytest.raises(Conflict, match="full"):
        rig.submit(max_queue=3)
    other = VersionRef(tenant="acme", template="other", version=1, digest="f" * 64)
    rig.submit(max_queue=1, ref=other)
    rig.store.cancel(third)
    rig.claim(rig.submit(max_queue=3, deadline_s=50))
    rig.submit(max_queue=3)
    with pytest.raises(Conflict, match="full"):
        rig.submit(max_queue=3)
    rig.advance(51)
    rig.submit(max_queue=3)


def test_submit_many_tells_each_outcome_in_its_place(rig: Rig) -> None:
    """A refusal in the middle keeps nobody else out."""
    terms: list[dict[str, Any]] = [
        {"idempotency_key": "k"},
        {"idempotency_key": "k", "input_digest": "other"},
        {"idempotency_key": "k"},
        {},
    ]
    submissions = [
        Submission(
            job=Job(id=new_job_id("acme"), ref=REF, variables={}), **{"input_digest": "i"} | given
        )
        for given in terms
    ]
    first, conflict, again, last = rig.store.submit_many(submissions)
    assert isinstance(conflict, Conflict)
    assert not isinstance(first, PrefillqError)
    assert not isinstance(again, PrefillqError)
    assert not isinstance(last, PrefillqError)
    assert (again.job_id, again.created) == (first.job_id, False)
    assert last.created


# --- withdraw, expiry, readers


def test_a_withdrawn_job_and_its_key_are_gone(rig: Rig) -> None:
    """Nothing is left of a submit that failed half-way; the key is free again."""
    job_id = rig.submit(idempotency_key="k")
    assert rig.store.withdraw(job_id, idempotency_key="k")
    assert rig.store.states([job_id]) == [None]
    assert rig.refusal(job_id) == "not_found"
    assert rig.submit(idempotency_key="k", input_digest="other") != job_id
    assert rig.store.withdraw(job_id)


def test_what_others_have_seen_is_not_withdrawn(rig: Rig) -> None:
    """A claimed job stays, and so does one that a second submit under the key has returned."""
    claimed, shared = rig.submit(), rig.submit(idempotency_key="k")
    claim = rig.claim(claimed)
    rig.submit(idempotency_key="k")
    assert not rig.store.withdraw(claimed)
    assert not rig.store.withdraw(shared, idempotency_key="k")
    assert rig.store.states([claimed, shared]) == [JobState.RUNNING, JobState.QUEUED]
    rig.store.release(claimed, claim.job.fence)
    assert not rig.store.withdraw(claimed)


def test_a_result_is_kept_for_its_time_and_then_not_found(rig: Rig) -> None:
    """Case Q18: an expired result and an unknown id are NotFound, exit code 4, not pending."""
    claim = rig.claim(rig.submit())
    rig.store.commit(answer(claim), claim.job.fence)
    rig.advance(99)
    assert rig.store.get(claim.job.id).state is JobState.SUCCEEDED
    rig.advance(2)
    for job_id in (claim.job.id, new_job_id("acme")):
        for read in (rig.store.get, rig.store.cancel):
            with pytest.raises(NotFound, match="may have expired") as caught:
                read(job_id)
            assert caught.value.exit_code == 4
        assert rig.store.states([job_id]) == [None]
        assert rig.refusal(job_id) == "not_found"
        assert rig.stop_reason(job_id, 1) == "lost"
        assert not rig.store.commit(answer(claim), 1)


def test_states_keep_the_order_of_the_ids(rig: Rig) -> None:
    """One reply per id, over several round trips."""
    job_ids = [rig.submit() for _ in range(300)]
    rig.store.cancel(job_ids[7])
    rig.claim(job_ids[299])
    states = rig.store.states(job_ids)
    assert states[7] is JobState.CANCELLED
    assert states[299] is JobState.RUNNING
    assert states.count(JobState.QUEUED) == 298


def follow(stream: Any) -> None:
    stream.follow("acme")
    deadline = time.monotonic() + 5
    while (notice := stream.next(0.1)) is None:
        assert time.monotonic() < deadline
    assert notice.job_id is None


def drain(stream: Any) -> list[str | None]:
    found = []
    while (notice := stream.next(0.2)) is not None:
        found.append(notice.job_id)
    return found


def test_every_end_is_noticed_once(rig: Rig) -> None:
    """Commit, cancel and expiry each publish the job's id on the tenant's channel."""
    stream = rig.store.notices()
    follow(stream)
    committed, expired, cancelled = rig.submit(), rig.submit(deadline_s=30), rig.submit()
    claim = rig.claim(committed)
    rig.store.commit(answer(claim), claim.job.fence)
    rig.store.cancel(cancelled)
    rig.advance(31)
    rig.store.get(expired)
    rig.store.states([committed, expired, cancelled])
    assert drain(stream) == [committed, cancelled, expired]
    stream.close()


# --- what is in Redis


def test_indexes_follow_the_state(in_redis: Rig, client: Any) -> None:
    """A job is in the queued and waiting sets or in the running set, and in none once ended."""
    rig = in_redis

    def where(job_id: str) -> tuple[bool, bool, bool]:
        sets = (keys.queued("acme"), keys.waiting("acme", "triage"), keys.running("acme"))
        queued, waiting, running = (client.zscore(key, job_id) is not None for key in sets)
        return queued, waiting, running

    job_id = rig.submit()
    assert where(job_id) == (True, True, False)
    claim = rig.claim(job_id, lease_s=10)
    assert where(job_id) == (False, False, True)
    lease_until = client.zscore(keys.running("acme"), job_id)
    rig.store.renew(job_id, claim.job.fence, 20)
    assert client.zscore(keys.running("acme"), job_id) == pytest.approx(lease_until + 10, abs=2)
    rig.store.release(job_id, claim.job.fence)
    assert where(job_id) == (True, True, False)
    claim = rig.claim(job_id)
    rig.store.commit(answer(claim), claim.job.fence)
    assert where(job_id) == (False, False, False)
    for end in (rig.store.cancel, rig.store.withdraw):
        job_id = rig.submit()
        end(job_id)
        assert where(job_id) == (False, False, False)


def test_an_index_entry_without_a_record_is_removed_by_whoever_finds_it(
    in_redis: Rig, client: Any
) -> None:
    """A record that Redis expired leaves nothing that is rung for ever."""
    rig = in_redis
    job_id = rig.submit()
    client.delete(keys.job(job_id))
    assert rig.refusal(job_id) == "not_found"
    assert client.zcard(keys.queued("acme")) == 0


@pytest.mark.parametrize("field", ["template", "queue", "rollout", "traceparent"])
def test_a_text_longer_than_ours_goes_no_further(in_redis: Rig, client: Any, field: str) -> None:
    """A worker that claims such a record, which its producer wrote by hand, has no job of it."""
    job_id = in_redis.submit()
    client.hset(keys.job(job_id), field, "planted" * 1000)
    with pytest.raises(CodecError, match=f"{field} has more than") as caught:
        in_redis.claim(job_id)
    assert "planted" not in str(caught.value)
    with pytest.raises(CodecError):
        in_redis.store.get(job_id)


def test_everything_a_job_leaves_in_redis_expires(in_redis: Rig, client: Any) -> None:
    """Records and keys have a TTL from the start: bounded, whatever dies."""
    rig = in_redis
    job_id = rig.submit(idempotency_key="k", deadline_s=50)
    assert 150 < client.ttl(keys.job(job_id)) <= 50 + 100 + 3600
    assert 150 < client.ttl(keys.idempotency("acme", "k")) <= 50 + 100 + 3600
    rig.store.cancel(job_id)
    assert 0 < client.ttl(keys.job(job_id)) <= 100


def test_a_withdrawn_key_leaves_no_trace(in_redis: Rig, client: Any) -> None:
    """Withdrawing erases the idempotency key, unless it names another job by now."""
    rig = in_redis
    assert rig.store.withdraw(rig.submit(idempotency_key="k"), idempotency_key="k")
    assert not client.exists(keys.idempotency("acme", "k"))
    rig.submit(idempotency_key="k")
    assert rig.store.withdraw(rig.submit(), idempotency_key="k")
    assert client.exists(keys.idempotency("acme", "k"))


def test_scripts_touch_only_keys_of_the_tenant(rig_settings: Settings, client: Any) -> None:
    """A user whose ACL covers one tenant's keys and channels can run every script."""
    client.execute_command(
        "ACL", "SETUSER", "acme-only", "reset", "on", ">secret", "~pq:acme:*", "&pq:acme:*", "+@all"
    )
    scheme, _, rest = rig_settings.redis_url.partition("://")
    url = f"{scheme}://acme-only:secret@{rest.rpartition('@')[2]}"
    try:
        with connect(rig_settings.model_copy(update={"redis_url": url})) as limited:
            rig = redis_rig(limited, rig_settings)
            job_id = rig.submit(idempotency_key="k", max_queue=5)
            rig.submit(idempotency_key="k", max_queue=5)
            claim = rig.claim(job_id)
            rig.store.renew(job_id, claim.job.fence, 10)
            rig.stop_reason(job_id, claim.job.fence)
            rig.store.release(job_id, claim.job.fence)
            claim = rig.claim(job_id)
            assert rig.store.commit(answer(claim), claim.job.fence)
            rig.store.cancel(rig.submit())
            rig.store.withdraw(rig.submit())
            with pytest.raises(PrefillqError, match="refused"):
                rig.submit(ref=VersionRef(tenant="globex", template="t", version=1, digest="d"))
    finally:
        client.execute_command("ACL", "DELUSER", "acme-only")


def test_times_keep_their_microseconds(in_redis: Rig, client: Any) -> None:
    """Times in the record are exact to the microsecond, as Redis has them."""
    rig = in_redis
    stamps = [client.hget(keys.job(rig.submit()), "created_at").decode() for _ in range(5)]
    assert all(len(stamp.partition(".")[2]) == 6 for stamp in stamps)
    assert all(float(earlier) < float(later) for earlier, later in pairwise(stamps))


def test_a_full_redis_writes_nothing_and_loses_nothing(in_redis: Rig, client: Any) -> None:
    """Case Q22: at maxmemory a submit and a commit are refused whole; with room they work."""
    rig = in_redis
    claim = rig.claim(rig.submit())
    before = sorted(client.keys("*"))
    with out_of_memory(client):
        with pytest.raises(RedisRefused, match="maxmemory"):
            rig.submit(idempotency_key="k")
        with pytest.raises(RedisRefused, match="maxmemory"):
            rig.store.commit(answer(claim), claim.job.fence)
        assert sorted(client.keys("*")) == before
    assert rig.store.get(claim.job.id).result is None
    assert rig.store.commit(answer(claim), claim.job.fence)


def test_scripts_survive_a_redis_that_forgot_them(in_redis: Rig, client: Any) -> None:
    """After a restart of Redis its script cache is empty; calls and pipelines load them anew."""
    rig = in_redis
    for step in (rig.submit, rig.submit):
        client.script_flush()
        job_id = step()
        client.script_flush()
        assert rig.store.states([job_id]) == [JobState.QUEUED]
        client.script_flush()
        rig.claim(job_id)
