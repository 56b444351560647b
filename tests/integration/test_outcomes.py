"""What the job scripts tell of a rollout's jobs, in Redis and in memory, and how it is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from contract import keys
from contract.errors import RedisRefused
from contract.job_store import JobStore
from contract.records import RedisJobStore
from contract.redis_client import Client
from contract.scripts import Scripts
from contract.settings import Settings
from contract.types import CacheInfo, CacheState, JobError, JobState, Usage
from templates.rollouts import outcomes as outcomes_module
from templates.rollouts.outcomes import JobOutcome, Outcomes, describe, read_both, read_outcomes
from templates.rollouts.rollout import Phase, Plan, Rollout
from tests.support.record_rig import REF, Rig, answer, memory_rig, redis_rig
from tests.support.redis_state import out_of_memory

ROLLOUT = "0123456789abcdef"
STREAM = keys.outcomes("acme", ROLLOUT, REF.digest)
HIT = {"cache": CacheInfo(state=CacheState.HIT), "usage": Usage(completion_tokens=5)}


@pytest.fixture
def plain_settings() -> Settings:
    return Settings(result_ttl_s=100.0, default_deadline_s=1000.0, max_attempts=2)


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


@pytest.fixture
def read(producer_client: Client, producer_settings: Settings) -> Callable[..., Outcomes]:
    """As a producer reads them."""

    def read_since(since: float = 0.0, digest: str = REF.digest) -> Outcomes:
        return read_outcomes(
            producer_client,
            producer_settings,
            tenant="acme",
            rollout=ROLLOUT,
            digest=digest,
            since=since,
        )

    return read_since


def run(rig: Rig, **changes: Any) -> str:
    """Submit, claim and commit a job of the rollout."""
    claim = rig.claim(rig.submit(rollout=ROLLOUT))
    assert rig.store.commit(answer(claim, **changes), claim.job.fence)
    return claim.job.id


def failure(code: str) -> dict[str, Any]:
    return {"status": JobState.FAILED, "error": JobError(code=code, message="")}


# --- what is noted


def test_a_job_of_a_rollout_leaves_its_outcome(rig: Rig) -> None:
    """State, cache state, seconds from submit, tokens and error code."""
    claim = rig.claim(rig.submit(rollout=ROLLOUT))
    rig.advance(5)
    assert rig.store.commit(answer(claim, **HIT), claim.job.fence)
    [found] = rig.outcomes(STREAM)
    assert float(found.pop("t")) == pytest.approx(5, abs=0.5)
    assert found == {"s": "succeeded", "c": "hit", "n": "5", "e": ""}


def test_the_rollout_stays_in_the_record(rig: Rig) -> None:
    """From submit to the end; a job of no rollout has none."""
    assert rig.store.get(run(rig)).job.rollout == ROLLOUT
    assert rig.store.get(rig.submit()).job.rollout == ""


def test_a_job_of_no_rollout_leaves_none(rig: Rig) -> None:
    """Its record names none."""
    claim = rig.claim(rig.submit())
    assert rig.store.commit(answer(claim), claim.job.fence)
    assert rig.outcomes(STREAM) == []


def test_a_failure_leaves_its_code(rig: Rig) -> None:
    """Whatever the job did not come to is counted as nothing."""
    run(rig, **failure("non_finite_logits"))
    [found] = rig.outcomes(STREAM)
    assert (found["s"], found["c"], found["n"], found["e"]) == (
        "failed",
        "off",
        "0",
        "non_finite_logits",
    )


def test_only_the_last_failed_attempt_is_an_outcome(rig: Rig) -> None:
    """Two attempts: the first leaves nothing, the second kills the job and says so once."""
    job_id = rig.submit(rollout=ROLLOUT)
    for seen in (0, 1):
        claim = rig.claim(job_id)
        result = answer(claim, **failure("out_of_memory"), **HIT)
        rig.store.retry(result, claim.job.fence, delay_s=0)
        rig.store.retry(result, claim.job.fence, delay_s=0)  # as a client that lost the reply
        assert [found["e"] for found in rig.outcomes(STREAM)] == ["out_of_memory"] * seen


def test_a_job_whose_workers_died_is_a_failure(rig: Rig) -> None:
    """It is buried by the claim that finds its attempts used up; no cache state is known."""
    job_id = rig.submit(rollout=ROLLOUT)
    for _ in range(2):
        rig.claim(job_id, lease_s=10)
        rig.advance(11)
    assert rig.refusal(job_id) == "dead"
    [found] = rig.outcomes(STREAM)
    assert (found["s"], found["c"], found["e"]) == ("failed", "", "attempts_exhausted")
    assert float(found["t"]) == pytest.approx(22, abs=0.5)


def test_a_repeated_or_refused_commit_adds_nothing(rig: Rig) -> None:
    """One outcome per job: the client repeats a call, and a stale worker is refused."""
    claim = rig.claim(rig.submit(rollout=ROLLOUT))
    for _ in range(2):
        assert rig.store.commit(answer(claim), claim.job.fence)
    assert not rig.store.commit(answer(claim, text="stale"), claim.job.fence)
    assert len(rig.outcomes(STREAM)) == 1


def test_jobs_that_were_cancelled_or_never_taken_are_no_outcomes(rig: Rig) -> None:
    """Cancelled by a worker or while it waits; expired in the queue, or once it was given back."""
    run(rig, status=JobState.CANCELLED)
    waiting, given_back = (rig.submit(rollout=ROLLOUT, deadline_s=10) for _ in range(2))
    claim = rig.claim(given_back)
    rig.store.release(given_back, claim.job.fence)
    rig.advance(11)
    assert [rig.refusal(job_id) for job_id in (waiting, given_back)] == ["expired"] * 2
    rig.store.cancel(rig.submit(rollout=ROLLOUT))
    assert rig.outcomes(STREAM) == []


def test_a_job_that_expires_in_a_workers_hands_is_an_outcome(rig: Rig) -> None:
    """Said by that worker."""
    run(rig, status=JobState.EXPIRED, error=JobError(code="expired", message=""), **HIT)
    [found] = rig.outcomes(STREAM)
    assert (found["s"], found["c"], found["n"], found["e"]) == ("expired", "hit", "5", "expired")


@pytest.mark.parametrize("way", ["its worker died", "it was to be tried again"])
def test_a_job_that_expires_after_it_was_taken_is_an_outcome(rig: Rig, way: str) -> None:
    """Found by whoever looks next: once, and as a failure."""
    job_id = rig.submit(rollout=ROLLOUT, deadline_s=10)
    claim = rig.claim(job_id, lease_s=5)
    if way == "it was to be tried again":
        rig.store.retry(answer(claim, **failure("out_of_memory")), claim.job.fence, delay_s=0)
    rig.advance(11)
    for _ in range(2):
        assert rig.store.get(job_id).state is JobState.EXPIRED
    [found] = rig.outcomes(STREAM)
    assert float(found.pop("t")) == pytest.approx(11, abs=0.5)
    assert found == {"s": "expired", "c": "", "n": "0", "e": "expired"}
    read = JobOutcome.read({k.encode(): v.encode() for k, v in (found | {"t": "11"}).items()})
    assert read.failed


@pytest.mark.unrestricted("operators revive jobs")
def test_a_revived_job_is_not_counted_again(rig: Rig) -> None:
    """It has died once, and how long it lay there says nothing of its version."""
    job_id = rig.submit(rollout=ROLLOUT)
    for _ in range(2):
        claim = rig.claim(job_id)
        rig.store.retry(answer(claim, **failure("out_of_memory")), claim.job.fence, delay_s=0)
    rig.store.revive(job_id)
    claim = rig.claim(job_id)
    assert rig.store.commit(answer(claim), claim.job.fence)
    assert [found["s"] for found in rig.outcomes(STREAM)] == ["failed"]


# --- in Redis


def test_the_stream_is_capped_and_expires(in_redis: Rig, client: Any) -> None:
    """In 7 days from the last outcome, and at about 20,000 entries."""
    pipe = client.pipeline(transaction=False)
    for _ in range(21_000):
        pipe.xadd(STREAM, {"s": "succeeded"})
    pipe.execute()
    run(in_redis)
    assert 20_000 <= client.xlen(STREAM) < 20_200
    assert client.pttl(STREAM) == pytest.approx(7 * 86_400_000, rel=0.01)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rollout", "x"),
        ("rollout", "../../globex:queued"),
        ("rollout", "0123456789abcdeF"),
        ("rollout", ""),
        ("digest", "d" * 63),
        ("digest", "*" * 64),
    ],
)
def test_a_record_that_names_no_rollout_is_no_outcome(
    in_redis: Rig, client: Any, field: str, value: str
) -> None:
    """A producer can write its records: the job is committed, and no key made of what it wrote."""
    claim = in_redis.claim(in_redis.submit(rollout=ROLLOUT))
    client.hset(keys.job(claim.job.id), field, value)
    before = set(client.keys("*"))
    assert in_redis.store.commit(answer(claim), claim.job.fence)
    assert set(client.keys("*")) <= before


def test_a_stream_that_cannot_be_written_costs_no_result(in_redis: Rig, client: Any) -> None:
    """A key of another type under its name, or no id left in it: the job ends all the same."""
    client.set(STREAM, "in the way")
    run(in_redis)
    client.delete(STREAM)
    client.xadd(STREAM, {"s": "x"}, id=f"{2**64 - 1}-{2**64 - 1}")
    run(in_redis)
    assert client.xlen(STREAM) == 1


@pytest.mark.unrestricted("changes the server's configuration")
def test_a_full_redis_refuses_the_whole_commit(in_redis: Rig, client: Any) -> None:
    """Nothing is noted of a result that was not written."""
    claim = in_redis.claim(in_redis.submit(rollout=ROLLOUT))
    with out_of_memory(client), pytest.raises(RedisRefused):
        in_redis.store.commit(answer(claim), claim.job.fence)
    assert in_redis.outcomes(STREAM) == []
    assert in_redis.store.commit(answer(claim), claim.job.fence)
    assert len(in_redis.outcomes(STREAM)) == 1


# --- reading


def test_what_was_noted_is_read(in_redis: Rig, read: Callable[..., Outcomes]) -> None:
    """Each version's jobs apart, and those before a time left out."""
    run(in_redis, **HIT)
    time.sleep(0.01)
    since = time.time()  # one machine: its clock is the server's
    time.sleep(0.01)
    run(in_redis, **failure("internal_error"))
    found = read()
    assert [job.state for job in found.jobs] == ["failed", "succeeded"]
    assert found.jobs[1].tokens == 5
    assert [job.error for job in read(since).jobs] == ["internal_error"]
    assert read(digest="e" * 64) == Outcomes()
    assert read(1e300) == Outcomes()
    assert len(read(-5.0).jobs) == 2


