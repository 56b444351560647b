"""Streams: what is sent when, and how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from ui.live import LiveStream, Streams

SCOPE = {"type": "http", "method": "GET"}


class Client:
    """The other end: takes what is sent until it is told to stall; leaves when told to."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.stalls = False
        self.gone = asyncio.Event()

    async def send(self, message: Any) -> None:
        if self.stalls:
            await asyncio.Event().wait()
        self.messages.append(message)

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    @property
    def pages(self) -> list[str]:
        bodies = [message.get("body", b"") for message in self.messages]
        events = [body.decode() for body in bodies if body.startswith(b"event: page\n")]
        return [json.loads(event.split("data: ", 1)[1]) for event in events]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - any condition, not one of asyncio's
            await asyncio.sleep(0.005)


def test_a_page_is_sent_when_it_changed() -> None:
    """The first at once, the same not again, line breaks within one event."""

    async def run() -> None:
        client, streams, page = Client(), Streams(), ["one\n\n<b>"]

        async def render() -> str:
            return page[0]

        stream = LiveStream(render, streams, interval_s=0.01)
        task = asyncio.create_task(stream(SCOPE, client.receive, client.send))
        await _until(lambda: len(client.pages) == 1)
        await asyncio.sleep(0.1)
        assert client.pages == ["one\n\n<b>"]
        page[0] = "two"
        await _until(lambda: len(client.pages) == 2)
        assert streams.open == 1
        client.gone.set()
        await asyncio.wait_for(task, 5)
        assert (streams.open, client.pages[-1]) == (0, "two")

    asyncio.run(run())


def test_a_slow_browser_is_dropped() -> None:
    """Nothing piles up for it, and the response is broken off."""

    async def run() -> None:
        client, streams, rendered = Client(), Streams(), [0]

        async def render() -> str:
            rendered[0] += 1
            return f"page {rendered[0]}"

        stream = LiveStream(render, streams, interval_s=0.01, slow_s=0.2)
        task = asyncio.create_task(stream(SCOPE, client.receive, client.send))
        await _until(lambda: len(client.pages) == 2)
        client.stalls = True
        before = rendered[0]
        await asyncio.wait_for(task, 5)
        assert streams.open == 0
        assert rendered[0] <= before + 1  # while it stalls nothing more is made for it
        assert client.messages[-1].get("more_body") is True  # and not ended as if all were well

    asyncio.run(run())


def test_the_end_of_the_process_ends_streams() -> None:
    """At once, and in good order."""

    async def run() -> None:
        client, streams = Client(), Streams()

        async def render() -> str:
            return "page"

        stream = LiveStream(render, streams, interval_s=60.0)
        task = asyncio.create_task(stream(SCOPE, client.receive, client.send))
        await _until(lambda: len(client.pages) == 1)
        streams.ending.set()
        await asyncio.wait_for(task, 5)
        assert client.messages[-1] == {"type": "http.response.body", "body": b""}

    asyncio.run(run())


def test_head_gives_headers_alone() -> None:
    """And comes to an end."""

    async def run() -> None:
        client = Client()

        async def render() -> str:
            raise AssertionError

        stream = LiveStream(render, Streams(), interval_s=60.0)
        scope = {**SCOPE, "method": "HEAD"}
        await asyncio.wait_for(stream(scope, client.receive, client.send), 5)
        assert [message["type"] for message in client.messages] == [
            "http.response.start",
            "http.response.body",
        ]

    asyncio.run(run())
