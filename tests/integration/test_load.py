"""What the look at Redis counts, against what the test did; damage, and its own rights."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from contract import keys
from contract.codec import pack
from contract.errors import RedisRefused, RedisUnreachable
from contract.ids import new_job_id
from contract.job_store import JobStore, TenantLimits
from contract.load import (
    KEPT_S,
    LEAST_RECORDS,
    MOST_IN_ALL,
    MOST_MODELS,
    MOST_OTHERS,
    MOST_RECORDS,
    SPAN_S,
    Asked,
    Load,
    LoadReader,
    Sight,
    _share,
)
from contract.records import RedisJobStore
from contract.redis_client import connect
from contract.settings import Settings
from contract.types import Job, JobState, VersionRef
from tests.support.record_rig import Rig, answer, redis_rig
from tests.support.tcp import closed_port_url
from worker.ringing import ring_first

HEX = "a" * 12


@pytest.fixture
def rig(client: Any, settings: Settings, open_store: Callable[[Settings], JobStore]) -> Rig:
    return redis_rig(client, settings, open_store(settings))


@pytest.fixture
def reader(worker_client: Any, worker_settings: Settings) -> LoadReader:
    """As a worker's user, who is the least that may look."""
    return LoadReader(worker_client, worker_settings)


def submit(rig: Rig, template: str = "triage", model: str = HEX, **terms: Any) -> str:
    ref = VersionRef(tenant="acme", template=template, version=1, digest="d" * 64)
    job = Job(
        id=new_job_id("acme"),
        ref=ref,
        queue=keys.queue("acme", template, model.ljust(64, "0")),
        variables={"ticket": "refund?"},
    )
    return rig.store.submit(job, input_digest="i" * 64, **terms).job_id


def look(reader: LoadReader, *asked: Asked, **more: Any) -> Sight:
    asked = asked or (Asked(tenant="acme", template="triage", models=(HEX,)),)
    return reader.look(asked, window_s=more.pop("window_s", 60.0), **more)


def one(reader: LoadReader, **more: Any) -> Load:
    [load] = look(reader, **more).loads
    return load


def test_an_empty_redis(reader: LoadReader) -> None:
    """All zero, and the queue is there since a model was named."""
    load = one(reader)
    assert (load.waiting, load.running, load.messages, load.unacked) == (0, 0, 0, 0)
    assert (load.recent.arrived, load.recent.ended, load.recent.service_s) == (0, 0, None)
    assert look(reader, Asked(tenant="acme", template="triage")).loads == ()


def test_each_state_is_counted(rig: Rig, reader: LoadReader) -> None:
    """What waits, runs, is delayed, has ended and came; by model and template."""
    waiting = [submit(rig) for _ in range(4)]
    submit(rig, model="b" * 12)
    submit(rig, template="mail")
    claims = [rig.claim(job_id) for job_id in waiting[:3]]
    assert rig.store.commit(answer(claims[0]), claims[0].job.fence)
    failed = answer(claims[1], status=JobState.FAILED)
    assert rig.store.retry(failed, claims[1].job.fence, 30.0) is JobState.QUEUED
    sight = look(
        reader,
        Asked(tenant="acme", template="triage", models=(HEX,)),
        Asked(tenant="acme", template="mail"),
    )
    mail, ours, other = sight.loads
    assert (mail.template, mail.waiting, mail.recent.arrived) == ("mail", 1, 1)
    assert (ours.model, ours.waiting, ours.delayed, ours.running) == (HEX, 2, 1, 1)
    assert (ours.recent.arrived, ours.recent.ended) == (4, 1)
    assert (ours.late, ours.oldest_s < 10) == (0, True)
    assert (other.model, other.waiting, other.recent.arrived) == ("b" * 12, 1, 1)
    assert not ours.estimated


def test_what_a_tenant_may_run_is_seen(
    rig: Rig, reader: LoadReader, client: Any, settings: Settings
) -> None:
    """None without a limit, and where the key is damaged."""
    submit(rig)
    assert one(reader).max_running is None
    RedisJobStore(client, settings).set_limits("acme", TenantLimits(max_running=3))
    assert one(reader).max_running == 3
    client.set(keys.limits("acme"), "x")
    assert one(reader).max_running is None


