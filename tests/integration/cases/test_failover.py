"""A master that dies, a replica that takes over, and sentinels that say so: real processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from contract.errors import RedisUnreachable
from contract.redis_client import connect
from contract.settings import Settings
from contract.types import JobState
from producer.async_client import AsyncProducer
from producer.client import Producer
from tests.support.fakes import StartFake
from tests.support.sentinels import SentinelGroup
from tests.support.waiting import running, until


@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    with SentinelGroup() as group:
        yield group


@pytest.fixture
def settings(settings: Settings, group: SentinelGroup) -> Settings:
    return settings.model_copy(update={"redis_url": group.url})


def test_the_producer_of_event_loops_asks_the_sentinels(
    group: SentinelGroup, settings: Settings, publish_template: Any
) -> None:
    """It finds the master, and after a failover the next one."""
    publish_template()

    async def scenario() -> None:
        async with AsyncProducer(settings, patience_s=20) as producer:
            first = await producer.submit("acme/notes", {"note": "one"})
            group.settle()
            before = group.master
            before.kill()
            second = await producer.submit("acme/notes", {"note": "two"})
            assert await first.status() is await second.status() is JobState.QUEUED
            assert group.master is not before

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["killed", "told to"])
def test_a_failover_loses_no_job_and_repeats_none(
    group: SentinelGroup,
    settings: Settings,
    producer: Producer,
    start_fake: StartFake,
    publish_template: Any,
    how: str,
) -> None:
    """Jobs queued and running when the master goes: all finish, each after one attempt.

    Producers get an error within seconds meanwhile, workers come back by themselves, and the
    sentinel that everybody asked first may be gone too.
    """
    publish_template()
    workers = [start_fake("--batch", "2"), start_fake("--batch", "2")]
    at_work = producer.submit_many("acme/notes", [{"note": f"work=8 {n}"} for n in range(4)])
    for job in at_work:
        running(job)
    queued = producer.submit_many("acme/notes", [{"note": f"queued {n}"} for n in range(12)])
    group.settle()
    before = group.master
    if how == "killed":
        group.sentinels[0].kill()
        before.kill()
        started = time.monotonic()
        with pytest.raises(RedisUnreachable):
            producer.submit("acme/notes", {"note": "meanwhile"})
        assert time.monotonic() - started < 5
    else:
        with connect(settings.model_copy(update={"redis_url": _sentinel_url(group)})) as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", "prefillq")
    until(lambda: group.master is not before, 20, what="the sentinels name another master")
    assert len(list(producer.wait([*at_work, *queued], timeout=40))) == 16
    for job in [*at_work, *queued]:
        result = job.result(timeout=5)
        assert (result.status, result.attempt) == (JobState.SUCCEEDED, 1)
    for worker in workers:
        worker.check_alive()
    started = time.monotonic()
    producer.submit("acme/notes", {"note": "after"}).result(timeout=20)
    assert time.monotonic() - started < 5


def _sentinel_url(group: SentinelGroup) -> str:
    return f"redis://127.0.0.1:{group.sentinels[0].port}/0"


def test_no_sentinel_answers(group: SentinelGroup, settings: Settings) -> None:
    """An error within seconds that names the sentinels."""
    for sentinel in group.sentinels:
        sentinel.kill()
    with Producer(settings) as producer:
        started = time.monotonic()
        with pytest.raises(RedisUnreachable, match="sentinel://"):
            producer.submit("acme/notes", {"note": "x"})
        assert time.monotonic() - started < 5
