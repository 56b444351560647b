"""The producer of event loops does what the other one does; no Redis needed."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from inspect import signature
from typing import Any

import pytest

from contract.errors import Conflict, InvalidInput, JobFailed, NotFound, RedisUnreachable, TimedOut
from contract.ids import new_job_id
from contract.job_store import Claimed, JobView, PieceWrite
from contract.pieces import Entry, joined
from contract.types import JobState, Result
from producer import async_notices
from producer.async_client import AsyncJobHandle, AsyncProducer
from producer.client import Producer
from producer.desk import Parts
from producer.handle import JobHandle
from tests.support.producer_rig import TICKET, Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    with rig.producer:
        yield rig


@asynccontextmanager
async def opened(rig: Rig, **options: Any) -> AsyncIterator[AsyncProducer]:
    parts = Parts(store=rig.store, undo_store=rig.store, versions=rig.shelf, bell=rig.bell)
    async with AsyncProducer(parts=parts, **options) as producer:
        yield producer


def test_a_job_from_submit_to_result(rig: Rig) -> None:
    """Submitted, rung for, waited for, scored."""

    async def scenario() -> None:
        async with opened(rig) as producer:
            handle = await producer.submit("acme/triage", TICKET, sticky_key="s")
            assert await handle.status() is JobState.QUEUED
            assert [ring.job_id for ring in rig.bell.rung] == [handle.id]
            waiting = asyncio.create_task(handle.result(timeout=10))
            await asyncio.sleep(0.02)
            rig.run(handle.id)
            assert (await waiting).text == "billing"
            await handle.score("quality", 1.0)
            assert (await handle.view()).scores == {"quality": 1.0}

    asyncio.run(scenario())


def test_what_one_producer_has_the_other_has() -> None:
    """Both and their handles, by the same names and with the same parameters."""
    for one, other in ((Producer, AsyncProducer), (JobHandle, AsyncJobHandle)):
        public = {name for name in vars(one) if not name.startswith("_")}
        assert public == {name for name in vars(other) if not name.startswith("_")}
        for name in public:
            if callable(getattr(one, name)):
                here, there = (list(signature(getattr(c, name)).parameters) for c in (one, other))
                assert here == there, name


def test_a_timeout_is_one_however_often_a_notice_lies(rig: Rig) -> None:
    """As the other producer's."""

    async def scenario() -> None:
        async with opened(rig) as producer:
            handle = await producer.submit("acme/triage", TICKET)

            async def cry() -> None:
                for _ in range(80):
                    await asyncio.sleep(0.05)
                    producer._watcher._waits.tell(handle.id)

            crying = asyncio.create_task(cry())
            started = time.monotonic()
            with pytest.raises(TimedOut):
                await handle.outcome(timeout=0.3)
            assert time.monotonic() - started < 2
            crying.cancel()

    asyncio.run(scenario())


def test_wait_is_as_completed(rig: Rig) -> None:
    """Under its older name."""

    async def scenario() -> None:
        async with opened(rig) as producer:
            handle = await producer.submit("acme/triage", TICKET)
            rig.run(handle.id)
            assert [one async for one in producer.wait([handle], timeout=10)] == [handle]

    asyncio.run(scenario())


def test_errors_are_the_same(rig: Rig) -> None:
    """The same kinds with the same words, from either producer."""
    gone = new_job_id("acme")

    def each(producer: Any) -> list[Any]:
        return [
            lambda: producer.submit("acme/nothing", TICKET),
            lambda: producer.submit("acme/triage", {}),
            lambda: producer.submit("acme/triage", {"ticket": 2**70}),
            lambda: producer.submit("triage", TICKET),
            lambda: producer.submit("acme/triage", TICKET, idempotency_key=""),
            lambda: producer.submit_many("acme/triage", [TICKET, {}]),
            lambda: producer.submit_many("acme/triage", [TICKET], idempotency_keys=["a", "b"]),
            lambda: producer.submit_many("acme/triage", [TICKET], sticky_keys=[]),
            lambda: producer.handle(gone).result(),
            lambda: producer.handle(gone).cancel(),
            lambda: producer.handle(gone).score("quality", 1.0),
        ]

    async def fails(call: Any) -> str:
        with pytest.raises((InvalidInput, NotFound)) as caught:
            await call()
        return f"{type(caught.value).__name__} {caught.value}"

    async def scenario() -> list[str]:
        async with opened(rig) as producer:
            return [await fails(call) for call in each(producer)]

    expected = []
    for call in each(rig.producer):
        with pytest.raises((InvalidInput, NotFound)) as caught:
            call()
        expected.append(f"{type(caught.value).__name__} {caught.value}")
    assert asyncio.run(scenario()) == expected
    assert rig.store._records == {}


