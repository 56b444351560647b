"""A job has so many attempts; what used them up is dead until an operator says otherwise.

Every behaviour holds for the store in Redis and for the one in memory.
"""

from __future__ import annotations

from typing import Any

import pytest

from contract import keys
from contract.errors import Conflict, NotFound
from contract.ids import new_job_id
from contract.job_store import COMMIT_GRACE_S, Claimed, TenantLimits
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import JobError, JobState, Result
from tests.support.record_rig import Rig, answer, memory_rig, redis_rig

ATTEMPTS = 3


@pytest.fixture
def plain_settings() -> Settings:
    return Settings(
        lease_s=10.0,
        result_ttl_s=100.0,
        default_deadline_s=1000.0,
        max_attempts=ATTEMPTS,
        dead_ttl_s=500.0,
    )


@pytest.fixture(params=["memory", "redis"])
def rig(request: pytest.FixtureRequest, plain_settings: Settings) -> Rig:
    if request.param == "memory":
        return memory_rig(plain_settings)
    given: Settings = request.getfixturevalue("settings")
    settings = plain_settings.model_copy(update={"redis_url": given.redis_url})
    return redis_rig(request.getfixturevalue("client"), settings)


def trouble(claim: Claimed) -> Result:
    return answer(
        claim,
        status=JobState.FAILED,
        text="",
        finish_reason="error",
        error=JobError(code="out_of_memory", message="no room"),
    )


def fail(rig: Rig, job_id: str, delay_s: float = 5.0) -> JobState | None:
    """One attempt that fails for a reason that may pass."""
    claim = rig.claim(job_id)
    return rig.store.retry(trouble(claim), claim.job.fence, delay_s)


def bury(rig: Rig, **terms: Any) -> str:
    job_id = rig.submit(**terms)
    for _ in range(ATTEMPTS):
        fail(rig, job_id)
        rig.advance(6)
    return job_id


def overdue(rig: Rig) -> list[str]:
    return [bell.job_id for bell in rig.store.overdue("acme", limit=10)]


def test_failed_attempt_waits_for_its_time(rig: Rig) -> None:
    """Queued again, but no worker gets it before the delay is over, whoever rings."""
    job_id = rig.submit()
    assert fail(rig, job_id) is JobState.QUEUED
    assert rig.refusal(job_id) == "delayed"
    rig.advance(4)
    assert rig.refusal(job_id) == "delayed"
    rig.advance(2)
    assert rig.claim(job_id).job.attempt == 2


def test_janitor_is_told_when_the_time_has_come(rig: Rig) -> None:
    """It is overdue from then on, marked as one that has no message, and once per ring."""
    job_id = rig.submit()
    fail(rig, job_id)
    assert overdue(rig) == []
    rig.advance(6)
    [bell] = rig.store.overdue("acme", limit=10)
    assert (bell.job_id, bell.silent, bell.state) == (job_id, True, JobState.QUEUED)
    rig.store.rung([bell])
    assert overdue(rig) == []
    rig.advance(11)  # a lease later nobody has come
    assert overdue(rig) == [job_id]


def test_rung_for_job_that_was_claimed_meanwhile_is_not_put_back(rig: Rig) -> None:
    """Between the look and the note a worker may come: the note must not undo that."""
    job_id = rig.submit()
    rig.advance(11)
    bells = rig.store.overdue("acme", limit=10)
    assert [bell.silent for bell in bells] == [False]
    claim = rig.claim(job_id)
    rig.store.rung(bells)
    rig.store.commit(answer(claim), claim.job.fence)
    rig.store.rung(bells)
    rig.advance(30)
    assert overdue(rig) == []


def test_expired_lease_is_rung_for_once_a_lease(rig: Rig) -> None:
    """Workers that are all busy do not collect a message every sweep."""
    job_id = rig.submit()
    rig.claim(job_id, lease_s=10.0)
    rig.advance(11)
    bells = rig.store.overdue("acme", limit=10)
    assert [bell.state for bell in bells] == [JobState.RUNNING]
    rig.store.rung(bells)
    assert overdue(rig) == []
    assert rig.claim(job_id).job.attempt == 2, "the lease itself stays over"


