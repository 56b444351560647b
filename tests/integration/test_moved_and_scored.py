"""Records of templates that move, and scores of answers: alike in Redis and in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from contract import keys
from contract.errors import Conflict, InvalidInput, NotFound, TemplateMoved
from contract.ids import new_job_id
from contract.job_store import MAX_SCORES, JobStore, Submission
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import Job, JobError, JobState
from tests.support.record_rig import REF, Rig, answer, memory_rig, redis_rig

ROLLOUT = "0123456789abcdef"
STREAM = keys.outcomes("acme", ROLLOUT, REF.digest)


@pytest.fixture
def plain_settings() -> Settings:
    return Settings(result_ttl_s=100.0, default_deadline_s=1000.0)


@pytest.fixture(params=["memory", "redis"])
def rig(request: pytest.FixtureRequest, plain_settings: Settings) -> Rig:
    if request.param == "memory":
        return memory_rig(plain_settings)
    in_redis: Rig = request.getfixturevalue("in_redis")
    return in_redis


@pytest.fixture
def in_redis(
    client: Client,
    settings: Settings,
    plain_settings: Settings,
    open_store: Callable[[Settings], JobStore],
) -> Rig:
    chosen = plain_settings.model_copy(update={"redis_url": settings.redis_url})
    return redis_rig(client, chosen, open_store(chosen))


def answered(rig: Rig, **changes: Any) -> str:
    claim = rig.claim(rig.submit(**changes))
    assert rig.store.commit(answer(claim), claim.job.fence)
    return claim.job.id


# --- templates that move


def test_a_record_is_written_at_the_revision_it_was_chosen_in(rig: Rig) -> None:
    """At another nothing is written; no revision is 0."""
    rig.submit(revision=0)
    rig.move_template(7, ())
    for revision in (0, 6, 8):
        with pytest.raises(TemplateMoved) as caught:
            rig.submit(revision=revision)
        assert (caught.value.code, caught.value.exit_code) == ("template_moved", 7)
    rig.submit(revision=7)


def test_a_named_version_is_refused_when_it_is_retired(rig: Rig) -> None:
    """Whatever the revision; other versions are not."""
    rig.move_template(9, (REF.version + 1,))
    rig.submit()
    rig.move_template(10, (REF.version,))
    with pytest.raises(TemplateMoved):
        rig.submit()


def test_of_many_only_those_that_do_not_fit_are_refused(rig: Rig) -> None:
    """Each in its place, and nothing of them is left."""
    rig.move_template(2, ())
    submissions = [
        Submission(
            job=Job(id=new_job_id("acme"), ref=REF, queue="acme/triage/m", variables={}),
            input_digest="i",
            idempotency_key=f"k{n}",
            revision=2 - n % 2,
        )
        for n in range(4)
    ]
    outcomes = rig.store.submit_many(submissions)
    assert [isinstance(outcome, TemplateMoved) for outcome in outcomes] == [False, True] * 2
    states = rig.store.states([submission.job.id for submission in submissions])
    assert states == [JobState.QUEUED, None] * 2
    assert rig.store.find("acme", "k1", "i") is None
    assert rig.store.withdraw(submissions[1].job.id, idempotency_key="k1")


def test_a_job_is_found_before_its_template_is_looked_at(rig: Rig) -> None:
    """By its key and by its own id, as a client does that lost the reply."""
    job_id = rig.submit(revision=0, idempotency_key="k")
    rig.move_template(3, ())
    assert rig.submit(revision=0, idempotency_key="k") == job_id
    job = rig.store.get(job_id).job
    assert rig.store.submit(job, input_digest="i" * 64, revision=0).job_id == job_id


def test_finding_a_job_is_as_submitting_it_again(rig: Rig) -> None:
    """It counts, so that the first submit cannot take the job back; other input is a conflict."""
    assert rig.store.find("acme", "k", "i" * 64) is None
    job_id = rig.submit(idempotency_key="k")
    found = rig.store.find("acme", "k", "i" * 64)
    assert found is not None
    assert (found.job_id, found.created, found.state) == (job_id, False, JobState.QUEUED)
    assert not rig.store.withdraw(job_id, idempotency_key="k")
    with pytest.raises(Conflict, match=job_id):
        rig.store.find("acme", "k", "other")
    assert rig.store.find("globex", "k", "i" * 64) is None


def test_a_result_knows_the_rollout_of_its_job(rig: Rig) -> None:
    """Whoever made it: a worker, or nobody since the job was cancelled."""
    result = rig.store.get(answered(rig, rollout=ROLLOUT)).result
    assert result is not None
    assert result.rollout == ROLLOUT
    cancelled = rig.submit(rollout=ROLLOUT)
    rig.store.cancel(cancelled)
    result = rig.store.get(cancelled).result
    assert result is not None
    assert (result.rollout, result.to_dict()["rollout"]) == (ROLLOUT, ROLLOUT)
    result = rig.store.get(answered(rig)).result
    assert result is not None
    assert result.to_dict()["rollout"] is None


# --- scores


def test_the_last_score_of_a_name_counts(rig: Rig) -> None:
    """In the record; what a rollout knows has both, with the job, so that one is counted."""
    job_id = answered(rig, rollout=ROLLOUT)
    for name, value in (("quality", 0.25), ("tone", -3), ("quality", 0.75)):
        rig.store.score(job_id, name, value)
    assert rig.store.get(job_id).scores == {"quality": 0.75, "tone": -3.0}
    scores = [entry for entry in rig.outcomes(STREAM) if "score" in entry]
    assert [(e["score"], float(e["value"]), e["job"]) for e in scores] == [
        ("quality", 0.25, job_id[-32:]),
        ("tone", -3.0, job_id[-32:]),
        ("quality", 0.75, job_id[-32:]),
    ]


def test_a_job_of_no_rollout_is_scored_too(rig: Rig) -> None:
    """In its record alone."""
    job_id = answered(rig)
    rig.store.score(job_id, "quality", 1)
    assert rig.store.get(job_id).scores == {"quality": 1.0}
    assert rig.outcomes(STREAM) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quality", float("nan")),
        ("quality", float("inf")),
        ("quality", -float("inf")),
        ("quality", 1e13),
        ("quality", True),
        ("quality", "1"),
        ("quality", None),
        ("", 1.0),
        ("Quality", 1.0),
        ("a:b", 1.0),
        ("x" * 65, 1.0),
        (7, 1.0),
    ],
)
def test_what_is_no_score_is_refused(rig: Rig, name: Any, value: Any) -> None:
    """Before anything is asked or written."""
    job_id = answered(rig)
    with pytest.raises(InvalidInput):
        rig.store.score(job_id, name, value)
    assert rig.store.get(job_id).scores == {}


@pytest.mark.parametrize("value", [0.1 + 0.2, 1e-300, 1e12, -1e12, 123456789.123456789, 5e-324])
def test_any_score_that_is_taken_can_be_read(rig: Rig, value: float) -> None:
    """To twelve decimals."""
    job_id = answered(rig)
    rig.store.score(job_id, "quality", value)
    assert rig.store.get(job_id).scores["quality"] == pytest.approx(value, abs=1e-12)


def test_only_an_answer_is_scored(rig: Rig) -> None:
    """Neither a job that goes on nor one that failed, and none that is not there."""
    queued = rig.submit()
    running = rig.claim(rig.submit()).job.id
    claim = rig.claim(rig.submit())
    error = JobError(code="x", message="")
    failed = answer(claim, status=JobState.FAILED, error=error)
    assert rig.store.commit(failed, claim.job.fence)
    for job_id, state in ((queued, "queued"), (running, "running"), (claim.job.id, "failed")):
        with pytest.raises(Conflict, match=f"which is {state}"):
            rig.store.score(job_id, "quality", 1.0)
    with pytest.raises(NotFound):
        rig.store.score(new_job_id("acme"), "quality", 1.0)
    late = rig.submit(deadline_s=5.0)
    rig.advance(6.0)
    with pytest.raises(Conflict, match="expired"):
        rig.store.score(late, "quality", 1.0)


def test_a_job_has_sixteen_names_at_most(rig: Rig) -> None:
    """Those that are there can still be changed."""
    job_id = answered(rig)
    for number in range(MAX_SCORES):
        rig.store.score(job_id, f"s{number}", number)
    with pytest.raises(Conflict, match="16 names"):
        rig.store.score(job_id, "more", 1.0)
    rig.store.score(job_id, "s3", 33)
    scores = rig.store.get(job_id).scores
    assert (len(scores), scores["s3"]) == (16, 33.0)


def test_a_score_lets_the_record_live_no_longer(rig: Rig) -> None:
    """It expires as it would have."""
    job_id = answered(rig)
    rig.advance(60.0)
    rig.store.score(job_id, "quality", 1.0)
    rig.advance(50.0)
    with pytest.raises(NotFound):
        rig.store.score(job_id, "quality", 1.0)


def test_a_damaged_stream_costs_no_score(in_redis: Rig, client: Any) -> None:
    """The record has it."""
    job_id = answered(in_redis, rollout=ROLLOUT)
    client.delete(STREAM)
    client.set(STREAM, "x")
    in_redis.store.score(job_id, "quality", 1.0)
    assert in_redis.store.get(job_id).scores == {"quality": 1.0}
