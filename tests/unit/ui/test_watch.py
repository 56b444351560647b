"""One reader for all browsers, and what they see while Redis is away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from contract.errors import NotFound, RedisUnreachable
from ui.ended import Ended
from ui.look import MAX_ENDED
from ui.watch import Seen, Watch


class Source:
    """Counts how often it is read; fails while `error` is set."""

    def __init__(self) -> None:
        self.reads = 0
        self.error: Exception | None = None

    def __call__(self) -> int:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.reads


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _see(watch: Watch, source: Callable[[], int], name: str = "look") -> Seen[int]:
    return asyncio.run(watch.see(name, source))


def test_many_browsers_read_once(clock: Clock) -> None:
    """Fifty at once, then again within the interval: one read. After it: another."""
    watch, source = Watch(interval_s=2.0, clock=clock), Source()

    async def all_at_once() -> list[Seen[int]]:
        return await asyncio.gather(*(watch.see("look", source) for _ in range(50)))

    assert {seen.value for seen in asyncio.run(all_at_once())} == {1}
    assert source.reads == 1
    clock.now += 2.0
    assert _see(watch, source).value == 2


def test_reads_one_at_a_time(clock: Clock) -> None:
    """Also of different things."""
    watch, running, most = Watch(interval_s=2.0, clock=clock), [0], [0]
    lock = threading.Lock()

    def read() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.005)
        with lock:
            running[0] -= 1

    async def all_at_once() -> None:
        await asyncio.gather(*(watch.see(f"job {n}", read) for n in range(10)))

    asyncio.run(all_at_once())
    assert most == [1]


def test_redis_away_and_back(clock: Clock) -> None:
    """The last value stays with the reason beside it; then it is read again."""
    watch, source = Watch(interval_s=2.0, clock=clock), Source()
    assert _see(watch, source).value == 1
    clock.now += 2.0
    source.error = RedisUnreachable("Redis cannot be reached")
    seen = _see(watch, source)
    assert (seen.value, seen.away is not None) == (1, True)
    first = seen.away
    clock.now += 2.0
    again = _see(watch, source)
    assert again.away is not None
    assert first is not None
    assert again.away.since == first.since
    source.error = None
    clock.now += 2.0
    seen = _see(watch, source)
    assert (seen.value, seen.away) == (4, None)


def test_redis_away_is_waited_for_once(clock: Clock) -> None:
    """However many different things are asked for, one of them waits for its timeout."""
    watch, source = Watch(interval_s=2.0, clock=clock), Source()
    source.error = RedisUnreachable("Redis cannot be reached")
    for number in range(20):
        seen = _see(watch, source, f"job {number}")
        assert seen.value is None
        assert seen.away is not None
        assert isinstance(seen.error, RedisUnreachable)
    assert source.reads == 1


def test_what_is_not_there_is_kept_too(clock: Clock) -> None:
    """Asking for a job that is none costs one read in an interval."""
    watch, source = Watch(interval_s=2.0, clock=clock), Source()
    source.error = NotFound("no such job")
    for _ in range(5):
        assert isinstance(_see(watch, source).error, NotFound)
    assert source.reads == 1


def test_little_is_kept(clock: Clock) -> None:
    """Whoever asks for many jobs makes the process no larger."""
    watch, source = Watch(interval_s=2.0, clock=clock), Source()
    for number in range(1000):
        _see(watch, source, f"job {number}")
    assert len(watch._kept) <= 64


def test_ended_jobs_are_few_and_the_tenants_own() -> None:
    """Whoever may publish may publish anything."""
    ended = Ended(Mock())
    for text in ("", "acme.x", "globex." + "0" * 32, "<script>", "acme." + "A" * 32):
        ended.hear("acme", text)
    assert ended.ids("acme") == []
    ids = [f"acme.{number:032x}" for number in range(MAX_ENDED + 5)]
    for job_id in (*ids, ids[-2]):
        ended.hear("acme", job_id)
    assert len(ended.ids("acme")) == MAX_ENDED
    assert ended.ids("acme")[:2] == [ids[-2], ids[-1]]
