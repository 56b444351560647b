"""TLS in front of a Redis that has none: the binary that comes with the tests is built without."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.support.certificates import Issued


class TlsProxy:
    """Ends TLS and forwards to a Redis in clear; a context manager.

    With `client_ca` it asks clients for a certificate that this authority signed.
    """

    def __init__(self, redis_url: str, issued: Issued, *, client_ca: Path | None = None) -> None:
        target = urlsplit(redis_url)
        self._target = (target.hostname or "127.0.0.1", target.port or 6379)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(issued.cert, issued.key)
        if client_ca is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(client_ca)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="test-tls-proxy", daemon=True)
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._transports: list[asyncio.WriteTransport] = []
        self.port = 0
        self.connections = 0  # whose handshake was done

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        # A handshake that fails is the client's to tell.
        self._loop.set_exception_handler(lambda *_: None)
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for transport in self._transports:
            with suppress(AttributeError):  # of one that is closed, in early Python 3.11
                transport.abort()
        await asyncio.sleep(0.05)  # closing a socket is the loop's next task

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        redis_reader, redis_writer = await asyncio.open_connection(*self._target)
        self._transports += [writer.transport, redis_writer.transport]
        try:
            await asyncio.gather(_copy(reader, redis_writer), _copy(redis_reader, writer))
        finally:
            for end in (writer, redis_writer):
                end.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