def test_job_that_nobody_takes_from_a_dead_worker_is_queued_again(rig: Rig) -> None:
    """A lease later: it counts as running no more, its attempt is used, its claim is lost."""
    rig.store.set_limits("acme", TenantLimits(max_running=1))
    job_id, other = rig.submit(), rig.submit()
    old = rig.claim(job_id, lease_s=10.0)
    rig.advance(11)
    assert rig.store.overdue("acme", limit=10, leases_tell=False)[0].job_id == other
    rig.store.rung(rig.store.overdue("acme", limit=10))
    assert rig.refusal(other) == "limited"
    rig.advance(11)
    [bell] = [bell for bell in rig.store.overdue("acme", limit=10) if bell.job_id == job_id]
    assert (bell.state, bell.silent) == (JobState.QUEUED, True)
    assert rig.claim(other).job.attempt == 1
    assert rig.store.commit(answer(old), old.job.fence) is None
    rig.store.set_limits("acme", TenantLimits())
    assert rig.claim(job_id).job.attempt == 2


def test_job_that_nobody_will_do_ends_at_a_look(rig: Rig) -> None:
    """Queued, waiting for another attempt, or its worker dead: past the deadline it is expired."""
    rig.store.set_limits("acme", TenantLimits(max_queued=3))
    jobs = [rig.submit(deadline_s=5.0) for _ in range(3)]
    fail(rig, jobs[0], delay_s=1.0)
    rig.claim(jobs[1], lease_s=3.0)
    stream = rig.store.notices()
    stream.follow("acme")
    rig.advance(11)
    assert rig.store.overdue("acme", limit=10) == []
    told = {notice.job_id for _ in range(9) if (notice := stream.next(0.05)) is not None}
    stream.close()
    assert told == {None, *jobs}
    for _ in range(3):
        rig.submit()


def test_last_attempt_that_fails_is_the_result(rig: Rig) -> None:
    """The job is failed with the last error, dead, and listed."""
    job_id = rig.submit()
    states = []
    for _ in range(ATTEMPTS):
        states.append(fail(rig, job_id))
        rig.advance(6)
    assert states == [JobState.QUEUED, JobState.QUEUED, JobState.FAILED]
    view = rig.store.get(job_id)
    assert (view.state, view.dead, view.job.attempt) == (JobState.FAILED, True, ATTEMPTS)
    assert view.result is not None
    assert view.result.error is not None
    assert view.result.error.code == "out_of_memory"
    assert [dead.job.id for dead in rig.store.dead("acme", limit=5)] == [job_id]
    assert rig.refusal(job_id) == "ended"


def test_job_whose_workers_die_is_dead_after_its_attempts(rig: Rig) -> None:
    """Case Q5: no attempt ends, each lease runs out; the next claim buries it with a reason."""
    job_id = rig.submit()
    for attempt in range(1, ATTEMPTS + 1):
        assert rig.claim(job_id, lease_s=10.0).job.attempt == attempt
        rig.advance(11)
    assert rig.refusal(job_id) == "dead"
    view = rig.store.get(job_id)
    assert (view.state, view.dead) == (JobState.FAILED, True)
    assert view.result is not None
    assert view.result.error is not None
    assert view.result.error.code == "attempts_exhausted"
    assert f"{ATTEMPTS} attempts" in view.result.error.message
    assert rig.store.overdue("acme", limit=5) == []


def crash(rig: Rig, job_id: str) -> None:
    """One attempt whose worker dies."""
    rig.claim(job_id, lease_s=10.0)
    rig.advance(11)


def test_job_whose_workers_died_twice_is_for_one_that_runs_it_alone(rig: Rig) -> None:
    """What runs beside it would die with it; refused to others, it loses no attempt."""
    job_id = rig.submit()
    crash(rig, job_id)
    claim = rig.store.claim(job_id, "beside others", 10.0)
    assert isinstance(claim, Claimed)
    rig.advance(11)
    assert [rig.refusal(job_id) for _ in range(9)] == ["suspect"] * 9
    assert rig.claim(job_id).job.attempt == 3


