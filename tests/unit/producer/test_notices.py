"""Waiting: one stream for all, nothing lost when notices are, bounded when Redis is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from contract.errors import PrefillqError, RedisUnreachable, TimedOut
from contract.ids import new_job_id
from contract.job_store import Notice, NoticeStream
from contract.memory_store import MemoryJobStore
from contract.settings import Settings
from contract.types import Job, JobState, VersionRef
from producer import notices
from producer.notices import Watcher


class Store(MemoryJobStore):
    """Counts streams and polls; notices and answers can be taken away."""

    def __init__(self) -> None:
        super().__init__(Settings())
        self.streams = 0
        self.open_streams = 0
        self.polled: list[int] = []
        self.deaf = False  # notices are lost
        self.away = False  # Redis does not answer

    def add(self, tenant: str = "acme") -> str:
        ref = VersionRef(tenant=tenant, template="t", version=1, digest="d")
        job = Job(id=new_job_id(tenant), ref=ref, variables={})
        return self.submit(job, input_digest="i").job_id

    def states(self, job_ids: Sequence[str]) -> list[JobState | None]:
        if self.away:
            raise RedisUnreachable("away")
        self.polled.append(len(job_ids))
        return super().states(job_ids)

    def notices(self) -> NoticeStream:
        if self.away:
            raise RedisUnreachable("away")
        self.streams += 1
        self.open_streams += 1
        return _Counted(super().notices(), self)


class _Counted:
    def __init__(self, inner: NoticeStream, store: Store) -> None:
        self._inner, self._store = inner, store

    def follow(self, tenant: str) -> None:
        self._inner.follow(tenant)

    def next(self, timeout: float) -> Notice | None:
        if self._store.away:
            raise RedisUnreachable("away")
        notice = self._inner.next(timeout)
        return None if self._store.deaf else notice

    def close(self) -> None:
        self._store.open_streams -= 1
        self._inner.close()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def watch(store: Store) -> Iterator[Callable[..., Watcher]]:
    made: list[Watcher] = []

    def make(**options: float) -> Watcher:
        made.append(Watcher(store, **options))
        return made[-1]

    yield make
    for watcher in made:
        watcher.close()
    assert store.open_streams == 0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 10 s"
        time.sleep(0.002)


def test_a_notice_ends_the_wait_long_before_the_next_poll(
    store: Store, watch: Callable[..., Watcher]
) -> None:
    """With notices working, a result is known within milliseconds."""
    watcher = watch(poll_s=60)
    job_id = store.add()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: list(watcher.ended([job_id], 20)))
        until(lambda: store.polled == [1, 1])  # the waiter's own look, and that of the follow
        started = time.monotonic()
        store.cancel(job_id)
        assert found.result() == [job_id]
    assert time.monotonic() - started < 2


def test_lost_notices_only_delay(store: Store, watch: Callable[..., Watcher]) -> None:
    """With every notice lost, the poll finds what ended."""
    store.deaf = True
    watcher = watch(poll_s=0.05)
    job_id = store.add()
    threading.Timer(0.1, store.cancel, [job_id]).start()
    assert list(watcher.ended([job_id], 10)) == [job_id]


def test_without_the_poll_a_lost_notice_is_a_hang(
    store: Store, watch: Callable[..., Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: no polling, and the test above would time out."""
    store.deaf = True
    watcher = watch(poll_s=0.05)
    monkeypatch.setattr(watcher, "_poll", lambda *_: None)
    job_id = store.add()
    threading.Timer(0.1, store.cancel, [job_id]).start()
    with pytest.raises(TimedOut):
        list(watcher.ended([job_id], 0.5))


