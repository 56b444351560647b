"""Serving the page until SIGINT or SIGTERM."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from contract.errors import Conflict, InvalidInput
from ui.connection import Connection
from ui.live import Streams

_GRACE_S = 3
_MAX_CONNECTIONS = 256


def listen(host: str, port: int) -> socket.socket:
    """Raises Conflict for a port that is taken, InvalidInput for an address that cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError, UnicodeError) as error:
        given = f"{host[:80]}, port {port}: {getattr(error, 'strerror', None) or error}"
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise Conflict(
                "the port is taken",
                given=given,
                expected="a port that no other process listens on",
                remedy="Choose another --port; 0 takes any that is free.",
            ) from error
        raise InvalidInput(
            "the page cannot be served here",
            given=given,
            expected="an address of this machine, and a port that this user may open",
            remedy="Choose another --host or --port.",
        ) from error


class _Server(uvicorn.Server):
    """Ends by a signal as a command does: its streams at once, then itself, with status 0."""

    def __init__(self, config: uvicorn.Config, streams: Streams) -> None:
        super().__init__(config)
        self._streams = streams

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own sends the signal again in the end, which ends the process by it."""
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._streams.ending.set()  # the loop looks at it ten times a second


def make_config(app: ASGIApp, *, grace_s: int = _GRACE_S) -> uvicorn.Config:
    """How the page is served. `grace_s`: for answers that are under way at the end."""
    return uvicorn.Config(
        app,
        http=Connection,
        access_log=False,  # addresses have names of tenants in them
        log_config=None,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=grace_s,
    )


def serve(
    app: ASGIApp, listening: socket.socket, streams: Streams, *, ready: Callable[[], None]
) -> None:
    """Blocks until a signal comes. `ready` is called when connections are already taken."""
    ready()
    _Server(make_config(app), streams).run(sockets=[listening])
