"""What a hostile tenant writes where it may write: nobody who reads it later is led astray."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu import Consumer, transport as kombu_transport

from contract import keys
from contract.celery_app import TASK_NAME, make_celery, make_queue
from contract.codec import pack
from contract.job_store import Claimed
from contract.records import RedisJobStore
from contract.redis_client import text
from contract.users import WORKER, Role
from producer import Producer
from templates.registry import Registry
from tests.support.published import MODEL
from tests.support.two_tenants import ACME, GLOBEX, TICKET, TwoTenants
from worker.catalog import Catalog
from worker.doorbell import job_in
from worker.janitor import Janitor
from worker.transport import Transport

PRODUCER, ADMIN = ACME[Role.PRODUCER], ACME[Role.ADMIN]
JUNK_NAMES = (b"\xff", "No Name", "a/b", "a:b", "", "*")

Rung = list[tuple[str, str]]

# --- records, indexes and templates


@pytest.fixture
def producer(tenants: TwoTenants) -> Iterator[Producer]:
    with tenants.producing(PRODUCER) as opened:
        yield opened


@pytest.fixture
def by_hand(tenants: TwoTenants) -> Iterator[Any]:
    """Where the producer's credentials are used without prefillq."""
    with tenants.client_of(PRODUCER) as client:
        yield client


@pytest.fixture
def sweep(tenants: TwoTenants) -> Iterator[Callable[[], Rung]]:
    """Sweep as a worker to which all queued jobs are overdue and rung for by nobody else."""
    settings = tenants.settings_of(WORKER).model_copy(update={"lease_s": 0.02})
    with tenants.client_of(WORKER) as client:

        def run() -> Rung:
            for tenant in ("acme", "globex"):
                queued = keys.queued(tenant)
                if tenants.operator.type(queued) == b"zset":
                    for entry in tenants.operator.zrange(queued, 0, -1):
                        tenants.operator.zadd(queued, {entry: 0})
            janitor = Janitor(
                client=client,
                settings=settings,
                store=RedisJobStore(client, settings),
                worker_id="w1",
            )
            tenants.operator.delete(keys.JANITOR, *tenants.operator.keys(f"{keys.BROKER_PREFIX}*"))
            time.sleep(0.03)
            janitor.sweep()
            return [
                (queue, job_id)
                for key in tenants.operator.keys(f"{keys.BROKER_PREFIX}*")
                for entry in tenants.operator.lrange(key, 0, -1)
                if (queue := text(key).removeprefix(keys.BROKER_PREFIX))
                if (job_id := job_in(entry, queue))
            ]

        yield run


def test_a_forged_record_rings_no_other_queue(
    tenants: TwoTenants, producer: Producer, by_hand: Any, sweep: Callable[[], Rung]
) -> None:
    """The janitor rings with the workers' rights, but only where the job's tenant may ring."""
    theirs = (tenants.queue_name("globex"), tenants.jobs["globex"])
    for forged in (tenants.queue_name("globex"), "unacked", b"\xff/x"):
        job = producer.submit("acme/triage", TICKET)
        by_hand.hset(keys.job(job.id), "queue", forged)
        rung = sweep()
        assert theirs in rung, "nothing was swept"
        assert job.id not in [job_id for _, job_id in rung]
        assert tenants.operator.zscore(keys.queued("acme"), job.id) is None


def test_a_forged_record_touches_no_other_index(
    tenants: TwoTenants, producer: Producer, by_hand: Any
) -> None:
    """A worker's claim and release write keys of the job's tenant, whatever its record says."""
    operator, theirs = tenants.operator, keys.waiting("globex", "triage")
    job = producer.submit("acme/triage", TICKET)
    forged = {"waiting": theirs, "template": "x:../../globex:waiting:y"}
    by_hand.hset(keys.job(job.id), mapping=forged)
    before = operator.zrange(theirs, 0, -1)
    with tenants.client_of(WORKER) as client:
        store = RedisJobStore(client, tenants.settings_of(WORKER))
        claim = store.claim(job.id, "w1", 60)
        assert isinstance(claim, Claimed)
        assert store.release(job.id, claim.job.fence)
    assert operator.zrange(theirs, 0, -1) == before
    sets = [key for key in operator.keys("*") if operator.type(key) == b"zset"]
    holding = [key for key in sets if operator.zscore(key, job.id) is not None]
    assert all(key.startswith(b"pq:acme:") for key in holding)
    job.cancel()


def test_junk_in_an_index_keeps_no_other_job_waiting(
    tenants: TwoTenants, producer: Producer, by_hand: Any, sweep: Callable[[], Rung]
) -> None:
    """Bytes that are no text, ids of another tenant, names of other keys."""
    theirs = tenants.jobs["globex"].encode()
    junk = {b"\xff\xfe", b"x", b"globex." + b"0" * 32, theirs, b"pq:_workers", b""}
    job = producer.submit("acme/triage", TICKET)
    by_hand.zadd(keys.queued("acme"), dict.fromkeys(junk, 0))
    rung = [job_id.encode() for _, job_id in sweep()]
    assert rung.count(theirs) == 1, "by its own tenant's index alone"
    assert job.id.encode() in rung
    assert not junk & set(tenants.operator.zrange(keys.queued("acme"), 0, -1))
    job.cancel()


