"""Browsers that do not read: over real sockets, for it is sockets that they keep."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn

from tests.support.waiting import until
from ui.connection import Connection
from ui.live import LiveStream, Streams
from ui.server import listen, make_config

SLOW_S = 0.4
PAGE = 2_000_000  # bytes: more than the kernel keeps for a socket that is not read
STEP = 64 * 1024


@dataclass(slots=True)
class Served:
    port: int
    server: uvicorn.Server
    streams: Streams

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    def browser(self, path: str) -> socket.socket:
        """Asks, and has read nothing yet."""
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect(("127.0.0.1", self.port))
        made.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return made


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A page that is another each time, at /, and as a stream at /live."""
    monkeypatch.setattr(Connection, "slow_s", SLOW_S)
    streams, count = Streams(), iter(range(10**9))

    async def render() -> str:
        return str(next(count)) * (PAGE // 8)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/live":
            await LiveStream(render, streams, interval_s=0.01)(scope, receive, send)
            return
        length = str(PAGE).encode()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", length), (b"connection", b"close")],
            }
        )
        await send({"type": "http.response.body", "body": b"x" * PAGE})

    with closing(listen("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(make_config(app, grace_s=1))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            until(lambda: server.started, what="the page is served")
            yield Served(listening.getsockname()[1], server, streams)
        finally:
            streams.ending.set()
            server.should_exit = True
            thread.join(timeout=10)
    assert not thread.is_alive()


@pytest.mark.parametrize("path", ["/", "/live"])
def test_one_that_never_reads_keeps_no_connection(served: Served, path: str) -> None:
    """Its connection ends, not only its stream, and with them what is kept for it."""
    with served.browser(path):
        until(lambda: served.connections == 1, what="it has connected")
        until(lambda: served.connections == 0, what="it was cut off")
        until(lambda: served.streams.open == 0, what="its stream has ended")


def test_one_that_reads_slowly_is_served(served: Served) -> None:
    """It takes longer than the time in which one that takes nothing is cut off."""
    with served.browser("/") as browser:
        browser.settimeout(10)
        started, got, rest_at = time.monotonic(), 0, STEP
        while data := browser.recv(STEP):
            got += len(data)
            if got >= rest_at and time.monotonic() - started < 3 * SLOW_S:
                rest_at += STEP
                time.sleep(SLOW_S / 4)
    assert got > PAGE
    assert time.monotonic() - started > 2 * SLOW_S
