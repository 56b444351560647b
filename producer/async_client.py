"""`Producer` for event loops: the same calls, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from contract.async_server import AsyncNotices, AsyncServer
from contract.ids import tenant_of
from contract.job_calls import JobCalls, JobDesk
from contract.job_store import JobView, NoticeStream
from contract.pieces import Piece
from contract.records import job_library
from contract.redis_client import connect_async
from contract.settings import Settings
from contract.types import JobState, Result
from producer.async_notices import AsyncNoticeStream, AsyncWatcher
from producer.client import UNDO_TIMEOUT_S, settings_for
from producer.desk import Desk, DirectBell, Parts, desk_of
from producer.enqueue import Enqueue, submit
from producer.following import follow
from producer.handle import succeeded
from producer.patience import Pace, Patience, time_left
from producer.refused import RefusedOutcomes
from producer.validate import VariablesChecker
from producer.wishes import Terms, terms_of, wishes_of
from templates.lookup import SharedLookup

_LOOK_S = 0.005  # between looks at notices in memory


class AsyncProducer:
    """Submits jobs and hands out handles, in the event loop of its first call.

    Whatever `Producer` says of its calls holds here. Any number of calls at once share a few
    connections, and waits for jobs share one. A call that is cancelled leaves the others alone; a
    cancelled submit may have enqueued, as one whose reply was lost.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        redis_url: str | None = None,
        patience_s: float = 0.0,
        parts: Parts | None = None,
    ) -> None:
        settings = settings_for(settings, redis_url)
        self._servers: list[AsyncServer] = []
        notices: Callable[[], AsyncNoticeStream]
        if parts is None:
            self._desk, notices = self._over_redis(settings)
        else:
            self._desk, notices = desk_of(parts), lambda: _Looking(parts.store.notices())
        self._patience = Patience(patience_s)
        self._watcher = AsyncWatcher(self._desk.jobs, notices, patience=self._patience)
        self._checker = VariablesChecker(settings.max_variables_bytes)

    def _over_redis(self, settings: Settings) -> tuple[Desk, Callable[[], AsyncNoticeStream]]:
        client = connect_async(settings)
        server = AsyncServer(client, settings, job_library())
        undo_server = AsyncServer(
            connect_async(settings),
            settings,
            job_library(),
            timeout_s=min(UNDO_TIMEOUT_S, settings.redis_timeout_s),
        )
        self._servers = [server, undo_server]
        desk = Desk(
            jobs=JobCalls(server, settings),
            undo=JobCalls(undo_server, settings),
            versions=SharedLookup(server),
            bell=DirectBell(server),
            outcomes=RefusedOutcomes(server),
        )
        return desk, lambda: AsyncNotices(client, settings)

    async def submit(
        self,
        template: str,
        variables: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        sticky_key: str | None = None,
        deadline_s: float | None = None,
        use_cache: bool = True,
        stream: bool = False,
    ) -> AsyncJobHandle:
        """As `Producer.submit`."""
        [handle] = await self._submit(
            terms_of(template, deadline_s, use_cache=use_cache, stream=stream),
            [variables],
            None if idempotency_key is None else [idempotency_key],
            None if sticky_key is None else [sticky_key],
        )
        return handle

    async def submit_many(
        self,
        template: str,
        variables: Iterable[Mapping[str, Any]],
        *,
        idempotency_keys: Sequence[str] | None = None,
        sticky_keys: Sequence[str | None] | None = None,
        deadline_s: float | None = None,
        use_cache: bool = True,
        stream: bool = False,
    ) -> list[AsyncJobHandle]:
        """As `Producer.submit_many`."""
        terms = terms_of(template, deadline_s, use_cache=use_cache, stream=stream)
        return await self._submit(terms, list(variables), idempotency_keys, sticky_keys)

    def handle(self, job_id: str) -> AsyncJobHandle:
        """A handle of an earlier job. Raises InvalidInput unless it is a job id."""
        tenant_of(job_id)
        return AsyncJobHandle(job_id, self._desk.jobs, self._watcher, self._patience)

    async def as_completed(
        self,
        handles: Collection[AsyncJobHandle],
        timeout: float | None = None,  # noqa: ASYNC109 - a timeout of ours says what was waited for
    ) -> AsyncIterator[AsyncJobHandle]:
        """As `Producer.as_completed`."""
        by_id = {handle.id: handle for handle in handles}
        async for job_id in self._watcher.ended(by_id.keys(), timeout):
            yield by_id[job_id]

    def wait(
        self, handles: Collection[AsyncJobHandle], timeout: float | None = None
    ) -> AsyncIterator[AsyncJobHandle]:
        """`as_completed` under its older name."""
        return self.as_completed(handles, timeout)

    async def close(self) -> None:
        """Close all connections. Jobs go on."""
        # All of them, also when one cannot be closed or the caller is cancelled meanwhile.
        async with AsyncExitStack() as closing:
            for server in self._servers:
                closing.push_async_callback(server.close)
            closing.push_async_callback(self._watcher.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _submit(
        self,
        terms: Terms,
        inputs: Sequence[Mapping[str, Any]],
        keys: Sequence[str] | None,
        sticky_keys: Sequence[str | None] | None,
    ) -> list[AsyncJobHandle]:
        pace = Pace(asyncio.sleep)
        wishes = await wishes_of(self._checker, terms, inputs, keys, sticky_keys, pace=pace)
        enqueue = Enqueue(self._desk, self._checker, terms, wishes, pace=pace)
        job_ids = await submit(enqueue, self._patience, sleep=asyncio.sleep)
        return [self.handle(job_id) for job_id in job_ids]


class AsyncJobHandle:
    """As `producer.handle.JobHandle`, awaited."""

    __slots__ = ("_jobs", "_patience", "_watcher", "id")

    def __init__(
        self, job_id: str, jobs: JobDesk, watcher: AsyncWatcher, patience: Patience
    ) -> None:
        self.id = job_id
        self._jobs = jobs
        self._watcher = watcher
        self._patience = patience

    async def result(self, timeout: float | None = None) -> Result:  # noqa: ASYNC109
        """As `JobHandle.result`."""
        return succeeded(await self.outcome(timeout))

    async def outcome(self, timeout: float | None = None) -> Result:  # noqa: ASYNC109
        """As `JobHandle.outcome`."""
        left = time_left(timeout)
        view = await self._view(left())
        while view.result is None:
            async for _ in self._watcher.ended([self.id], left()):
                pass
            view = await self._view(left())
        return view.result

    def stream(
        self,
        *,
        after: str | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[Piece]:
        """As `JobHandle.stream`."""
        return follow(
            self._jobs,
            self.id,
            after=after,
            timeout=timeout,
            patience=self._patience,
            sleep=asyncio.sleep,
        )

    async def status(self) -> JobState:
        """Where the job is now. Raises NotFound."""
        return (await self.view()).state

    async def view(self) -> JobView:
        """The whole record. Raises NotFound."""
        return await self._view(None)

    async def _view(self, at_most_s: float | None) -> JobView:
        return await self._patience.wait_for(
            lambda: self._jobs.get(self.id),
            sleep=asyncio.sleep,
            until=self._patience.until(at_most_s),
        )

    async def cancel(self) -> JobState:
        """As `JobHandle.cancel`."""
        return await self._jobs.cancel(self.id)

    async def score(self, name: str, value: float) -> None:
        """As `JobHandle.score`."""
        await self._patience.wait_for(
            lambda: self._jobs.score(self.id, name, value), sleep=asyncio.sleep
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncJobHandle) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"AsyncJobHandle({self.id!r})"


class _Looking:
    """Notices of a store in memory, which would block: looked at without waiting, now and then."""

    def __init__(self, stream: NoticeStream) -> None:
        self._stream = stream

    async def follow(self, tenant: str) -> None:
        self._stream.follow(tenant)

    async def next(self, timeout: float) -> Any:  # noqa: ASYNC109 - as NoticeStream's
        notice = self._stream.next(0)
        if notice is None:
            await asyncio.sleep(min(timeout, _LOOK_S))
        return notice

    async def close(self) -> None:
        self._stream.close()