def test_a_key_gives_the_same_job_to_both(rig: Rig) -> None:
    """And another input under it is a conflict."""
    first = rig.producer.submit("acme/triage", TICKET, idempotency_key="k")

    async def scenario() -> None:
        async with opened(rig) as producer:
            again = await producer.submit("acme/triage", TICKET, idempotency_key="k", stream=True)
            assert again.id == first.id
            with pytest.raises(Conflict):
                await producer.submit("acme/triage", {"ticket": "x"}, idempotency_key="k")

    asyncio.run(scenario())


def test_a_failed_submit_takes_back_what_it_wrote(rig: Rig) -> None:
    """And with patience it goes on, without a second record."""

    async def scenario() -> None:
        rig.bell.works_for = 1
        async with opened(rig) as producer:
            with pytest.raises(RedisUnreachable, match="Nothing was enqueued"):
                await producer.submit_many("acme/triage", [TICKET] * 3)
        assert not rig.store._records
        rig.bell.works_for = 0
        async with opened(rig, patience_s=20.0) as producer:
            submit = asyncio.create_task(producer.submit("acme/triage", TICKET))
            await asyncio.sleep(0.1)
            rig.bell.works_for = 5
            handle = await submit
            assert list(rig.store._records) == [handle.id]

    asyncio.run(scenario())


def test_as_completed_yields_each_as_it_ends(rig: Rig) -> None:
    """Those without a record too; at the timeout it counts the rest."""

    async def scenario() -> None:
        async with opened(rig) as producer:
            handles = await producer.submit_many("acme/triage", [TICKET] * 3)
            unknown = producer.handle(new_job_id("acme"))
            rig.run(handles[2].id)
            found = producer.as_completed([*handles, handles[2], unknown], timeout=2)
            assert {await anext(found), await anext(found)} == {handles[2], unknown}
            rig.run(handles[0].id)
            assert await anext(found) == handles[0]
            with pytest.raises(TimedOut, match="1 of 4"):
                await anext(found)
            assert [_ async for _ in producer.as_completed([])] == []
            assert len(producer._watcher._waits) == 0

    asyncio.run(scenario())


def test_a_wait_that_is_cancelled_leaves_nothing(rig: Rig) -> None:
    """And the job goes on."""

    async def scenario() -> None:
        async with opened(rig) as producer:
            handle = await producer.submit("acme/triage", TICKET)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await handle.result()
            assert len(producer._watcher._waits) == 0
            with pytest.raises(TimedOut):
                await handle.result(timeout=0.05)
            assert await handle.status() is JobState.QUEUED
            assert await handle.cancel() is JobState.CANCELLED
            with pytest.raises(JobFailed):
                await handle.result()

    asyncio.run(scenario())


def test_a_closed_producer_tells_those_who_wait(rig: Rig) -> None:
    """At once, and whoever waits later."""

    async def scenario() -> None:
        async with opened(rig) as producer:
            handle = await producer.submit("acme/triage", TICKET)
            waiting = asyncio.create_task(handle.result())
            await asyncio.sleep(0.05)
            await producer.close()
            with pytest.raises(Exception, match="closed"):
                await waiting
            with pytest.raises(Exception, match="closed"):
                await handle.result()

    asyncio.run(scenario())