def test_attempts_that_ended_make_no_suspect(rig: Rig) -> None:
    """Failed for a while, or given back: nobody died of that."""
    job_id = rig.submit()
    crash(rig, job_id)
    fail(rig, job_id)
    rig.advance(6)
    for _ in range(3):
        claim = rig.store.claim(job_id, "w1", 10.0)
        assert isinstance(claim, Claimed)
        assert rig.store.release(job_id, claim.job.fence)


def test_revived_job_is_no_suspect(rig: Rig) -> None:
    """It has all its attempts again, also those beside others."""
    job_id = rig.submit()
    fail(rig, job_id)
    rig.advance(6)
    for _ in range(ATTEMPTS - 1):
        crash(rig, job_id)
    assert rig.refusal(job_id) == "dead"
    rig.store.revive(job_id)
    crash(rig, job_id)
    assert isinstance(rig.store.claim(job_id, "w1", 10.0), Claimed)


def test_returned_job_keeps_all_its_attempts(rig: Rig) -> None:
    """A worker that ends gives its job back; however often, that is no attempt."""
    job_id = rig.submit()
    for _ in range(3 * ATTEMPTS):
        claim = rig.claim(job_id)
        assert claim.job.attempt == 1
        assert rig.store.release(job_id, claim.job.fence)
        assert overdue(rig) == [job_id], "rung for at once"


def test_retry_of_a_lost_claim_changes_nothing(rig: Rig) -> None:
    """A worker that slept through its lease cannot put back what another runs now."""
    job_id = rig.submit()
    old = rig.claim(job_id, lease_s=10.0)
    rig.advance(11)
    new = rig.claim(job_id)
    assert rig.store.retry(trouble(old), old.job.fence, 5.0) is None
    assert rig.store.renew(job_id, new.job.fence, 10.0) == "ok"


def test_retry_repeated_after_a_lost_reply_answers_the_same(rig: Rig) -> None:
    """The client sends a call again whose reply it lost: one attempt was used, not two."""
    job_id = rig.submit()
    claim = rig.claim(job_id)
    for _ in range(2):
        assert rig.store.retry(trouble(claim), claim.job.fence, 5.0) is JobState.QUEUED
    rig.advance(6)
    assert rig.claim(job_id).job.attempt == 2
    last = bury(rig)
    view = rig.store.get(last)
    assert view.result is not None
    assert rig.store.retry(view.result, view.job.fence, 5.0) is JobState.FAILED


def test_cancelled_or_late_job_is_not_tried_again(rig: Rig) -> None:
    """A cancel during the attempt, a cancel while it waits, and a deadline before its time."""
    running = rig.submit()
    claim = rig.claim(running)
    rig.store.cancel(running)
    assert rig.store.retry(trouble(claim), claim.job.fence, 5.0) is JobState.CANCELLED
    waiting = rig.submit()
    fail(rig, waiting)
    assert rig.store.cancel(waiting) is JobState.CANCELLED
    late = rig.submit(deadline_s=20)
    fail(rig, late, delay_s=60.0)
    rig.advance(21)
    assert rig.store.states([late]) == [JobState.EXPIRED]
    rig.advance(100)
    assert overdue(rig) == []


def test_waiting_for_another_attempt_counts_as_waiting(rig: Rig) -> None:
    """A template's limit of waiting jobs holds for those too."""
    fail(rig, rig.submit(max_queue=1))
    with pytest.raises(Conflict, match="is full"):
        rig.submit(max_queue=1)


def test_dead_job_is_kept_longer_than_a_result_and_then_forgotten(rig: Rig) -> None:
    """`dead_ttl_s`, from its death; the list forgets it too."""
    job_id = bury(rig)
    rig.advance(400)
    assert rig.store.get(job_id).dead
    rig.advance(101)
    with pytest.raises(NotFound):
        rig.store.get(job_id)
    assert rig.store.dead("acme", limit=5) == []


def test_dead_jobs_are_listed_last_first_per_tenant_and_limited(rig: Rig) -> None:
    """What died last is what an operator looks for."""
    died = [bury(rig) for _ in range(3)]
    assert [view.job.id for view in rig.store.dead("acme", limit=2)] == [died[2], died[1]]
    assert rig.store.dead("globex", limit=5) == []