def test_scores_are_read_once_a_job_the_newest(client: Any, read: Callable[..., Outcomes]) -> None:
    """A job scored twice has its last score; jobs without an id are taken for different ones."""
    for job, value in (("a", 1), ("b", 2), ("a", 0.5)):
        client.xadd(STREAM, {"score": "human", "value": value, "job": job})
    client.xadd(STREAM, {"score": "bleu", "value": "3"})
    client.xadd(STREAM, {"score": "bleu", "value": "4"})
    assert {name: sorted(values) for name, values in read().scores.items()} == {
        "human": [0.5, 2.0],
        "bleu": [3.0, 4.0],
    }


def test_a_score_of_a_job_is_read(in_redis: Rig, read: Callable[..., Outcomes]) -> None:
    """As the store writes it; the last one of a job and name."""
    jobs = [run(in_redis), run(in_redis)]
    for job_id, value in ((jobs[0], 0.25), (jobs[1], 1.0), (jobs[0], 0.75)):
        in_redis.store.score(job_id, "human", value)
    found = read()
    assert sorted(found.scores["human"]) == [0.75, 1.0]
    assert len(found.jobs) == 2


@pytest.mark.parametrize("who", ["producer", "admin", "worker"])
def test_everybody_of_the_tenant_may_see_how_a_rollout_goes(
    request: pytest.FixtureRequest, in_redis: Rig, client: Any, who: str
) -> None:
    """Numbers of both versions since it began, as `rollout status` shows them."""
    client.hset(keys.versions("acme", "triage"), mapping={"3": REF.digest, "4": "e" * 64})
    for _ in range(3):
        run(in_redis, **HIT)
    run(in_redis, **failure("internal_error"))
    rollout = Rollout(
        id=ROLLOUT,
        plan=Plan(label="production", stable=4, canary=3, steps=(100,), bake_s=1.0),
        phase=Phase.BAKING,
        step=0,
        started_at=0.0,
        since=0.0,
    )
    login = request.getfixturevalue(f"{who}_client"), request.getfixturevalue(f"{who}_settings")
    stable, canary = describe(*login, "acme", "triage", rollout)
    assert (stable.role, stable.version, stable.summary.jobs) == ("stable", 4, 0)
    assert stable.summary.failure_rate is None
    plain = canary.to_dict()
    assert plain.pop("p50_s") <= plain.pop("p95_s") < 5
    assert plain == {
        "role": "canary",
        "version": 3,
        "digest": REF.digest,
        "jobs": 4,
        "failed": 1,
        "failure_rate": 0.25,
        "fallback_rate": 0.0,
        "mean_tokens": 5.0,
        "scores": {},
    }


