"""The producer of event loops on a real Redis, and on Redis servers that are away or half-open."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import pytest

from contract import keys
from contract.async_server import CONNECTIONS
from contract.errors import Conflict, NotFound, RedisUnreachable
from contract.records import RedisJobStore
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import JobState
from producer.async_client import AsyncProducer
from producer.client import Producer
from templates.registry import Registry
from tests.support.answering import Answering
from tests.support.published import COMPILED, MODEL, make_spec
from tests.support.tcp import SilentServer, closed_port_url

TICKET = {"ticket": "refund?"}
BOUND_S = 5.0
MANY = 10_000
QUEUE = keys.messages(keys.queue("acme", "triage", MODEL.model_digest))


@pytest.fixture(autouse=True)
def published(registry: Registry) -> Registry:
    """acme/triage, version 1."""
    registry.publish(make_spec(), COMPILED, MODEL)
    return registry


def test_jobs_are_submitted_rung_for_and_answered(
    producer_settings: Settings, worker_settings: Settings, client: Any
) -> None:
    """One and many; the message is the one that the other producer's Celery sends."""

    async def scenario() -> None:
        async with AsyncProducer(producer_settings) as producer:
            one = await producer.submit("acme/triage", TICKET, idempotency_key="k")
            again = await producer.submit("acme/triage", TICKET, idempotency_key="k")
            assert again == one
            with pytest.raises(Conflict):
                await producer.submit("acme/triage", {"ticket": "x"}, idempotency_key="k")
            with pytest.raises(NotFound, match="acme/triage"):
                await producer.submit("acme/triagee", TICKET)
            many = await producer.submit_many(
                "acme/triage", [{"ticket": f"{n}"} for n in range(50)]
            )
            assert client.llen(QUEUE) == 52
            with Answering(worker_settings):
                texts = [r.text for r in await asyncio.gather(*(h.result(30) for h in many))]
            assert texts == [f"echo: {n}" for n in range(50)]
            await one.score("quality", 1.0)
            assert (await one.view()).scores == {"quality": 1.0}

    asyncio.run(scenario())


def test_both_ring_alike(producer_settings: Settings, producer: Producer, client: Any) -> None:
    """A worker takes the same job id out of either message, from the same queue."""
    first = producer.submit("acme/triage", TICKET)

    async def scenario() -> str:
        async with AsyncProducer(producer_settings) as opened:
            return (await opened.submit("acme/triage", TICKET)).id

    second = asyncio.run(scenario())
    from worker.doorbell import job_in

    queue = keys.queue("acme", "triage", MODEL.model_digest)
    messages = client.lrange(QUEUE, 0, -1)
    assert [job_in(raw, queue) for raw in messages] == [second, first.id]
    own, celery = map(json.loads, messages)
    for name in ("content-type", "content-encoding"):
        assert own[name] == celery[name]
    for name in ("delivery_info", "body_encoding", "delivery_mode", "priority"):
        assert own["properties"][name] == celery["properties"][name]


def test_q14_ten_thousand_coroutines_wait_on_one_connection(
    producer_settings: Settings, client: Client, settings: Settings
) -> None:
    """Each awaits its own handle: one connection listens, CONNECTIONS ask, with tasks and all in
    under 100 MB.
    """
    store = RedisJobStore(client, settings)

    def end_all(job_ids: list[str]) -> None:
        for start in range(0, MANY, 500):
            pipe = client.pipeline(transaction=False)
            for job_id in job_ids[start : start + 500]:
                store._run("cancel", job_id, pipe=pipe)
            pipe.execute()

    async def scenario() -> None:
        import psutil

        before = {each["id"] for each in client.client_list()}
        async with AsyncProducer(producer_settings) as producer:
            handles = await producer.submit_many(
                "acme/triage", ({"ticket": str(n)} for n in range(MANY))
            )
            memory = psutil.Process().memory_info().rss
            waiting = [asyncio.create_task(handle.outcome(200)) for handle in handles]
            while len(producer._watcher._waits) < MANY:
                early = [task.exception() for task in waiting if task.done()]
                assert not early, early[:3]
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
            opened = [each for each in client.client_list() if each["id"] not in before]
            held = psutil.Process().memory_info().rss - memory
            ender = threading.Thread(target=end_all, args=([handle.id for handle in handles],))
            ender.start()
            results = await asyncio.gather(*waiting)
            ender.join()
            assert {result.status for result in results} == {JobState.CANCELLED}
            assert sum(int(each["sub"]) > 0 for each in opened) == 1
            assert len(opened) <= 1 + CONNECTIONS
            assert held < 100_000_000
            assert len(producer._watcher._waits) == 0

    asyncio.run(scenario())