def test_a_job_that_ends_while_its_wait_begins_is_not_missed(
    store: Store, watch: Callable[..., Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is looked at after the notices were asked for, not before."""
    watcher = watch(poll_s=60)
    job_id = store.add()
    look = store.states

    def ends_just_after(job_ids: Sequence[str]) -> list[JobState | None]:
        states = look(job_ids)
        if states == [JobState.QUEUED]:
            store.cancel(job_id)
        return states

    monkeypatch.setattr(store, "states", ends_just_after)
    assert list(watcher.ended([job_id], 5)) == [job_id]


def test_ten_thousand_waits_share_one_stream_and_one_thread(
    store: Store, watch: Callable[..., Watcher]
) -> None:
    """Case Q14: one connection whatever the number of handles; nothing is kept afterwards."""
    watcher = watch(poll_s=60)
    job_ids = [store.add() for _ in range(10_000)]
    threads = threading.active_count()
    with ThreadPoolExecutor(4) as pool:
        waits = [
            pool.submit(lambda part=job_ids[n::4]: list(watcher.ended(part, 60))) for n in range(4)
        ]
        until(lambda: len(watcher._waits) == 10_000 and watcher._followed == {"acme"})
        assert threading.active_count() <= threads + 5
        for job_id in job_ids:
            store.cancel(job_id)
        assert sorted(job_id for wait in waits for job_id in wait.result()) == sorted(job_ids)
    assert store.streams == 1
    assert not watcher._waits


def test_a_slow_reader_is_told_once(store: Store, watch: Callable[..., Watcher]) -> None:
    """What has ended but was not taken yet is neither polled nor queued again."""
    watcher = watch(poll_s=0.02)
    job_ids = [store.add() for _ in range(5)]
    waiting = watcher.ended(job_ids, 10)
    store.cancel(job_ids[0])
    assert next(waiting) == job_ids[0]
    for job_id in job_ids[1:]:
        store.cancel(job_id)
    until(lambda: not watcher._waits)
    assert sorted(waiting) == sorted(job_ids[1:])


def test_tenants_are_followed_as_they_come(store: Store, watch: Callable[..., Watcher]) -> None:
    """A second tenant's notices arrive over the same stream."""
    watcher = watch(poll_s=60)
    for tenant in ("acme", "globex"):
        job_id = store.add(tenant)
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(lambda job_id=job_id: list(watcher.ended([job_id], 20)))
            until(lambda tenant=tenant: tenant in watcher._followed)
            store.cancel(job_id)
            assert found.result() == [job_id]
        assert not watcher._waits.tenants, "nobody is waited for, of any tenant"
    assert store.streams == 1


def test_a_wait_survives_a_short_outage(store: Store, watch: Callable[..., Watcher]) -> None:
    """Case Q6: Redis is away and comes back while a job is waited for."""
    watcher = watch(poll_s=0.02, outage_s=20)
    job_id = store.add()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: list(watcher.ended([job_id], 20)))
        until(lambda: len(store.polled) >= 2)
        store.away = True
        until(lambda: watcher._outage.error is not None)
        store.cancel(job_id)  # its notice reaches nobody
        store.away = False
        assert found.result() == [job_id]


def test_a_long_outage_ends_the_wait(store: Store, watch: Callable[..., Watcher]) -> None:
    """Without a timeout of its own a wait does not hang on a Redis that stays away."""
    watcher = watch(poll_s=0.02, outage_s=0.2)
    job_id = store.add()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: list(watcher.ended([job_id], None)))
        until(lambda: len(store.polled) >= 2)
        store.away = True
        with pytest.raises(RedisUnreachable):
            found.result(timeout=10)
    store.away = False
    store.cancel(job_id)
    assert list(watcher.ended([job_id], 5)) == [job_id], "and the next wait works"


def test_a_timeout_during_an_outage_says_so(store: Store, watch: Callable[..., Watcher]) -> None:
    """Not `timed out`, which would say that the job is still going on."""
    watcher = watch(poll_s=0.02, outage_s=20)
    job_id = store.add()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: list(watcher.ended([job_id], 1.0)))
        until(lambda: len(store.polled) >= 2)
        store.away = True
        with pytest.raises(RedisUnreachable):
            found.result(timeout=10)


def test_redis_away_at_the_start_is_an_error_at_once(
    store: Store, watch: Callable[..., Watcher]
) -> None:
    """A wait does not begin by riding out an outage."""
    job_id = store.add()
    store.away = True
    with pytest.raises(RedisUnreachable):
        list(watch().ended([job_id], None))


def test_an_unforeseen_error_reaches_the_waiters_and_is_not_for_ever(
    store: Store, watch: Callable[..., Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the thread is raised where jobs are waited for; the next wait starts anew."""
    watcher = watch(poll_s=0.05)
    job_id = store.add()
    with monkeypatch.context() as patch:
        patch.setattr(watcher, "_listen", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(watcher.ended([job_id], 10))
    threading.Timer(0.1, store.cancel, [job_id]).start()
    assert list(watcher.ended([job_id], 10)) == [job_id]


def test_closing_ends_waits_and_the_thread(store: Store) -> None:
    """Whoever waits gets an error; a wait after the end is refused; the thread is gone."""
    before = set(threading.enumerate())
    watcher = Watcher(store)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: list(watcher.ended([store.add()], 30)))
        until(lambda: watcher._followed == {"acme"})
        watcher.close()
        with pytest.raises(PrefillqError, match="closed"):
            found.result(timeout=10)
    with pytest.raises(PrefillqError, match="closed"):
        list(watcher.ended([store.add()], 1))
    watcher.close()
    after = set(threading.enumerate()) - before
    assert "prefillq-watcher" not in {thread.name for thread in after}
    assert store.open_streams == 0


def test_an_idle_watcher_gives_its_connection_back(
    store: Store, watch: Callable[..., Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When nobody waits, notices must not pile up in Redis; the next wait opens a new stream."""
    monkeypatch.setattr(notices, "_IDLE_S", 0.05)
    watcher = watch(poll_s=0.05)
    for expected in (1, 2):
        job_id = store.add()
        with pytest.raises(TimedOut):
            list(watcher.ended([job_id], 0.3))
        until(lambda: store.open_streams == 0)
        assert store.streams == expected
