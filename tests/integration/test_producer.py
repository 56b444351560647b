"""A producer against a real Redis, and against Redis servers that are away or half-open."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from contract import keys
from contract.celery_app import TASK_NAME
from contract.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    PrefillqError,
    RedisRefused,
    RedisUnreachable,
)
from contract.job_store import Claimed
from contract.records import RedisJobStore
from contract.settings import Settings
from contract.types import JobState, Result
from producer import Producer
from producer.bell import CeleryBell
from templates.registry import Registry
from tests.support.proxy import Proxy
from tests.support.published import COMPILED, MODEL, make_spec
from tests.support.redis_state import out_of_memory
from tests.support.tcp import SilentServer, closed_port_url

TICKET = {"ticket": "refund?"}
BOUND_S = 5.0
QUEUE = keys.BROKER_PREFIX + keys.queue("acme", "triage", MODEL.model_digest)


@pytest.fixture(autouse=True)
def published(registry: Registry) -> Registry:
    """acme/triage, version 1."""
    registry.publish(make_spec(), COMPILED, MODEL)
    return registry


@pytest.fixture
def store(worker_client: Any, worker_settings: Settings) -> RedisJobStore:
    return RedisJobStore(worker_client, worker_settings)


def run_job(store: RedisJobStore, job_id: str, text: str = "billing") -> None:
    claim = store.claim(job_id, "w1", 60)
    assert isinstance(claim, Claimed)
    result = Result(job_id=job_id, ref=claim.job.ref, status=JobState.SUCCEEDED, text=text)
    assert store.commit(result, claim.job.fence)


def bounded(act: Callable[[], object], error: type[PrefillqError] = RedisUnreachable) -> Any:
    """What `act` raises, which it must within BOUND_S seconds."""
    started = time.monotonic()
    with pytest.raises(error) as caught:
        act()
    assert time.monotonic() - started < BOUND_S
    return caught.value


# --- Redis is there


def test_a_message_carries_the_id_and_nothing_else(producer: Producer, client: Any) -> None:
    """Case Q19: a 0.9 MB variable is stored once, in the record; the body is msgpack of the id."""
    handle = producer.submit("acme/triage", {"ticket": "x" * 900_000})
    assert client.llen(QUEUE) == 1
    raw = client.lindex(QUEUE, 0)
    assert len(raw) < 2000
    message = json.loads(raw)
    assert message["content-type"] == "application/x-msgpack"
    assert message["headers"]["task"] == TASK_NAME
    body = base64.b64decode(message["body"])
    assert msgpack.unpackb(body)[0] == [handle.id]
    assert client.memory_usage(keys.job(handle.id), samples=0) < 1_200_000


def test_a_result_comes_back(producer: Producer, store: RedisJobStore) -> None:
    """Waiting in one thread, running in another: the whole result arrives."""
    handle = producer.submit("acme/triage", TICKET)
    threading.Timer(0.1, run_job, [store, handle.id]).start()
    result = handle.result(timeout=20)
    assert (result.text, result.ref.version) == ("billing", 1)
    assert handle.status() is JobState.SUCCEEDED


def test_a_thousand_handles_use_one_connection_more(
    producer: Producer, store: RedisJobStore, client: Any
) -> None:
    """Case Q14: however many wait, one pub/sub connection serves them; all come back."""
    handles = producer.submit_many("acme/triage", ({"ticket": str(n)} for n in range(1000)))

    def run_all() -> None:
        for handle in handles:
            run_job(store, handle.id)

    waiting = producer.wait(handles, timeout=60)
    runner = threading.Thread(target=run_all)
    runner.start()
    found, subscribers = set(), []
    for count, handle in enumerate(waiting):
        found.add(handle)
        if count % 100 == 50:
            subscribers.append(client.pubsub_numsub(keys.notices("acme"))[0][1])
    runner.join()
    assert found == set(handles)
    assert max(subscribers) == 1


def test_a_new_label_is_seen_by_the_next_submit(producer: Producer, published: Registry) -> None:
    """The version is read from Redis on every submit, never from the process's memory."""
    published.publish(make_spec(text="Other: "), COMPILED, MODEL)
    assert producer.submit("acme/triage", TICKET).view().job.ref.version == 1
    published.set_label("acme", "triage", "production", 2)
    assert producer.submit("acme/triage", TICKET).view().job.ref.version == 2