def test_whoever_cancels_a_close_has_it_cancelled(rig: Rig) -> None:
    """The watching's own end is not taken for it, and it has ended."""

    async def scenario() -> None:
        async with opened(rig) as producer:
            handle = await producer.submit("acme/triage", TICKET)
            waiting = asyncio.create_task(handle.result())
            await asyncio.sleep(0.02)
            closing = asyncio.create_task(producer.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            with pytest.raises(Exception, match="closed"):
                await waiting
            await asyncio.sleep(0.02)
            assert producer._watcher._task is None

    asyncio.run(scenario())


def test_each_who_waits_in_vain_has_an_error_of_its_own(rig: Rig) -> None:
    """With its cause: one that thousands raise would keep the frames of all."""

    async def scenario() -> None:
        async with opened(rig) as producer:
            handle = await producer.submit("acme/triage", TICKET)
            waiting = [asyncio.create_task(handle.result()) for _ in range(100)]
            await asyncio.sleep(0.02)
            error = RedisUnreachable("away", remedy="Mend it.")
            error.__cause__ = OSError("the wire")
            producer._watcher._waits.tell_all(error)
            found = await asyncio.gather(*waiting, return_exceptions=True)
            assert len({id(each) for each in found}) == 100
            for each in found:
                assert isinstance(each, RedisUnreachable)
                assert each.to_dict() == error.to_dict()
                assert isinstance(each.__cause__, OSError)
                assert len(traceback.extract_tb(each.__traceback__)) < 10

    asyncio.run(scenario())


def test_a_timeout_while_redis_is_away_has_a_cause(rig: Rig) -> None:
    """The wait says that Redis is away, and why."""

    async def scenario() -> None:
        async with opened(rig) as producer:
            handle = await producer.submit("acme/triage", TICKET)
            away = RedisUnreachable("away")
            away.__cause__ = OSError("the wire")
            waiting = asyncio.create_task(handle.result(timeout=0.2))
            await asyncio.sleep(0.1)  # the first looks at the records are over
            producer._watcher._outage.note(away, time.monotonic())
            with pytest.raises(RedisUnreachable) as caught:
                await waiting
            assert isinstance(caught.value.__cause__, OSError)

    asyncio.run(scenario())


WAITS: dict[str, Callable[[AsyncJobHandle], Awaitable[Any]]] = {
    "result": lambda handle: handle.result(timeout=0.3),
    "stream": lambda handle: anext(handle.stream(timeout=0.3)),
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_timeout_goes_before_patience(
    rig: Rig, wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis is away: who gave a wait a second does not wait for minutes."""

    def away(_: str) -> JobView:
        raise RedisUnreachable("away")

    async def scenario() -> None:
        async with opened(rig, patience_s=60.0) as producer:
            handle = await producer.submit("acme/triage", TICKET, stream=True)
            monkeypatch.setattr(rig.store, "get", away)
            async with asyncio.timeout(5):
                with pytest.raises(RedisUnreachable):
                    await WAITS[wait](handle)

    asyncio.run(scenario())


def test_a_timeout_goes_before_patience_in_threads_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of the other handle."""

    def away(_: str) -> JobView:
        raise RedisUnreachable("away")

    parts = Parts(store=rig.store, undo_store=rig.store, versions=rig.shelf, bell=rig.bell)
    with Producer(parts=parts, patience_s=2.0) as producer:
        handle = producer.submit("acme/triage", TICKET, stream=True)
        monkeypatch.setattr(rig.store, "get", away)
        for wait in (lambda: handle.result(0.3), lambda: next(handle.stream(timeout=0.3))):
            started = time.monotonic()
            with pytest.raises(RedisUnreachable):
                wait()
            assert time.monotonic() - started < 1.5


def test_the_watching_ends_when_nobody_waits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """And begins again."""
    monkeypatch.setattr(async_notices, "_IDLE_S", 0.05)

    async def scenario() -> None:
        async with opened(rig) as producer:
            for _ in range(2):
                handle = await producer.submit("acme/triage", TICKET)
                waiting = asyncio.create_task(handle.result())
                await asyncio.sleep(0.05)
                assert producer._watcher._task is not None
                rig.run(handle.id)
                await waiting
                give_up = time.monotonic() + 5
                while producer._watcher._task is not None:
                    assert time.monotonic() < give_up
                    await asyncio.sleep(0.02)
            assert all(stream.closed for stream in rig.store._streams)

    asyncio.run(scenario())


def test_handles_are_equal_by_id(rig: Rig) -> None:
    """As the other kind's."""

    async def scenario() -> None:
        async with opened(rig) as producer:
            handle = await producer.submit("acme/triage", TICKET)
            assert {handle, producer.handle(handle.id)} == {handle}
            assert handle != handle.id
            assert repr(handle) == f"AsyncJobHandle({handle.id!r})"
            assert isinstance(handle, AsyncJobHandle)

    asyncio.run(scenario())


def test_the_loop_goes_on_while_many_are_submitted(rig: Rig) -> None:
    """Others have their turns while 5,000 inputs are checked, over parts that never wait."""

    async def scenario() -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with opened(rig) as producer:
            running = asyncio.create_task(others())
            handles = await producer.submit_many("acme/triage", [TICKET] * 5000)
            running.cancel()
        assert len(handles) == 5000
        assert turns >= 10

    asyncio.run(scenario())


# --- streams, of either producer


def _write(rig: Rig, job_id: str, *entries: Entry) -> None:
    rig.store.write_pieces([PieceWrite(job_id=job_id, entries=entries, keep_s=10)])


def _text(words: str, at: int) -> Entry:
    return Entry(kind="text", fence=1, at=at, text=words)


def test_a_stream_ends_with_the_result_also_when_nobody_says_so(rig: Rig) -> None:
    """For both; the rest of the text comes with it."""
    handle = rig.producer.submit("acme/triage", TICKET, stream=True)
    _write(rig, handle.id, _text("bil", 0))
    rig.run(handle.id)
    pieces = list(handle.stream(timeout=10))
    assert [(p.kind, p.text) for p in pieces] == [("text", "bil"), ("text", "ling"), ("end", "")]
    assert next(handle.stream(after=pieces[0].entry)).text == "ling"

    async def scenario() -> None:
        async with opened(rig) as producer:
            again = [piece async for piece in producer.handle(handle.id).stream()]
            assert again == pieces
            assert str(again[1]) == "ling"

    asyncio.run(scenario())
    assert joined(pieces) == handle.result().text


def test_leaving_a_stream_cancels_nothing(rig: Rig) -> None:
    """Nor does its timeout."""
    handle = rig.producer.submit("acme/triage", TICKET, stream=True)
    _write(rig, handle.id, _text("bil", 0))
    for piece in handle.stream():
        assert piece.text == "bil"
        break
    with pytest.raises(TimedOut):
        list(handle.stream(timeout=0.1))
    assert handle.status() is JobState.QUEUED

    async def scenario() -> None:
        async with opened(rig) as producer:
            with pytest.raises(TimedOut):
                async for _ in producer.handle(handle.id).stream(timeout=0.1):
                    pass

    asyncio.run(scenario())
    assert handle.status() is JobState.QUEUED


def test_what_cannot_be_streamed(rig: Rig) -> None:
    """A job that did not ask for it, one without a record, an entry that is none or gone."""
    handle = rig.producer.submit("acme/triage", TICKET)
    with pytest.raises(Conflict, match="stream=True"):
        next(handle.stream())
    with pytest.raises(NotFound):
        next(rig.producer.handle(new_job_id("acme")).stream())
    streamed = rig.producer.submit("acme/triage", TICKET, stream=True)
    with pytest.raises(InvalidInput):
        next(streamed.stream(after="x"))
    with pytest.raises(NotFound, match="from its start"):
        next(streamed.stream(after="7-0"))


def test_a_cancelled_job_ends_its_stream(rig: Rig) -> None:
    """Nobody ran it, so nobody wrote an end."""
    handle = rig.producer.submit("acme/triage", TICKET, stream=True)
    handle.cancel()
    [end] = handle.stream(timeout=10)
    assert (end.kind, end.status) == ("end", JobState.CANCELLED)
    assert end.to_dict() == {"event": "end", "attempt": 0, "status": "cancelled"}


def _die(rig: Rig, job_id: str) -> int:
    """Use all attempts up; the last one's fence, under which a text and an end are written."""
    state: JobState | None = JobState.QUEUED
    while state is JobState.QUEUED:
        claim = rig.store.claim(job_id, "w1", 60)
        assert isinstance(claim, Claimed)
        failed = Result(job_id=job_id, ref=claim.job.ref, status=JobState.FAILED)
        state = rig.store.retry(failed, claim.job.fence, 0.0)
    fence = claim.job.fence
    _write(rig, job_id, replace(_text("abc", 0), fence=fence), Entry(kind="end", fence=fence))
    return fence


def _write_anew(rig: Rig, job_id: str, fence: int) -> None:
    restart = Entry(kind="restart", fence=fence)
    _write(rig, job_id, restart, replace(_text("bil", 0), fence=fence))


def test_a_revived_jobs_stream_goes_on(rig: Rig) -> None:
    """Whoever reads it past the end of the dead attempt is given the next one's text."""
    handle = rig.producer.submit("acme/triage", TICKET, stream=True)
    stream = handle.stream(timeout=10)
    fence = _die(rig, handle.id)
    rig.store.revive(handle.id)
    assert next(stream).text == "abc"
    _write_anew(rig, handle.id, fence + 1)
    assert [next(stream).kind, next(stream).text] == ["restart", "bil"]
    rig.run(handle.id)
    assert [(p.kind, p.text) for p in stream] == [("text", "ling"), ("end", "")]


def test_the_result_of_a_dead_attempt_ends_no_revived_stream(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read from the record just before the job was revived, it is looked for again."""
    handle = rig.producer.submit("acme/triage", TICKET, stream=True)
    look, looks, fence = rig.store.get, 0, 0

    def revived_meanwhile(job_id: str) -> JobView:
        nonlocal looks, fence
        looks += 1
        view = look(job_id)
        if looks == 1:
            fence = _die(rig, job_id)
        elif looks == 2:
            assert view.result is not None
            rig.store.revive(job_id)
            _write_anew(rig, job_id, fence + 1)
        elif looks == 3:
            rig.run(job_id)
            view = look(job_id)
        return view

    monkeypatch.setattr(rig.store, "get", revived_meanwhile)
    pieces = list(handle.stream(timeout=10))
    assert joined(pieces) == "billing"
    assert pieces[-1].status is JobState.SUCCEEDED
