"""A page as server-sent events: sent again each time that it has become another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.types import Receive, Scope, Send

from contract.logs import get_logger

log = get_logger(__name__)

MAX_STREAMS = 64
SLOW_S = 10.0  # an event that is not taken for so long is the last; ui.connection cuts it off
_ALIVE_S = 15.0  # something is sent at least so often, so that a lost connection is noticed
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]

Render = Callable[[], Awaitable[str]]


class Streams:
    """How many there are, and when they are to end."""

    def __init__(self) -> None:
        self.open = 0
        self.ending = asyncio.Event()

    @property
    def full(self) -> bool:
        return self.open >= MAX_STREAMS


class LiveStream:
    """An ASGI response. At most one event is on its way to a browser, and none waits behind it."""

    def __init__(
        self, render: Render, streams: Streams, *, interval_s: float, slow_s: float = SLOW_S
    ) -> None:
        self._render = render
        self._streams = streams
        self._interval_s = interval_s
        self._slow_s = slow_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streams = self._streams
        streams.open += 1
        gone = asyncio.create_task(_until_gone(receive))
        ending = asyncio.create_task(streams.ending.wait())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            if scope["method"] != "HEAD":
                await self._run(send, {gone, ending})
            await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            # Without its last part the response is broken off.
            log.info("slow_browser_dropped", seconds=self._slow_s)
        finally:
            streams.open -= 1
            for task in (gone, ending):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _run(self, send: Send, until: set[asyncio.Task[object]]) -> None:
        sent, quiet_s = "", 0.0
        while True:
            page = await self._render()
            body = b""
            if page != sent:
                body, sent, quiet_s = event(page), page, 0.0
            elif quiet_s >= _ALIVE_S:
                body, quiet_s = b":\n\n", 0.0
            if body:
                message = {"type": "http.response.body", "body": body, "more_body": True}
                await asyncio.wait_for(send(message), self._slow_s)
            done, _ = await asyncio.wait(
                until, timeout=self._interval_s, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return
            quiet_s += self._interval_s


def event(page: str) -> bytes:
    """One event. The page is JSON, which has no line breaks."""
    return f"event: page\ndata: {json.dumps(page)}\n\n".encode()


async def _until_gone(receive: Receive) -> object:
    while (await receive())["type"] != "http.disconnect":
        pass
    return None