def test_the_same_key_from_many_threads_is_one_job(producer: Producer, client: Any) -> None:
    """Case Q17: sixteen submits at once, one record."""
    found: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(
                producer.submit("acme/triage", TICKET, idempotency_key="k").id
            )
        )
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(found)) == 1
    assert len(client.keys("pq:acme:job:*")) == 1


@pytest.mark.parametrize(
    ("template", "variables", "error"),
    [
        ("acme/triag", TICKET, NotFound),
        ("acme/triage@2", TICKET, NotFound),
        ("acme/triage", {"ticket": 2**70}, InvalidInput),
        ("acme triage", TICKET, InvalidInput),
    ],
)
def test_what_is_refused_leaves_redis_as_it_was(
    producer: Producer, client: Any, template: str, variables: Any, error: type[PrefillqError]
) -> None:
    """Cases Q10 and Q12: no record, no queue, no message."""
    before = sorted(client.keys("*"))
    with pytest.raises(error):
        producer.submit(template, variables)
    assert sorted(client.keys("*")) == before


def test_cancel_before_start_and_after_the_end(producer: Producer, store: RedisJobStore) -> None:
    """Case Q15: a queued job is ended, an ended one is a conflict."""
    queued, done = producer.submit_many("acme/triage", [TICKET] * 2)
    assert queued.cancel() is JobState.CANCELLED
    run_job(store, done.id)
    with pytest.raises(Conflict, match="succeeded"):
        done.cancel()


def test_a_full_redis_refuses_clearly(producer: Producer, client: Any) -> None:
    """Case Q22's producer half: out of memory is RedisRefused, and nothing was written."""
    producer.submit("acme/triage", TICKET)
    before = sorted(client.keys("*"))
    with out_of_memory(client), pytest.raises(RedisRefused, match="maxmemory") as caught:
        producer.submit("acme/triage", TICKET)
    assert sorted(client.keys("*")) == before
    assert "Nothing was enqueued" in str(caught.value)


def test_two_producers_of_one_redis_close_apart(
    producer: Producer, producer_settings: Settings
) -> None:
    """Closing one must not close the broker connections of the other."""
    with Producer(producer_settings) as other:
        other.submit("acme/triage", TICKET)
        producer.submit("acme/triage", TICKET)
    assert producer.submit("acme/triage", TICKET).status() is JobState.QUEUED


# --- Redis is away


def test_a_closed_port_is_an_error_within_seconds() -> None:
    """Case Q7: every call says that Redis is unreachable, exit code 3."""
    with Producer(redis_url=closed_port_url()) as producer:
        handle = producer.handle("acme." + "0" * 32)
        for act in (
            lambda: producer.submit("acme/triage", TICKET),
            lambda: producer.submit_many("acme/triage", [TICKET] * 300),
            handle.status,
            handle.result,
            handle.cancel,
            lambda: list(producer.wait([handle])),
        ):
            assert bounded(act).exit_code == 3


def test_a_server_that_never_answers_is_an_error_within_seconds() -> None:
    """Case Q8: the handshake of a half-open connection is bounded by the socket timeouts."""
    with SilentServer() as server, Producer(redis_url=server.url) as producer:
        bounded(lambda: producer.submit("acme/triage", TICKET))
        bounded(producer.handle("acme." + "0" * 32).result)


class Stage:
    """Calls `do` just before a stage of a submit, once the connections are warm."""

    NAMES = ("resolve", "record", "ring")

    def __init__(self, producer: Producer, name: str, do: Callable[[], None]) -> None:
        producer.submit("acme/triage", TICKET)
        parts: Any = producer._parts
        target, method = {
            "resolve": (parts.versions, "target"),
            "record": (parts.store, "submit_many"),
            "ring": (parts.bell, "ring"),
        }[name]
        real = getattr(target, method)

        def trip(*args: Any) -> Any:
            do()
            return real(*args)

        setattr(target, method, trip)


