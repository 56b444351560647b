"""What a tenant may have at most: submits a second, queued jobs, running jobs.

Every behaviour holds for the store in Redis and for the one in memory.
"""

from __future__ import annotations

import pytest

from contract import keys
from contract.errors import InvalidInput, OverLimit
from contract.ids import new_job_id
from contract.job_store import Doorbell, Submission, TenantLimits
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import Job, JobState, VersionRef
from tests.support.record_rig import REF, Rig, answer, memory_rig, redis_rig

GLOBEX = VersionRef(tenant="globex", template="triage", version=1, digest="d" * 64)


@pytest.fixture(params=["memory", "redis"])
def rig(request: pytest.FixtureRequest) -> Rig:
    plain = Settings(lease_s=10.0, result_ttl_s=100.0, default_deadline_s=1000.0)
    if request.param == "memory":
        return memory_rig(plain)
    given: Settings = request.getfixturevalue("settings")
    settings = plain.model_copy(update={"redis_url": given.redis_url})
    return redis_rig(request.getfixturevalue("client"), settings)


def end(rig: Rig, job_id: str, fence: int) -> Doorbell | None:
    """The job's answer is committed; whom to ring for then."""
    view = rig.store.get(job_id)
    assert view.state is JobState.RUNNING
    result = answer_of(rig, job_id, fence)
    assert result
    return rig.store.note_commit(job_id, fence, 0.1)


def answer_of(rig: Rig, job_id: str, fence: int) -> bool:
    from contract.job_store import Claimed

    job = rig.store.get(job_id).job
    claim = Claimed(job=job, queued_s=0.0)
    return rig.store.commit(answer(claim), fence) is not None


def test_limits_are_read_as_they_were_set(rig: Rig) -> None:
    """None by default; a later setting replaces all of an earlier one."""
    assert rig.store.limits("acme") == TenantLimits()
    limits = TenantLimits(rate_per_s=2.5, max_queued=7, max_running=3)
    rig.store.set_limits("acme", limits)
    assert rig.store.limits("acme") == limits
    assert rig.store.limits("globex") == TenantLimits()
    rig.store.set_limits("acme", TenantLimits(max_queued=1))
    assert rig.store.limits("acme") == TenantLimits(max_queued=1)
    rig.store.set_limits("acme", TenantLimits())
    assert rig.store.limits("acme") == TenantLimits()


@pytest.mark.parametrize(
    "limits",
    [
        TenantLimits(rate_per_s=0),
        TenantLimits(rate_per_s=float("nan")),
        TenantLimits(rate_per_s=-1),
        TenantLimits(max_queued=-1),
        TenantLimits(max_running=10**10),
    ],
)
def test_what_is_no_limit_is_refused(rig: Rig, limits: TenantLimits) -> None:
    with pytest.raises(InvalidInput):
        rig.store.set_limits("acme", limits)
    assert rig.store.limits("acme") == TenantLimits()


def test_jobs_over_the_queued_limit_are_refused_and_leave_nothing(rig: Rig) -> None:
    """Over all templates; those that wait for another attempt count; other tenants do not."""
    rig.store.set_limits("acme", TenantLimits(max_queued=2))
    first, _ = rig.submit(), rig.submit()
    with pytest.raises(OverLimit, match="at most 2") as caught:
        rig.submit()
    assert (caught.value.exit_code, caught.value.retry_after_s) == (7, None)
    rig.submit(ref=GLOBEX)
    rig.claim(first)
    rig.submit()
    with pytest.raises(OverLimit):
        rig.submit()


def test_known_key_is_no_new_job(rig: Rig) -> None:
    """Submitting again under a key finds the job, however many there may be."""
    rig.store.set_limits("acme", TenantLimits(max_queued=1, rate_per_s=1))
    job_id = rig.submit(idempotency_key="k")
    assert rig.submit(idempotency_key="k") == job_id


def test_rate_is_kept_over_time(rig: Rig) -> None:
    """A second's worth at once, then as many as the rate gives; the error says when."""
    rig.store.set_limits("acme", TenantLimits(rate_per_s=5))
    for _ in range(5):
        rig.submit()
    with pytest.raises(OverLimit, match="faster") as caught:
        rig.submit()
    wait = caught.value.retry_after_s
    assert wait is not None
    assert 0 < wait <= 0.2
    rig.advance(0.41)
    rig.submit()
    rig.submit()
    with pytest.raises(OverLimit):
        rig.submit()
    rig.submit(ref=GLOBEX)
    rig.advance(3600)
    for _ in range(5):
        rig.submit()
    with pytest.raises(OverLimit):
        rig.submit()


def test_rate_below_one_a_second_lets_one_through_at_a_time(rig: Rig) -> None:
    rig.store.set_limits("acme", TenantLimits(rate_per_s=0.1))
    rig.submit()
    with pytest.raises(OverLimit):
        rig.submit()
    rig.advance(10.1)
    rig.submit()