GOOD = {"s": "succeeded", "c": "hit", "t": "1.5", "n": "8", "e": ""}


@pytest.mark.parametrize(
    "change",
    [
        {"s": "cancelled"},
        {"s": b"\xff"},
        {"c": "lukewarm"},
        {"t": "nan"},
        {"t": "-1"},
        {"t": "1e99"},
        {"t": "inf"},
        {"t": "٣"},
        {"t": ""},
        {"n": "-1"},
        {"n": "1e9"},
        {"n": "x"},
        {"e": "Robert'); --"},
        {"e": "x" * 65},
        {"score": "human"},
        {"score": "no name", "value": "1"},
        {"score": "human", "value": "nan"},
        {"score": "human", "value": "1e400"},
    ],
)
def test_what_is_no_outcome_is_left_out(
    client: Any,
    read: Callable[..., Outcomes],
    change: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A tenant's producers can write the stream; the entries beside it are read."""
    client.xadd(STREAM, GOOD)
    client.xadd(STREAM, GOOD | change)
    expected = JobOutcome(state="succeeded", cache="hit", seconds=1.5, tokens=8)
    assert read() == Outcomes(jobs=(expected,))


def test_the_names_of_scores_have_a_bound(client: Any, read: Callable[..., Outcomes]) -> None:
    """Hundreds of names are a mistake or malice, and each would be shown."""
    for number in range(100):
        client.xadd(STREAM, {"score": f"name-{number}", "value": "1"})
    assert len(read().scores) == 32


def test_reading_has_a_bound(
    client: Any, read: Callable[..., Outcomes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many entries, the newest, and so many bytes."""
    monkeypatch.setattr(outcomes_module, "MAX_READ", 600)
    pipe = client.pipeline(transaction=False)
    for number in range(700):
        pipe.xadd(STREAM, GOOD | {"n": number})
    pipe.execute()
    assert [job.tokens for job in read().jobs] == list(range(699, 99, -1))
    size = sum(len(name) + len(value) for name, value in (GOOD | {"n": "699"}).items())
    monkeypatch.setattr(outcomes_module, "_MAX_BYTES", 299 * size)
    assert len(read().jobs) == 300


def test_a_large_entry_never_comes_here(
    client: Any,
    read: Callable[..., Outcomes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenant's producer writes some of 2 MB among good ones: those are read, as far as the bound
    on all, and of the large ones the ids alone.
    """
    large = GOOD | {"x": "x" * 2 * 2**20}
    client.xadd(STREAM, GOOD | {"n": 1})
    for number in (2, 3, 4):
        client.xadd(STREAM, large)
        client.xadd(STREAM, GOOD | {"n": number})
    client.xadd(STREAM, GOOD | {"e": "x" * 1024})  # ours never are: left out, too
    came: list[int] = []
    run = Scripts.run

    def measured(scripts: Scripts, *args: Any, **terms: Any) -> Any:
        reply = run(scripts, *args, **terms)
        came.append(len(repr(reply)))
        return reply

    monkeypatch.setattr(Scripts, "run", measured)
    found = read()
    assert [job.tokens for job in found.jobs] == [4, 3]
    assert found.cut
    assert sum(came) < 2000
    monkeypatch.setattr(outcomes_module, "_MAX_BYTES", 2**30)
    whole = read()
    assert [job.tokens for job in whole.jobs] == [4, 3, 2, 1]
    assert not whole.cut


@pytest.mark.parametrize("busy", ["stable", "canary"])
def test_two_versions_are_read_over_the_same_time(
    client: Any,
    producer_client: Client,
    producer_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    busy: str,
) -> None:
    """One has a job each millisecond, of which the last 250 are read; the other every tenth."""
    monkeypatch.setattr(outcomes_module, "MAX_READ", 250)
    digests = ("a" * 64, "b" * 64)
    pipe = client.pipeline(transaction=False)
    for digest, every in zip(digests, (1, 10) if busy == "canary" else (10, 1), strict=True):
        for number in range(0, 1000, every):
            stream = keys.outcomes("acme", ROLLOUT, digest)
            pipe.xadd(stream, GOOD | {"n": number}, id=f"{5000 + number}-1")
            pipe.xadd(stream, {"score": "human", "value": number}, id=f"{5000 + number}-2")
    pipe.execute()

    def read(since: float) -> dict[str, Outcomes]:
        found = read_both(
            producer_client,
            producer_settings,
            tenant="acme",
            rollout=ROLLOUT,
            digests=digests,
            since=since,
        )
        return dict(zip(("canary", "stable"), found, strict=True))

    cut = read(5.0)
    other = "stable" if busy == "canary" else "canary"
    assert [job.tokens for job in cut[busy].jobs] == list(range(999, 874, -1))
    assert [job.tokens for job in cut[other].jobs] == list(range(990, 870, -10))
    assert min(cut[other].scores["human"]) == 880
    assert cut[busy].cut
    assert cut[other].cut
    whole = read(5.9)
    assert [len(of.jobs) for of in (whole[busy], whole[other])] == [100, 10]
    assert not whole[busy].cut
    assert not whole[other].cut


# --- pinned jobs


def test_unfinished_jobs_are_counted_by_version(rig: Rig) -> None:
    """Queued, waiting for another attempt, and running ones; ended ones and other templates not."""
    other = replace(REF, version=4, digest="e" * 64)
    elsewhere = replace(REF, template="letters", version=9)
    for ref in (REF, REF, other, elsewhere):
        rig.submit(ref=ref)
    running, retried, ended = (rig.claim(rig.submit(ref=ref)) for ref in (other, REF, REF))
    rig.claim(rig.submit(ref=elsewhere))
    rig.store.retry(answer(retried, **failure("out_of_memory")), retried.job.fence, delay_s=60)
    rig.store.commit(answer(ended), ended.job.fence)
    assert rig.store.pinned("acme", "triage") == {3: 3, 4: 2}
    assert rig.store.pinned("acme", "letters") == {9: 2}
    assert rig.store.pinned("acme", "nothing") == {}
    rig.store.commit(answer(running), running.job.fence)
    assert rig.store.pinned("acme", "triage") == {3: 3, 4: 1}


def test_many_pinned_jobs_are_counted_exactly(in_redis: Rig) -> None:
    """Over several batches of a set that Redis keeps as a skip list."""
    for _ in range(700):
        in_redis.submit()
    for _ in range(40):
        in_redis.claim(in_redis.submit())
    assert in_redis.store.pinned("acme", "triage") == {3: 740}


def test_what_is_no_job_is_not_counted(in_redis: Rig, client: Any) -> None:
    """Producers can write the indexes and records: such entries are passed over."""
    waiting = keys.waiting("acme", "triage")
    good, odd, other_kind = (in_redis.submit() for _ in range(3))
    client.hset(keys.job(odd), "version", "three")
    client.delete(keys.job(other_kind))
    client.lpush(keys.job(other_kind), "x")
    entries = ("x", b"\xff", "globex." + "0" * 32, "acme." + "0" * 32)
    client.zadd(waiting, dict.fromkeys(entries, 1.0))
    assert in_redis.store.pinned("acme", "triage") == {3: 1}
    assert good


def test_a_job_claimed_while_it_is_counted_is_counted_once(
    in_redis: Rig, client: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the waiting jobs before they are looked at, and is found among the running."""
    job_id = in_redis.submit()
    store = RedisJobStore(client, settings)
    zscan = client.zscan

    def claims_meanwhile(index: str, **terms: Any) -> Any:
        if index == keys.waiting("acme", "triage") and in_redis.store.states([job_id]) == [
            JobState.QUEUED
        ]:
            in_redis.claim(job_id)
        return zscan(index, **terms)

    monkeypatch.setattr(client, "zscan", claims_meanwhile)
    assert store.pinned("acme", "triage") == {3: 1}