def test_one_tenants_damage_stops_no_sweep(tenants: TwoTenants, sweep: Callable[[], Rung]) -> None:
    """An index of another type, which only an operator can leave: the other tenants are swept."""
    operator, index = tenants.operator, keys.queued("acme")
    kept = operator.dump(index)
    operator.set(index, "x")
    try:
        assert tenants.jobs["globex"] in [job_id for _, job_id in sweep()]
    finally:
        operator.delete(index)
        if kept:
            operator.restore(index, 0, kept)


@pytest.mark.parametrize(
    "write",
    [
        lambda c: c.sadd(keys.templates("acme"), b"\xff", "No Name", "a/b", "a:b", "", "*"),
        lambda c: c.hset(
            keys.versions("acme", "triage"), mapping={"x": "y", "-1": "d", b"\xff": 1}
        ),
        lambda c: c.hset(
            keys.labels("acme", "triage"), mapping={"canary": "no number", b"\xff": 9}
        ),
    ],
    ids=["names", "versions", "labels"],
)
def test_junk_in_a_registry_hides_no_other_template(tenants: TwoTenants, write: Any) -> None:
    """A tenant's admin writes bytes that are no names and numbers; workers serve the rest."""
    with tenants.client_of(ADMIN) as client:
        write(client)
    with tenants.client_of(WORKER) as client:
        catalog = Catalog(
            client=client,
            settings=tenants.settings_of(WORKER),
            registry=Registry(client, tenants.settings_of(WORKER)),
            model_digest=MODEL.model_digest,
        )
        found = catalog.refresh()
        triage = [served for served in found if served.template == "triage"]
        assert [served.tenant for served in triage] == ["acme", "globex"]
        for served in triage:
            assert [version.ref.version for version in catalog.labelled(served)] == [1]
    operator = tenants.operator
    operator.srem(keys.templates("acme"), *JUNK_NAMES)
    operator.hdel(keys.versions("acme", "triage"), "x", "-1", b"\xff")
    operator.hdel(keys.labels("acme", "triage"), "canary", b"\xff")


# --- what a hostile producer sends through its own queue


def raw_message(job_id: str, **delivery_info: str) -> str:
    """A message as kombu reads it, made without kombu."""
    callback = {"task": TASK_NAME, "args": [job_id], "kwargs": {}, "options": delivery_info}
    body = pack([[job_id], {}, {"callbacks": [callback], "errbacks": [callback], "chain": None}])
    return json.dumps(
        {
            "body": base64.b64encode(body).decode("ascii"),
            "content-type": "application/x-msgpack",
            "content-encoding": "binary",
            "headers": {"lang": "py", "task": TASK_NAME, "id": "x", "eta": "2040-01-01T00:00:00"},
            "properties": {
                "body_encoding": "base64",
                "delivery_info": delivery_info,
                "delivery_tag": "chosen",
                "correlation_id": "x",
            },
        }
    )


@pytest.fixture
def consuming(
    tenants: TwoTenants, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], list[Any]]]:
    """A worker's consumer of both queues without Celery around it: call it for the messages."""
    # What `transport.install` does, in a process where kombu may have been used already.
    monkeypatch.setitem(kombu_transport._transport_cache, "redis", Transport)
    queues = [make_queue(tenants.queue_name(tenant)) for tenant in ("acme", "globex")]
    tenants.operator.delete(*(tenants.queue(tenant) for tenant in ("acme", "globex")))
    app = make_celery(tenants.settings_of(WORKER))
    received: list[Any] = []
    with app.connection_for_read() as connection:

        def drain() -> list[Any]:
            with Consumer(
                connection, queues=queues, accept=["msgpack"], on_message=received.append
            ):
                try:
                    while True:
                        connection.drain_events(timeout=1.5)
                except TimeoutError:
                    return received

        yield drain
    app.close()


def test_a_message_that_is_put_back_stays_in_its_tenants_queue(
    tenants: TwoTenants, by_hand: Any, consuming: Callable[[], list[Any]]
) -> None:
    """It names another tenant's queue to return to; the worker returns it to where it was."""
    theirs = tenants.queue_name("globex")
    forged = raw_message(tenants.jobs["acme"], exchange="", routing_key=theirs)
    by_hand.lpush(tenants.queue("acme"), forged)
    [message] = consuming()
    assert message.payload == [[tenants.jobs["acme"]], {}, {}]
    assert message.headers.get("eta") is None
    message.reject(requeue=True)
    operator = tenants.operator
    assert operator.llen(tenants.queue("acme")) == 1
    assert operator.llen(tenants.queue("globex")) == 0
    assert not operator.exists(keys.messages("unacked"))


def test_a_message_with_another_tenants_job_is_dropped(
    tenants: TwoTenants, by_hand: Any, consuming: Callable[[], list[Any]]
) -> None:
    """An id that leaked rings for nobody but its tenant."""
    leaked = raw_message(
        tenants.jobs["globex"], exchange="", routing_key=tenants.queue_name("acme")
    )
    by_hand.lpush(tenants.queue("acme"), leaked)
    assert consuming() == []
    assert not tenants.operator.exists(keys.messages("unacked"))


def test_honest_messages_come_in_at_the_same_door(
    tenants: TwoTenants, consuming: Callable[[], list[Any]]
) -> None:
    """Those of both tenants' producers."""
    made = []
    for user in (PRODUCER, GLOBEX[Role.PRODUCER]):
        with tenants.producing(user) as producer:
            made.append(producer.submit(f"{user.tenant}/triage", TICKET).id)
    messages = consuming()
    assert sorted(message.payload[0][0] for message in messages) == sorted(made)
    for message in messages:
        message.ack()