def test_service_time_is_from_claim_to_end(rig: Rig, reader: LoadReader, client: Any) -> None:
    """On Redis's clock; attempts that failed count to the job that ended."""
    for seconds in (2.0, 4.0):
        claim = rig.claim(submit(rig))
        _claimed_ago(client, claim.job.id, seconds)
        assert rig.store.commit(answer(claim), claim.job.fence)
    claim = rig.claim(submit(rig))
    _claimed_ago(client, claim.job.id, 6.0)
    rig.store.retry(answer(claim, status=JobState.FAILED), claim.job.fence, 30.0)
    flow = one(reader).recent
    assert flow.ended == 2
    assert flow.service_s == pytest.approx(6.0, abs=0.1)


def test_a_claim_from_the_future_took_no_time(rig: Rig, reader: LoadReader, client: Any) -> None:
    """Redis's clock may be set back; and a record may say anything."""
    for seconds in (2.0, -3600.0):
        claim = rig.claim(submit(rig))
        _claimed_ago(client, claim.job.id, seconds)
        assert rig.store.commit(answer(claim), claim.job.fence)
    assert one(reader).recent.service_s == pytest.approx(1.0, abs=0.1)


def _claimed_ago(client: Any, job_id: str, seconds: float) -> None:
    now = client.time()[0] + client.time()[1] / 1e6
    client.hset(keys.job(job_id), "claimed_at", f"{now - seconds:.6f}")


def test_age_of_the_oldest(rig: Rig, reader: LoadReader) -> None:
    """Since its submit, whatever the deadlines say."""
    submit(rig, deadline_s=500.0)
    rig.advance(20.0)
    submit(rig, deadline_s=100.0)
    assert one(reader).oldest_s == pytest.approx(20.0, abs=0.5)


def test_jobs_past_their_deadline_do_not_wait(rig: Rig, reader: LoadReader) -> None:
    """Nobody will run them."""
    submit(rig, deadline_s=5.0)
    submit(rig)
    rig.advance(6.0)
    assert one(reader).waiting == 1


def test_a_dead_workers_job_is_late(rig: Rig, reader: LoadReader) -> None:
    """Its record runs, its lease has ended."""
    rig.claim(submit(rig), lease_s=10.0)
    rig.advance(11.0)
    load = one(reader)
    assert (load.running, load.late) == (1, 1)


def test_all_lists_of_a_queue_are_counted(
    rig: Rig, reader: LoadReader, client: Any, settings: Settings
) -> None:
    """kombu has one per priority; and what workers have taken is told apart by queue."""
    queue = f"acme/triage/{HEX}"
    for _ in range(2):
        ring_first(client, settings, queue, submit(rig))
    client.rpush(f"{keys.messages(queue)}\x06\x163", "x")
    client.rpush(f"{keys.messages(queue)}\x06\x169", "x", "y")
    for tag, of in enumerate((queue, queue, f"globex/mail/{HEX}")):
        client.hset(keys.messages("unacked"), f"t{tag}", json.dumps([{"body": "x"}, "", of]))
    sight = look(reader)
    [load] = sight.loads
    assert (load.waiting, load.messages, load.unacked, sight.unacked) == (2, 5, 2, 3)
    assert one(reader, most=2).unacked is None  # too many to be told apart


def test_beyond_the_most_records_the_rest_is_estimated(rig: Rig, reader: LoadReader) -> None:
    """The sum stays exact; which model a job is for is known of the first ones."""
    for n in range(12):
        submit(rig, model=HEX if n % 2 else "b" * 12)
    first, second = look(reader, most=4).loads
    assert first.estimated
    assert (first.waiting, second.waiting) == (6, 6)
    assert not any(load.estimated for load in look(reader, most=12).loads)
    for _ in range(9):
        submit(rig, template="mail")
    [mail] = look(reader, Asked(tenant="acme", template="mail"), most=4).loads
    assert (mail.waiting, mail.estimated) == (9, False)