class Ticking:
    """How long a loop's other tasks had to wait for their turn, at most, on a clock of choice."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.longest_s = 0.0
        self._clock = clock

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _tick(self) -> None:
        while True:
            at = self._clock()
            await asyncio.sleep(0.01)
            self.longest_s = max(self.longest_s, self._clock() - at)


def test_the_loop_goes_on_while_redis_does_not_answer(producer_settings: Settings) -> None:
    """A submit into a server that accepts and says nothing: other tasks run, the error comes."""

    async def scenario(url: str) -> None:
        settings = producer_settings.model_copy(update={"redis_url": url})
        async with AsyncProducer(settings) as producer, Ticking() as ticking:
            started = time.monotonic()
            with pytest.raises(RedisUnreachable, match="Nothing was enqueued"):
                await producer.submit("acme/triage", TICKET)
            assert time.monotonic() - started < BOUND_S
        # A call that blocked it would do so for the timeout's 2 s.
        assert ticking.longest_s < 1.5

    with SilentServer() as server:
        asyncio.run(scenario(server.url))


def test_the_loop_goes_on_while_many_jobs_are_submitted(producer_settings: Settings) -> None:
    """Ten thousand records and messages are made, and others have their turn all the while."""

    async def scenario() -> None:
        # Its own work, whatever else the machine does; a collection of all that other tests left in
        # this process takes longer.
        ticking = Ticking(time.thread_time)
        async with AsyncProducer(producer_settings) as producer, ticking:
            await producer.submit_many("acme/triage", [{"ticket": f"{n}"} for n in range(MANY)])
        assert ticking.longest_s < 0.4

    gc.freeze()
    try:
        asyncio.run(scenario())
    finally:
        gc.unfreeze()


def test_a_loop_that_others_hold_up_loses_no_reply(producer_settings: Settings) -> None:
    """Its timers are late then, and so is what has arrived: neither makes Redis unreachable."""

    async def hold_up() -> None:
        while True:
            time.sleep(0.6)  # noqa: ASYNC251 - that is the trouble
            await asyncio.sleep(0)

    async def scenario() -> None:
        settings = producer_settings.model_copy(update={"redis_timeout_s": 0.5})
        async with AsyncProducer(settings) as producer:
            holding_up = asyncio.create_task(hold_up())
            handle = await producer.submit("acme/triage", TICKET)
            assert await handle.status() is JobState.QUEUED
            holding_up.cancel()

    asyncio.run(scenario())


CALLS: dict[str, Callable[[AsyncProducer], Any]] = {
    "submit": lambda p: p.submit("acme/triage", TICKET),
    "submit many": lambda p: p.submit_many("acme/triage", [TICKET] * 1000),
    "result": lambda p: p.handle("acme." + "0" * 32).result(),
    "cancel": lambda p: p.handle("acme." + "0" * 32).cancel(),
    "score": lambda p: p.handle("acme." + "0" * 32).score("quality", 1),
    "stream": lambda p: anext(p.handle("acme." + "0" * 32).stream()),
}


@pytest.mark.parametrize("call", CALLS)
def test_redis_away_is_said_within_five_seconds(producer_settings: Settings, call: str) -> None:
    """By every call, and by a thousand of them at once."""

    async def scenario() -> None:
        settings = producer_settings.model_copy(update={"redis_url": closed_port_url()})
        async with AsyncProducer(settings) as producer:
            started = time.monotonic()
            found = await asyncio.gather(
                *(CALLS[call](producer) for _ in range(1 if "many" in call else 1000)),
                return_exceptions=True,
            )
            assert time.monotonic() - started < BOUND_S
            assert {type(error) for error in found} == {RedisUnreachable}

    asyncio.run(scenario())


def test_many_calls_into_silence_end_together(producer_settings: Settings) -> None:
    """They are not sent one pipeline after the other, each with a timeout of its own."""

    async def scenario(url: str) -> None:
        settings = producer_settings.model_copy(update={"redis_url": url, "redis_timeout_s": 1.5})
        async with AsyncProducer(settings) as producer:
            started = time.monotonic()
            handle = producer.handle("acme." + "0" * 32)
            calls = [handle.status() for _ in range(2000)]
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - started < BOUND_S
            assert {type(error) for error in found} == {RedisUnreachable}

    with SilentServer() as server:
        asyncio.run(scenario(server.url))


def test_a_cancelled_call_disturbs_no_other(producer_settings: Settings) -> None:
    """Calls of one loop share pipelines; each gets its own reply whoever left."""

    async def scenario() -> None:
        async with AsyncProducer(producer_settings) as producer:
            handles = await producer.submit_many(
                "acme/triage", [{"ticket": f"{n}"} for n in range(300)]
            )
            views = [asyncio.create_task(handle.view()) for handle in handles]
            await asyncio.sleep(0)
            for task in views[::2]:
                task.cancel()
            found = await asyncio.gather(*views, return_exceptions=True)
            for handle, view in zip(handles[1::2], found[1::2], strict=True):
                assert not isinstance(view, BaseException)
                assert view.job.id == handle.id
            assert await handles[0].status() is JobState.QUEUED

    asyncio.run(scenario())


def test_a_loop_and_connections_end_with_the_producer(
    producer_settings: Settings, client: Client
) -> None:
    """Nothing is left open, also not after an error."""

    async def scenario() -> None:
        async with AsyncProducer(producer_settings) as producer:
            handle = await producer.submit("acme/triage", TICKET)
            waiting = asyncio.create_task(handle.result())
            await asyncio.sleep(0.2)
        with pytest.raises(Exception, match="closed"):
            await waiting
        with pytest.raises(Exception, match="closed"):
            await handle.status()

    before = len(client.client_list())
    asyncio.run(scenario())
    give_up = time.monotonic() + 5
    while len(client.client_list()) > before:
        assert time.monotonic() < give_up
        time.sleep(0.05)
