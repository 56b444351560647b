"""An HTTP server for one page, `/metrics`, on a thread of its own."""

from __future__ import annotations

import errno
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from contract.errors import Conflict, SettingsError
from contract.logs import get_logger

log = get_logger(__name__)

# A client that says nothing for this long is cut off, so that it holds no thread for ever.
PATIENCE_S = 10.0


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE_S  # of the connection, see StreamRequestHandler

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: a line for every scrape would drown the log."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # Two processes on one port would share its scrapes at random. Later Pythons allow it.
    allow_reuse_port = False

    def server_bind(self) -> None:
        # HTTPServer's own would ask the name service for this host's name.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, *_: Any) -> None:
        log.warning("scrape_failed", error=type(sys.exception()).__name__)


class Endpoint:
    """Answers from the moment it is made. Raises Conflict for a port that is taken, SettingsError
    for one, or an address, that cannot be used. Port 0 takes any that is free.
    """

    def __init__(self, registry: CollectorRegistry, *, host: str, port: int) -> None:
        self._server = _bind(host, port)
        self._server.set_app(_only_metrics(make_wsgi_app(registry)))
        self.host, self.port = host, int(self._server.server_port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics-endpoint", daemon=True
        )
        self._thread.start()
        log.info("metrics_listening", host=host, port=self.port)

    def close(self) -> None:
        """Take no more requests and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=PATIENCE_S)


def _bind(host: str, port: int) -> _Server:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        server = type("_Server", (_Server,), {"address_family": family})
        made: _Server = server((address[0], port), _Handler)
    except OSError as error:
        given = f"{host}:{port} ({error.strerror or type(error).__name__})"
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                "the port for metrics is taken",
                given=given,
                expected="a port that no other process listens on",
                remedy="Give each worker on a host another --metrics-port, or 0 for any free one.",
            ) from error
        raise SettingsError(
            "metrics cannot be served there",
            given=given,
            expected="an address of this host and a port that this user may open",
            remedy="Change --metrics-host or --metrics-port.",
        ) from error
    return made


def _only_metrics(metrics: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("PATH_INFO") == "/metrics" and environ["REQUEST_METHOD"] == "GET":
            return metrics(environ, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"prefillq: the metrics are at /metrics\n"]

    return app