def test_all_templates_share_one_budget(rig: Rig, reader: LoadReader) -> None:
    """Of each are seen as many as of the others, and no fewer than LEAST_RECORDS."""
    many = LEAST_RECORDS + 5
    asked = [Asked(tenant="acme", template=name) for name in ("mail", "triage")]
    for template in ("mail", "triage"):
        for n in range(many):
            submit(rig, template=template, model=HEX if n % 2 else "b" * 12)

    def estimated(*some: Asked, **terms: Any) -> set[bool]:
        return {load.estimated for load in look(reader, *some, **terms).loads}

    assert estimated(*asked) == {False}
    assert estimated(*asked, in_all=4 * many) == {False}
    assert estimated(*asked, in_all=4 * many - 4) == {True}
    assert estimated(asked[0], in_all=4 * many - 4) == {False}
    loads = look(reader, *asked, in_all=1).loads
    assert [load.waiting for load in loads] == [round(many / 2)] * 4
    # As many that run are looked at as there are of both templates together, by the end of leases.
    for _ in range(2 * LEAST_RECORDS):
        rig.claim(submit(rig), lease_s=10.0)
    for _ in range(10):
        rig.claim(submit(rig, template="mail"), lease_s=60.0)
    running = {(load.template, load.model): load.running for load in look(reader, *asked).loads}
    assert (running["mail", HEX], running["triage", HEX]) == (10, 2 * LEAST_RECORDS)
    loads = look(reader, *asked, in_all=1).loads
    running = {(load.template, load.model): load.running for load in loads}
    assert (running["mail", HEX], running["triage", HEX]) == (0, 2 * LEAST_RECORDS + 10)


def test_what_is_looked_at_is_bounded() -> None:
    """Whatever is asked for: one look's records, and a template's own cost beside them."""
    for templates in (1, 10, 11, 300, 1_000, 50_000):
        each = _share(templates, MOST_RECORDS, MOST_IN_ALL)
        assert 2 * templates * each <= max(MOST_IN_ALL, 2 * templates * LEAST_RECORDS)
        assert LEAST_RECORDS <= each <= MOST_RECORDS
    assert _share(10, MOST_RECORDS, MOST_IN_ALL) == MOST_RECORDS
    assert _share(0, MOST_RECORDS, MOST_IN_ALL) == MOST_RECORDS


def test_counters_of_models_that_nobody_knows_are_not_read(
    rig: Rig, reader: LoadReader, client: Any
) -> None:
    """A producer may count for any model: it makes no row, and no more work."""
    submit(rig)
    submit(rig, model="b" * 12)
    span = client.time()[0] // SPAN_S
    client.hset(
        keys.flow("acme", span - 1),
        mapping={f"in:triage/{n:012x}": 1 for n in range(20_000)} | {f"in:triage/{HEX}": 5},
    )
    loads = look(reader).loads
    assert [load.model for load in loads] == [HEX, "b" * 12]
    assert [load.recent.arrived for load in loads] == [6, 1]


def test_only_so_many_models_of_records_are_told_apart(
    rig: Rig, reader: LoadReader, client: Any
) -> None:
    """A record may name any; those that were asked for are always among them."""
    for n in range(MOST_OTHERS + 4):
        submit(rig, model=f"{n:012x}")
    running = rig.claim(submit(rig)).job.id
    submit(rig)
    loads = look(reader).loads
    assert len(loads) == MOST_OTHERS + 1
    [ours] = [load for load in loads if load.model == HEX]
    assert (ours.waiting, ours.running) == (1, 1)
    client.hset(keys.job(running), "queue", "acme/triage/" + "c" * 12)
    assert len(look(reader).loads) == MOST_OTHERS + 1
    asked = Asked(tenant="acme", template="none", models=tuple(f"{n:012x}" for n in range(500)))
    assert len(look(reader, asked).loads) == MOST_MODELS