def test_revived_job_has_all_its_attempts_and_a_new_deadline(rig: Rig) -> None:
    """It runs as if submitted now, under a fence that no old worker holds."""
    job_id = bury(rig, deadline_s=60)
    fence = rig.store.get(job_id).job.fence
    rig.advance(100)  # its first deadline is past
    assert rig.store.revive(job_id, deadline_s=30) == rig.store.get(job_id).job.queue
    view = rig.store.get(job_id)
    assert (view.state, view.dead, view.result) == (JobState.QUEUED, False, None)
    assert rig.store.dead("acme", limit=5) == []
    assert overdue(rig) == [job_id], "should the ring be lost, the janitor's is not"
    claim = rig.claim(job_id)
    assert claim.job.attempt == 1
    assert claim.job.fence > fence
    assert rig.store.commit(answer(claim), claim.job.fence) is not None
    late = bury(rig)
    rig.store.revive(late, deadline_s=30)
    rig.advance(31)
    assert rig.store.states([late]) == [JobState.EXPIRED]


def test_revived_job_is_found_under_its_idempotency_key(rig: Rig) -> None:
    """For as long as its record is kept: who submits it again gets the job that is at work."""
    job_id = bury(rig, deadline_s=60, idempotency_key="k")
    rig.store.revive(job_id, deadline_s=10_000)
    rig.advance(60 + 100 + COMMIT_GRACE_S + 1)  # the end of the first record
    assert rig.submit(idempotency_key="k") == job_id


@pytest.mark.parametrize("held_by", ["another job", "a list"])
def test_reviving_takes_no_idempotency_key_away(
    client: Client, settings: Settings, plain_settings: Settings, held_by: str
) -> None:
    """It ran out while the job was dead, and another job has it now, or a tenant broke it."""
    rig = redis_rig(client, plain_settings.model_copy(update={"redis_url": settings.redis_url}))
    job_id = bury(rig, idempotency_key="k")
    key = keys.idempotency("acme", "k")
    client.delete(key)
    other = rig.submit(idempotency_key="k") if held_by == "another job" else None
    if other is None:
        client.rpush(key, "x")
    rig.store.revive(job_id)
    assert (
        client.lrange(key, 0, -1) == [b"x"] if other is None else client.get(key) == other.encode()
    )


def test_dropped_job_is_gone(rig: Rig) -> None:
    """Record and list entry; a second drop finds nothing."""
    job_id = bury(rig)
    rig.store.drop(job_id)
    with pytest.raises(NotFound):
        rig.store.get(job_id)
    with pytest.raises(NotFound):
        rig.store.drop(job_id)
    assert rig.store.dead("acme", limit=5) == []


def test_only_dead_jobs_are_revived_and_dropped(rig: Rig) -> None:
    """A queued, running or succeeded job is a conflict and stays as it is."""
    queued, running, done = rig.submit(), rig.submit(), rig.submit()
    rig.claim(running)
    claim = rig.claim(done)
    rig.store.commit(answer(claim), claim.job.fence)
    for job_id in (queued, running, done):
        for act in (rig.store.revive, rig.store.drop):
            with pytest.raises(Conflict, match="not dead"):
                act(job_id)
    states = [JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED]
    assert rig.store.states([queued, running, done]) == states
    with pytest.raises(NotFound):
        rig.store.revive(new_job_id("acme"))


def test_a_jobs_end_is_told_once_it_is_dead(rig: Rig) -> None:
    """Who waits for the result hears of it."""
    stream = rig.store.notices()
    stream.follow("acme")
    assert stream.next(1.0) is not None
    job_id = bury(rig)
    notice = stream.next(1.0)
    assert notice is not None
    assert notice.job_id == job_id
    assert stream.next(0.05) is None
    stream.close()


def test_dead_jobs_leave_no_other_index(settings: Settings, client: Client) -> None:
    """Neither queued, waiting nor running; and the list is bounded by age at each death."""
    store = redis_rig(client, settings.model_copy(update={"max_attempts": 1, "dead_ttl_s": 50.0}))
    old = store.submit()
    fail(store, old)
    store.advance(60)
    job_id = store.submit()
    fail(store, job_id)
    assert client.zrange(keys.dead("acme"), 0, -1) == [job_id.encode()]
    for index in (keys.queued("acme"), keys.running("acme"), keys.waiting("acme", "triage")):
        assert client.zscore(index, job_id) is None
