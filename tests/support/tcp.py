"""Servers that misbehave in the ways that networks do."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self


class SilentServer:
    """Accepts connections and never answers: what a half-open peer looks like."""

    def __init__(self) -> None:
        # The kernel completes the handshakes of a listening socket; nobody need accept.
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._socket.getsockname()[1]}/0"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()


def closed_port_url() -> str:
    """A URL on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"redis://127.0.0.1:{server.getsockname()[1]}/0"


def free_port() -> int:
    """One that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