def test_of_many_submits_those_over_the_limit_are_refused_in_place(rig: Rig) -> None:
    rig.store.set_limits("acme", TenantLimits(max_queued=2))
    outcomes = rig.store.submit_many(
        [
            Submission(job=Job(id=new_job_id("acme"), ref=REF, variables={}), input_digest="x")
            for _ in range(3)
        ]
    )
    assert [isinstance(outcome, OverLimit) for outcome in outcomes] == [False, False, True]


def test_jobs_over_the_running_limit_wait_for_another_to_end(rig: Rig) -> None:
    """Refused at the claim, whoever rings; the first submitted is the first to be rung for."""
    rig.store.set_limits("acme", TenantLimits(max_running=1))
    jobs = [rig.submit() for _ in range(4)]
    fence = rig.claim(jobs[0]).job.fence
    for job_id in (jobs[2], jobs[1], jobs[3]):
        assert rig.refusal(job_id) == "limited"
        rig.advance(0.01)
    other = rig.claim(rig.submit(ref=GLOBEX))
    assert other.job.ref.tenant == "globex"
    rig.store.cancel(jobs[1])
    bell = end(rig, jobs[0], fence)
    assert bell is not None
    assert (bell.job_id, bell.silent) == (jobs[2], True)
    fence = rig.claim(jobs[2]).job.fence
    assert rig.refusal(jobs[3]) == "limited"
    bell = end(rig, jobs[2], fence)
    assert bell is not None
    assert bell.job_id == jobs[3]
    fence = rig.claim(jobs[3]).job.fence
    assert end(rig, jobs[3], fence) is None


def test_janitor_rings_for_as_many_as_there_is_room_for(rig: Rig) -> None:
    """The end that should have rung was lost with its worker, or was no commit."""
    rig.store.set_limits("acme", TenantLimits(max_running=2))
    jobs = [rig.submit() for _ in range(5)]
    running = [rig.claim(jobs[0]), rig.claim(jobs[1])]
    for job_id in jobs[2:]:
        assert rig.refusal(job_id) == "limited"
    assert rig.store.overdue("acme", limit=10) == []
    rig.store.release(jobs[0], running[0].job.fence)
    rig.store.cancel(jobs[0])
    bells = rig.store.overdue("acme", limit=10)
    assert [(bell.job_id, bell.silent) for bell in bells] == [(jobs[2], True)]
    rig.store.set_limits("acme", TenantLimits())
    bells = rig.store.overdue("acme", limit=10)
    assert [bell.job_id for bell in bells if bell.silent] == jobs[2:]
    rig.store.rung(bells)
    assert rig.store.overdue("acme", limit=10) == [], "each is rung for once"


def test_janitor_is_not_told_of_jobs_that_there_is_no_room_for(rig: Rig) -> None:
    """However long they wait; also not those that wait for another attempt."""
    rig.store.set_limits("acme", TenantLimits(max_running=1))
    jobs = [rig.submit() for _ in range(3)]
    first = rig.claim(jobs[0])
    failed = answer(first, status=JobState.FAILED, text="", finish_reason="error")
    assert rig.store.retry(failed, first.job.fence, 1.0) is JobState.QUEUED
    rig.claim(jobs[1], lease_s=1000.0)
    rig.advance(11)
    for job_id in (jobs[0], jobs[2]):
        assert rig.refusal(job_id) == "limited"
    for _ in range(3):
        assert rig.store.overdue("acme", limit=10) == []
        rig.advance(11)


def test_dead_workers_jobs_do_not_block_themselves(rig: Rig) -> None:
    """All places are held by jobs whose worker died: they can be claimed again."""
    rig.store.set_limits("acme", TenantLimits(max_running=1))
    job_id = rig.submit()
    rig.claim(job_id, lease_s=10.0)
    rig.advance(11)
    assert rig.claim(job_id).job.attempt == 2


def test_no_more_jobs_at_all(rig: Rig) -> None:
    """A limit of 0 closes the door, to submits or to claims."""
    job_id = rig.submit()
    rig.store.set_limits("acme", TenantLimits(max_queued=0, max_running=0))
    with pytest.raises(OverLimit):
        rig.submit()
    assert rig.refusal(job_id) == "limited"


def test_bucket_is_forgotten_when_it_is_full_again(settings: Settings, client: Client) -> None:
    """Nothing of a tenant that has gone stays for ever."""
    rig = redis_rig(client, settings)
    rig.store.set_limits("acme", TenantLimits(rate_per_s=0.5))
    rig.submit()
    assert 2 <= client.ttl(keys.rate("acme")) <= 4


def test_claimed_job_is_never_taken_out_of_the_index_by_a_look(
    settings: Settings, client: Client
) -> None:
    """Between the look at an index and at the record a worker may come: both must agree after."""
    rig = redis_rig(client, settings.model_copy(update={"lease_s": 10.0}))
    job_id = rig.submit()
    rig.claim(job_id)
    # As the look would find it, had it read the index before the claim.
    client.zadd(keys.queued("acme"), {job_id: 0})
    assert rig.store.overdue("acme", limit=5) == []
    assert client.zscore(keys.running("acme"), job_id) is not None
