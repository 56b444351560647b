"""Servers that misbehave in the ways that networks do."""

from __future__ import annotations

import selectors
import socket
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


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


class Proxy:
    """Forwards to a Redis until told to swallow all bytes, or to drop its connections."""

    def __init__(self, redis_url: str) -> None:
        target = urlsplit(redis_url)
        self._target = (target.hostname or "127.0.0.1", target.port or 6379)
        self._login = target.netloc.rpartition("@")[0]
        self._path = target.path
        self._listener: socket.socket | None = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._port = self._listener.getsockname()[1]
        self._peers: dict[socket.socket, socket.socket] = {}
        self._swallowing = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="test-proxy", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        login = f"{self._login}@" if self._login else ""
        return f"redis://{login}127.0.0.1:{self._port}{self._path}"

    def swallow(self) -> None:
        """From now on nothing comes through in either direction, and nothing is closed."""
        self._swallowing.set()

    def stop(self) -> None:
        """Close the listener and every connection, as a server that was stopped."""
        self._stopping.set()
        self._thread.join()

    def drop(self) -> None:
        """Close every connection; new ones are welcome."""
        with self._lock:
            while self._peers:
                self._close(next(iter(self._peers)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        listener = self._listener
        if listener is None:
            return
        listener.setblocking(False)
        while not self._stopping.is_set():
            with self._lock, selectors.DefaultSelector() as selector:
                selector.register(listener, selectors.EVENT_READ)
                for one in self._peers:
                    selector.register(one, selectors.EVENT_READ)
                for key, _ in selector.select(timeout=0.01):
                    self._serve(key.fileobj)  # type: ignore[arg-type]
        listener.close()
        self._listener = None
        self.drop()

    def _serve(self, ready: socket.socket) -> None:
        if ready is self._listener:
            client, _ = ready.accept()
            server = socket.create_connection(self._target)
            self._peers[client], self._peers[server] = server, client
            return
        if ready not in self._peers:  # closed together with its peer a moment ago
            return
        try:
            data = ready.recv(1 << 16)
            if data and not self._swallowing.is_set():
                self._peers[ready].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._close(ready)

    def _close(self, one: socket.socket) -> None:
        other = self._peers.pop(one)
        self._peers.pop(other, None)
        one.close()
        other.close()


def closed_port_url() -> str:
    """A URL on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"redis://127.0.0.1:{server.getsockname()[1]}/0"