@pytest.mark.parametrize("stage", Stage.NAMES)
def test_a_redis_that_stops_in_the_middle_of_a_submit(
    producer_settings: Settings, client: Any, stage: str
) -> None:
    """Case Q7: an error within seconds that tells whether the job may exist."""
    with (
        Proxy(producer_settings.redis_url) as proxy,
        Producer(producer_settings, redis_url=proxy.url) as producer,
    ):
        Stage(producer, stage, proxy.stop)
        error = bounded(lambda: producer.submit("acme/triage", TICKET))
    records = len(client.keys("pq:acme:job:*"))
    assert records == (2 if stage == "ring" else 1)
    assert ("may have been enqueued" in str(error)) == (stage != "resolve")


@pytest.mark.parametrize("stage", Stage.NAMES)
def test_a_connection_that_goes_half_open_in_the_middle_of_a_submit(
    producer_settings: Settings, stage: str
) -> None:
    """Case Q8: bytes go nowhere from some stage on; the whole submit still ends in time."""
    with (
        Proxy(producer_settings.redis_url) as proxy,
        Producer(producer_settings, redis_url=proxy.url) as producer,
    ):
        Stage(producer, stage, proxy.stall)
        error = bounded(lambda: producer.submit("acme/triage", TICKET))
        assert ("may have been enqueued" in str(error)) == (stage != "resolve")


@pytest.mark.parametrize("broker", ["stopped", "silent"])
def test_a_broker_that_cannot_be_rung_leaves_nothing(
    producer_settings: Settings, client: Any, broker: str
) -> None:
    """Cases Q7, Q8: the record was written, the ring failed, and the record is taken back."""
    with SilentServer() as server, Producer(producer_settings) as producer:
        url = closed_port_url() if broker == "stopped" else server.url
        bell = CeleryBell(producer_settings.model_copy(update={"redis_url": url}))
        producer._parts = replace(producer._parts, bell=bell)
        error = bounded(lambda: producer.submit("acme/triage", TICKET, idempotency_key="k"))
    assert "Nothing was enqueued" in str(error)
    assert client.keys("pq:acme:job:*") == client.keys("pq:acme:idem:*") == []
    assert client.zcard(keys.queued("acme")) == 0


def test_a_submit_after_an_outage_works_again(producer_settings: Settings) -> None:
    """Connections that were cut are made anew, those of the broker too."""
    with (
        Proxy(producer_settings.redis_url) as proxy,
        Producer(producer_settings, redis_url=proxy.url) as producer,
    ):
        for _ in range(3):
            assert producer.submit("acme/triage", TICKET).status() is JobState.QUEUED
            proxy.drop()


def test_a_retry_under_the_same_key_rings_for_the_job_that_was_left(
    producer_settings: Settings, client: Any
) -> None:
    """Record written, ring and clean-up lost: the caller's retry finds the job and rings."""
    with (
        Proxy(producer_settings.redis_url) as proxy,
        Producer(producer_settings, redis_url=proxy.url) as producer,
    ):
        Stage(producer, "ring", proxy.stop)
        bounded(lambda: producer.submit("acme/triage", TICKET, idempotency_key="k"))
    rung = client.llen(QUEUE)
    with Producer(producer_settings) as producer:
        handle = producer.submit("acme/triage", TICKET, idempotency_key="k")
    assert len(client.keys("pq:acme:job:*")) == 2
    assert client.llen(QUEUE) == rung + 1
    assert handle.id.encode() in client.zrange(keys.queued("acme"), 0, -1)


def test_a_wait_rides_out_a_cut_connection(
    producer_settings: Settings, store: RedisJobStore, producer: Producer
) -> None:
    """Case Q6: all connections are cut while a result is waited for; it still arrives."""
    with (
        Proxy(producer_settings.redis_url) as proxy,
        Producer(producer_settings, redis_url=proxy.url) as cut_off,
    ):
        handle = cut_off.submit("acme/triage", TICKET)

        def cut_and_run() -> None:
            proxy.drop()
            run_job(store, handle.id)

        threading.Timer(0.3, cut_and_run).start()
        assert handle.result(timeout=20).text == "billing"