def test_each_of_many_templates_has_its_own_counters(reader: LoadReader, client: Any) -> None:
    """They lie in one hash, and more of them are read than Lua takes values in one call."""
    key, count = keys.flow("acme", client.time()[0] // SPAN_S), 3_000
    client.hset(key, mapping={f"in:t{n}/{HEX}": n for n in range(count)})
    asked = [Asked(tenant="acme", template=f"t{n}", models=(HEX,)) for n in range(count)]
    found = {load.template: load.recent.arrived for load in look(reader, *asked).loads}
    assert found == {f"t{n}": n for n in range(count)}


def test_rates_are_over_whole_spans(rig: Rig, reader: LoadReader, client: Any) -> None:
    """What came before the window is in `kept` alone, and what is too old in neither."""
    submit(rig)
    now = client.time()[0]
    for ago, count in ((5, 7), (25, 70)):
        key = keys.flow("acme", now // SPAN_S - ago)
        counts = {"in": count, "out": count, "busy": 2000}
        client.hset(key, mapping={f"{kind}:triage/{HEX}": n for kind, n in counts.items()})
    load = one(reader, window_s=60.0)
    assert (load.recent.arrived, load.kept.arrived) == (8, 78)
    assert 50 <= load.recent.seconds <= 61
    assert load.recent.arrivals_per_s == pytest.approx(8 / load.recent.seconds)
    assert one(reader, window_s=20.0).recent.arrived == 1


def test_counters_expire(rig: Rig, client: Any) -> None:
    """An idle template leaves nothing."""
    claim = rig.claim(submit(rig))
    rig.store.commit(answer(claim), claim.job.fence)
    found = client.keys(keys.flow("acme", "*"))
    assert found
    for key in found:
        assert KEPT_S - 60 < client.ttl(key) <= KEPT_S


def test_a_repeated_call_is_counted_once(rig: Rig, reader: LoadReader) -> None:
    """A client that lost a reply submits and commits again."""
    job_id = submit(rig, idempotency_key="k")
    assert submit(rig, idempotency_key="k") == job_id
    claim = rig.claim(job_id)
    for _ in range(2):
        assert rig.store.commit(answer(claim), claim.job.fence)
    flow = one(reader).recent
    assert (flow.arrived, flow.ended) == (1, 1)


def test_ends_without_a_worker_are_not_counted(rig: Rig, reader: LoadReader) -> None:
    """A cancelled job took nobody's time."""
    rig.store.cancel(submit(rig))
    flow = one(reader).recent
    assert (flow.arrived, flow.ended) == (1, 0)


def test_a_submit_that_is_taken_back_did_not_come(
    rig: Rig, reader: LoadReader, client: Any
) -> None:
    """Else a batch that is refused near its end has workers started for nothing."""
    for _ in range(2):
        jobs = [submit(rig) for _ in range(5)]
        for job_id in jobs[:4]:
            assert rig.store.withdraw(job_id)
        assert rig.store.withdraw(jobs[0])  # gone: it is not counted back twice
    assert one(reader).recent.arrived == 2
    rig.claim(jobs[4])
    assert not rig.store.withdraw(jobs[4])
    assert one(reader).recent.arrived == 2


def test_a_submit_is_counted_back_where_it_was_counted(
    rig: Rig, reader: LoadReader, client: Any
) -> None:
    """Its own span; less than nothing counts as nothing, and leaves no counter for ever."""
    job_id, now = submit(rig), client.time()[0]
    earlier = keys.flow("acme", now // SPAN_S - 3)
    client.hset(earlier, f"in:triage/{HEX}", 7)
    client.hset(keys.job(job_id), "created_at", f"{now - 30:.6f}")
    assert rig.store.withdraw(job_id)
    assert client.hget(earlier, f"in:triage/{HEX}") == b"6"
    client.delete(earlier)
    job_id = submit(rig)
    client.hset(keys.job(job_id), "created_at", f"{now - 30:.6f}")
    assert rig.store.withdraw(job_id)
    assert client.hget(earlier, f"in:triage/{HEX}") == b"-1"
    assert 0 < client.ttl(earlier) <= KEPT_S
    assert one(reader).recent.arrived == 2


@pytest.mark.parametrize(
    "value", ["", "nan", "-inf", "inf", "1e300", "-5", "9", "x" * 2000, b"\xff"],
    ids=["none", "nan", "-inf", "inf", "huge", "below", "old", "long", "bytes"],
)  # fmt: skip
def test_a_forged_time_of_submit_counts_nothing_back(rig: Rig, client: Any, value: Any) -> None:
    """The job is erased all the same."""
    job_id = submit(rig)
    before = set(client.keys(keys.flow("acme", "*")))
    client.hset(keys.job(job_id), "created_at", value)
    assert rig.store.withdraw(job_id)
    assert rig.store.states([job_id]) == [None]
    assert set(client.keys(keys.flow("acme", "*"))) == before


@pytest.mark.parametrize("field", ["claimed_at", "queue", "template"])
@pytest.mark.parametrize("value", ["", "nan", "-inf", "x" * 2000, "acme/../\n", b"\xff\xfe"])
def test_a_forged_record_is_no_reason_to_fail(
    rig: Rig, reader: LoadReader, client: Any, field: str, value: Any
) -> None:
    """A producer writes its records: the job is committed, and the look works."""
    claim = rig.claim(submit(rig))
    client.hset(keys.job(claim.job.id), field, value)
    assert rig.store.commit(answer(claim), claim.job.fence)
    forged = submit(rig)
    client.hset(keys.job(forged), mapping={field: value, "created_at": value, "not_before": value})
    load = one(reader)
    assert load.waiting in (0, 1)
    assert 0 <= load.oldest_s < 10**9


@pytest.mark.parametrize("kind", ["string", "list", "words", "huge"])
def test_damaged_counters_stop_nobody(rig: Rig, reader: LoadReader, client: Any, kind: str) -> None:
    """Submit and commit go on; what cannot be read counts as nothing."""
    span = client.time()[0] // SPAN_S
    for n in range(-1, 4):
        key = keys.flow("acme", span + n)
        match kind:
            case "string":
                client.set(key, "x")
            case "list":
                client.rpush(key, "x")
            case "words":
                client.hset(
                    key,
                    mapping={
                        f"in:triage/{HEX}": "many",
                        "in:": 1,
                        "in:triage/": 1,
                        "x": 2,
                        "out:triage/" + "g" * 12: 1,
                    },
                )
            case "huge":
                client.hset(key, mapping={f"in:triage/{HEX}": "9" * 30, f"busy:triage/{HEX}": "-5"})
    claim = rig.claim(submit(rig))
    assert rig.store.commit(answer(claim), claim.job.fence)
    load = one(reader)
    assert load.recent.arrived == 0
    assert load.running == 0


def test_one_tenants_damage_hides_no_other(rig: Rig, reader: LoadReader, client: Any) -> None:
    """It is left out by name."""
    client.set(keys.running("globex"), "x")
    submit(rig)
    sight = look(
        reader,
        Asked(tenant="acme", template="triage"),
        Asked(tenant="globex", template="triage", models=(HEX,)),
    )
    assert [load.tenant for load in sight.loads] == ["acme"]
    assert set(sight.unreadable) == {"globex"}
    with pytest.raises(RedisRefused):
        look(reader, Asked(tenant="globex", template="triage"))


def test_strange_members_are_passed_over(rig: Rig, reader: LoadReader, client: Any) -> None:
    """Ids that are none, of other tenants, and of records that are no hash."""
    submit(rig)
    last = client.time()[0] + 1000
    strange = ["x", "globex." + "0" * 32, b"\xff", "acme." + "1" * 32, "acme.*"]
    for key in (keys.waiting("acme", "triage"), keys.running("acme")):
        client.zadd(key, dict.fromkeys(strange, last))
    client.set(keys.job("acme." + "1" * 32), "x")
    client.hset(keys.job(submit(rig)), "state", "succeeded")
    load = one(reader)
    assert (load.running, load.late) == (0, 0)
    assert (load.waiting, load.estimated) == (1, False)


def test_workers_are_of_the_same_moment(reader: LoadReader, client: Any) -> None:
    """Reports that expired or cannot be read are left out."""
    client.zadd(keys.WORKERS, {"w1": 1, "w2": 2, "w3": 3, b"\xff": 4})
    client.set(keys.worker("w1"), pack({"id": "w1", "batch_size": 4}))
    client.set(keys.worker("w3"), b"\xc1")
    [report] = look(reader).workers
    assert report == {"id": "w1", "batch_size": 4, "templates": [], "versions": []}


def test_redis_away(settings: Settings) -> None:
    """An error that says so, not an empty queue."""
    away = settings.model_copy(update={"redis_url": closed_port_url()})
    with connect(away) as client, pytest.raises(RedisUnreachable):
        look(LoadReader(client, away))
