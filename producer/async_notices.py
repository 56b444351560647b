"""As `producer.notices`, in an event loop: one connection and one task for all who wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from typing import Protocol

from contract.async_server import OneLoop
from contract.errors import PrefillqError, RedisUnreachable
from contract.job_calls import JobDesk
from contract.job_store import Notice
from producer.patience import NONE, Patience
from producer.waits import (
    OUTAGE_S,
    POLL_S,
    TICK_S,
    Outage,
    Waits,
    closed,
    closed_while_waiting,
    ended_of,
    in_vain,
    poll_after_s,
)

_IDLE_S = 5.0  # the connection stays open for this long when nobody waits


class AsyncNoticeStream(Protocol):
    """`contract.job_store.NoticeStream`, awaited."""

    async def follow(self, tenant: str) -> None: ...
    async def next(self, timeout: float) -> Notice | None: ...  # noqa: ASYNC109
    async def close(self) -> None: ...


class _Wait:
    """A waiter's ear: small, since there may be as many as jobs."""

    __slots__ = ("_items", "_wake")

    def __init__(self) -> None:
        self._items: list[str | Exception] = []
        self._wake: asyncio.Future[None] | None = None

    def put(self, item: str | Exception, /) -> None:
        self._items.append(item)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def get_all(self) -> list[str | Exception]:
        """What was put since the last time, at least one."""
        while not self._items:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        items, self._items = self._items, []
        return items


class AsyncWatcher:
    """Tells waiters which of their jobs have ended. Belongs to one event loop."""

    def __init__(
        self,
        jobs: JobDesk,
        notices: Callable[[], AsyncNoticeStream],
        *,
        poll_s: float = POLL_S,
        outage_s: float = OUTAGE_S,
        patience: Patience = NONE,
    ) -> None:
        self._jobs = jobs
        self._notices = notices
        self._poll_s = poll_s
        self._patience = patience
        self._outage = Outage(max(outage_s, patience.seconds))
        self._waits: Waits[_Wait] = Waits()
        self._loop = OneLoop()
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._stream: AsyncNoticeStream | None = None
        self._followed: set[str] = set()

    async def ended(self, job_ids: Collection[str], timeout: float | None) -> AsyncIterator[str]:  # noqa: ASYNC109 - a timeout of ours says what was waited for
        """As `producer.notices.Watcher.ended`."""
        give_up = None if timeout is None else time.monotonic() + timeout
        pending = set(job_ids)
        total = len(pending)
        wait = _Wait()
        self._add(wait, pending)
        try:
            patient_until = self._patience.until()
            # After the registration, so that no job can end unseen between the two.
            for job_id in await self._patience.wait_for(
                lambda: self._ended_now(tuple(pending)),
                sleep=asyncio.sleep,
                until=patient_until if give_up is None else min(patient_until, give_up),
            ):
                pending.discard(job_id)
                yield job_id
            while pending:
                for item in await self._next(wait, give_up, pending, total):
                    if isinstance(item, Exception):
                        raise item
                    if item in pending:
                        pending.discard(item)
                        yield item
        finally:
            self._waits.remove(wait, job_ids)

    async def close(self) -> None:
        """End the task; whoever still waits gets an error."""
        self._closed = True
        self._waits.tell_all(closed_while_waiting())
        if self._task is not None:
            # Not awaited itself: its end would look like the caller's own cancellation.
            task = self._task
            task.cancel()
            await asyncio.wait({task})
            task.cancelled() or task.exception()  # asked for, else asyncio warns of it

    async def _next(
        self, wait: _Wait, give_up: float | None, pending: set[str], total: int
    ) -> list[str | Exception]:
        left = None if give_up is None else max(0.0, give_up - time.monotonic())
        try:
            async with asyncio.timeout(left):
                return await wait.get_all()
        except TimeoutError:
            error = in_vain(self._outage, pending, total)
            raise error from error.__cause__

    def _add(self, wait: _Wait, job_ids: Collection[str]) -> None:
        if self._closed:
            raise closed()
        self._loop.running()
        self._waits.add(wait, job_ids)
        if self._task is None and job_ids:
            self._task = asyncio.create_task(self._watch())

    async def _ended_now(self, job_ids: tuple[str, ...]) -> list[str]:
        return list(ended_of(job_ids, await self._jobs.states(job_ids)))

    async def _watch(self) -> None:
        idle_since: float | None = None
        try:
            while True:
                if len(self._waits):
                    idle_since = None
                    await self._watch_once()
                    continue
                idle_since = idle_since or time.monotonic()
                if time.monotonic() - idle_since > _IDLE_S:
                    return  # notices that nobody reads would pile up in Redis
                await asyncio.sleep(TICK_S)
        except Exception as error:  # noqa: BLE001 - handed to those who wait
            self._waits.tell_all(error)
        finally:
            self._task = None
            await self._drop_stream()

    async def _watch_once(self) -> None:
        """Listen until the records are due for a look, then look."""
        due = time.monotonic() + poll_after_s(self._poll_s, len(self._waits))
        while time.monotonic() < due:
            if not len(self._waits):
                return
            notice = await self._listen()
            if notice is not None and notice.job_id is not None:
                self._waits.tell(notice.job_id)
            elif notice is not None:
                # What ended before this tenant's notices began to arrive.
                await self._poll(notice.tenant)
        await self._poll()

    async def _listen(self) -> Notice | None:
        try:
            if self._stream is None:
                self._stream = self._notices()
            for tenant in self._waits.tenants - self._followed:
                await self._stream.follow(tenant)
                self._followed.add(tenant)
            return await self._stream.next(TICK_S)
        except PrefillqError:
            # The poll finds what ended meanwhile, and says so if Redis is away for long.
            await self._drop_stream()
            await asyncio.sleep(TICK_S)
            return None

    async def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        self._followed.clear()
        if stream is not None:
            await stream.close()

    async def _poll(self, tenant: str | None = None) -> None:
        try:
            ended = await self._ended_now(tuple(self._waits.jobs(tenant)))
        except RedisUnreachable as error:
            if self._outage.note(error, time.monotonic()):
                self._waits.tell_all(error)
            return
        self._outage.over()
        for job_id in ended:
            self._waits.tell(job_id)
