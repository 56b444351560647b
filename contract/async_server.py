"""Redis for an event loop: any number of callers share few connections and pipelines.

redis-py's asyncio client takes a connection for each call in flight. Here calls wait in a line, and
what waits goes out together: ten thousand coroutines that look at their jobs at once cost 40
pipelines over at most CONNECTIONS connections. A caller that is cancelled leaves the line and
disturbs nobody, since no caller reads from a connection itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.exceptions import TimeoutError as RedisTimeoutError

from contract import keys
from contract.calls import BATCH, Call, add, explained
from contract.errors import PrefillqError, RedisUnreachable
from contract.job_calls import read_notice
from contract.job_store import Notice
from contract.redis_client import AsyncClient, errors_explained
from contract.scripts import ScriptLibrary, Scripts
from contract.settings import Settings

T = TypeVar("T")

CONNECTIONS = 4
_LOOKS = 20  # at a reply, before it is given up


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    calls: Sequence[Call]
    replies: asyncio.Future[list[Any]]


class OneLoop:
    """The event loop that something belongs to: that of its first call.

    Another one would not be woken by what ends in the first, and could not close its connections.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def running(self) -> asyncio.AbstractEventLoop:
        """The loop. Raises PrefillqError in another."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise PrefillqError(
                "the producer belongs to another event loop",
                expected="calls from the loop of its first call",
                remedy="Make an AsyncProducer in each loop, such as in each asyncio.run.",
            )
        return loop


class AsyncServer:
    """`contract.calls.Server` over redis-py's asyncio client. Belongs to one event loop.

    A pipeline has `timeout_s`, or the settings' time, for all of its replies.
    """

    def __init__(
        self,
        client: AsyncClient,
        settings: Settings,
        library: ScriptLibrary | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        self._client: Any = client
        self._settings = settings
        self._timeout_s = settings.redis_timeout_s if timeout_s is None else timeout_s
        self._scripts = None if library is None else Scripts(client, settings, library)
        self._line: deque[_Waiting] = deque()
        self._senders: set[asyncio.Task[None]] = set()
        self._loop = OneLoop()
        self._closed = False

    async def ask_each(self, calls: Sequence[Call]) -> list[Any]:
        if self._closed:
            raise PrefillqError("the producer is closed", remedy="Make a new one.")
        if not calls:
            return []
        waiting = _Waiting(calls, self._loop.running().create_future())
        self._line.append(waiting)
        # A sender that found the line empty is done at once, a turn before its callbacks run: one
        # that still counted then would leave this caller in the line for ever.
        self._senders = {sender for sender in self._senders if not sender.done()}
        if len(self._senders) < CONNECTIONS:
            self._senders.add(asyncio.create_task(self._send()))
        return await waiting.replies

    async def close(self) -> None:
        """End what is under way; its callers get an error."""
        self._closed = True
        senders = tuple(self._senders)
        for sender in senders:
            sender.cancel()
        try:
            await asyncio.gather(*senders, return_exceptions=True)
        finally:  # also when who closes is cancelled
            self._fail(self._take_all(), PrefillqError("the producer was closed"))
            with suppress(OSError):
                await self._client.aclose()

    async def _send(self) -> None:
        """Send what waits until nothing does."""
        while group := self._take():
            try:
                replies = await self._execute([call for each in group for call in each.calls])
            except RedisUnreachable as error:
                # The others would only wait for the same, a timeout for each pipeline.
                self._fail([*group, *self._take_all()], error)
            except Exception as error:  # noqa: BLE001 - it is the callers'
                self._fail(group, error)
            except BaseException:
                # The loop or the producer ends, and nobody is left to send the others'.
                self._fail([*group, *self._take_all()], PrefillqError("the producer was closed"))
                raise
            else:
                start = 0
                for each in group:
                    end = start + len(each.calls)
                    if not each.replies.done():  # else its caller was cancelled
                        each.replies.set_result(replies[start:end])
                    start = end

    async def _execute(self, calls: Sequence[Call]) -> list[Any]:
        replies: list[Any] = []
        for start in range(0, len(calls), BATCH):
            with errors_explained(self._settings):
                pipe = self._client.pipeline(transaction=False)
                add(pipe, calls[start : start + BATCH], self._scripts)
                replies += await within(self._timeout_s, pipe.execute(raise_on_error=False))
        return [explained(reply, self._settings) for reply in replies]

    def _take(self) -> list[_Waiting]:
        """The next callers' calls, a pipeline full."""
        group: list[_Waiting] = []
        count = 0
        while self._line and (not group or count + len(self._line[0].calls) <= BATCH):
            each = self._line.popleft()
            if not each.replies.done():
                group.append(each)
                count += len(each.calls)
        return group

    def _take_all(self) -> list[_Waiting]:
        everyone = list(self._line)
        self._line.clear()
        return everyone

    def _fail(self, group: Sequence[_Waiting], error: Exception) -> None:
        for each in group:
            if not each.replies.done():
                own = error.copied() if isinstance(error, PrefillqError) else error
                each.replies.set_exception(own)


async def within(seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result. Raises redis-py's TimeoutError when it has none after `seconds` of a loop that
    runs.

    A loop that somebody's work holds up comes to its timers late, and to a reply that has arrived
    just as late: asyncio's own timeouts, which are redis-py's, then end the wait for what is
    there. Here a hold-up costs one look of `_LOOKS`, however long it is.
    """
    task = asyncio.ensure_future(coroutine)
    try:
        for _ in range(_LOOKS):
            done, _ = await asyncio.wait({task}, timeout=seconds / _LOOKS)
            if done:
                return task.result()
    finally:
        if not task.done():
            task.cancel()  # redis-py drops the connection then: its reply is nobody else's
            await asyncio.wait({task})
            task.cancelled() or task.exception()  # asked for, else asyncio warns of it
    raise RedisTimeoutError(f"no reply within {seconds:g} s")


class AsyncNotices:
    """As `contract.records.RedisNotices`, in an event loop."""

    def __init__(self, client: AsyncClient, settings: Settings) -> None:
        self._settings = settings
        self._pubsub: Any = client.pubsub()
        self._tenants: dict[str, str] = {}  # channel -> tenant

    async def follow(self, tenant: str) -> None:
        channel = keys.notices(tenant)
        self._tenants[channel] = tenant
        with errors_explained(self._settings):
            await within(self._settings.redis_timeout_s, self._pubsub.subscribe(channel))

    async def next(self, timeout: float) -> Notice | None:  # noqa: ASYNC109 - as NoticeStream's
        with errors_explained(self._settings):
            # Where the connection is gone it connects anew, which may take minutes.
            seconds = timeout + self._settings.redis_timeout_s
            message = await within(seconds, self._pubsub.get_message(timeout=timeout))
        return read_notice(message, self._tenants)

    async def close(self) -> None:
        with suppress(OSError):
            await self._pubsub.aclose()
