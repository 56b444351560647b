"""The numbers over HTTP, for KEDA's metrics-api scaler and whoever else can read JSON.

- `GET /templates/TENANT/TEMPLATE`: one template; `models.DIGEST.desired` is what KEDA reads, also
  of a model whose versions are all retired: without a number it would take its fallback
- `GET /templates/TENANT`, `GET /templates`: lists
- `GET /models/DIGEST`: all templates of one model together, for workers that serve them all
- `GET /healthz`: whether this process answers; Redis is not asked

A query may set `target_wait`, `min` and `max`. What goes wrong is JSON too, with `error`: 400 for a
query that cannot be, 404 for what is not there, 405 for another method, 503 where Redis cannot be
reached or refuses. KEDA keeps its replicas, or takes its fallback, for all but 200.
"""

from __future__ import annotations

import errno
import http.server
import socket
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import click

from contract.console import json_line
from contract.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    PrefillqError,
    RedisRefused,
    RedisUnreachable,
    SettingsError,
)
from contract.logs import get_logger
from scale.formula import Goal
from scale.rows import Row
from scale.watching import Seen, Watcher
from templates.rollouts.options import Duration

log = get_logger(__name__)

PATIENCE_S = 10.0  # a client that says nothing for so long is cut off
MOST_AT_ONCE = 16  # requests that look at Redis at the same time; others are told to come again
MAX_REPLICAS = 100_000

Answer = tuple[HTTPStatus, dict[str, Any]]


class Pages:
    """What each path answers. Safe to share between threads."""

    def __init__(self, watcher: Watcher, goal: Goal, *, window_s: float) -> None:
        self._watcher = watcher
        self._goal = goal
        self._window_s = window_s
        self._seats = threading.BoundedSemaphore(MOST_AT_ONCE)

    def answer(self, target: str) -> Answer:
        """The answer to GET `target`, whatever it is."""
        try:
            split = urlsplit(target)
            match [unquote(part) for part in split.path.split("/") if part]:
                case ["healthz"]:
                    return HTTPStatus.OK, {"status": "ok"}
                case ["templates", *names] if len(names) < 3:
                    goal = _goal(split.query, self._goal)
                    seen = self._look(names, goal)
                    one = len(names) == 2
                    return HTTPStatus.OK, _template(seen) if one else seen.to_dict()
                case ["models", digest]:
                    goal = _goal(split.query, self._goal)
                    return HTTPStatus.OK, _model(self._look([], goal), digest)
                case _:
                    raise NotFound(
                        "no such page",
                        given=split.path[:120],
                        expected="/templates, /templates/TENANT/TEMPLATE, /models/DIGEST, /healthz",
                        remedy="Ask for one of these.",
                    )
        except PrefillqError as error:
            return _status(error), error.to_dict()
        except ValueError:  # urllib's, for what is no URL
            return HTTPStatus.BAD_REQUEST, _unreadable().to_dict()

    def _look(self, names: list[str], goal: Goal) -> Seen:
        if not self._seats.acquire(timeout=PATIENCE_S):
            raise RedisUnreachable("too many requests wait for Redis", remedy="Ask again later.")
        try:
            targets = ["/".join(names)] if names else []
            return self._watcher.look(targets, goal, window_s=self._window_s)
        finally:
            self._seats.release()


def _unreadable() -> InvalidInput:
    return InvalidInput(
        "this URL cannot be read",
        expected="/templates/TENANT/TEMPLATE, with other characters percent-encoded",
        remedy="Mend it.",
    )


def _status(error: PrefillqError) -> HTTPStatus:
    match error:
        case NotFound():
            return HTTPStatus.NOT_FOUND
        case InvalidInput():
            return HTTPStatus.BAD_REQUEST
        case RedisUnreachable() | RedisRefused():
            return HTTPStatus.SERVICE_UNAVAILABLE
        case _:
            return HTTPStatus.INTERNAL_SERVER_ERROR


def _template(seen: Seen) -> dict[str, Any]:
    """One template: its models by digest, so that a path names the same one for ever."""
    if not seen.rows:  # its keys are damaged
        raise RedisRefused(
            "this template cannot be read",
            given=str(seen.unreadable)[:120],
            remedy="Its keys in Redis are damaged: publish it anew.",
        )
    return {
        "template": seen.rows[0].template,
        "now": round(seen.now, 3),
        "target_wait_s": seen.goal.wait_s,
        "models": {row.model_digest: _numbers(row) for row in seen.rows},
    }


def _model(seen: Seen, digest: str) -> dict[str, Any]:
    for row in seen.models:
        if row.model_digest == digest[:12] and len(digest) >= 12:
            return _numbers(row) | {"now": round(seen.now, 3), "target_wait_s": seen.goal.wait_s}
    known = ", ".join(row.model_digest for row in seen.models[:20]) or "none"
    raise NotFound(
        "no template has a version for this model",
        given=digest[:80],
        expected=known,
        remedy="GET /templates has each row's model_digest.",
    )


def _numbers(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.to_dict().items() if name != "template"}


def _goal(query: str, default: Goal) -> Goal:
    """`default`, or what the query says instead. Raises InvalidInput."""
    given = parse_qs(query, keep_blank_values=True, max_num_fields=16)
    if unknown := set(given) - {"target_wait", "min", "max"}:
        raise InvalidInput(
            "no such parameter",
            given=min(unknown)[:80],
            expected="target_wait, min or max",
            remedy="Leave it out.",
        )
    minimum = _count(given, "min", default.minimum)
    maximum = _count(given, "max", default.maximum)
    wait_s = default.wait_s
    if "target_wait" in given:
        try:
            wait_s = Duration().convert(given["target_wait"][-1], None, None)
        except click.BadParameter as error:
            raise InvalidInput(
                "target_wait cannot be read",
                given=error.message,
                expected="a time such as 30s or 500ms",
                remedy="Give such a time.",
            ) from error
    if wait_s <= 0 or minimum > maximum:
        raise InvalidInput(
            "no goal that can be reached",
            given=f"target_wait {wait_s:g} s, min {minimum}, max {maximum}",
            expected="a target_wait above 0, and a min that is no more than max",
            remedy="Change what the query says, or the server's own options.",
        )
    return Goal(wait_s=wait_s, minimum=minimum, maximum=maximum)


def _count(given: dict[str, list[str]], name: str, default: int) -> int:
    if name not in given:
        return default
    text = given[name][-1]
    # The length first: `int` of thousands of digits takes its time, or refuses.
    if not (text.isascii() and text.isdecimal() and len(text) < 7 and int(text) <= MAX_REPLICAS):
        raise InvalidInput(
            f"{name} cannot be read",
            given=text[:40],
            expected=f"0 to {MAX_REPLICAS}",
            remedy="Give a whole number.",
        )
    return int(text)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    # Two processes on one port would share its requests at random. Later Pythons allow it.
    allow_reuse_port = False

    def server_bind(self) -> None:
        # HTTPServer's own would ask the name service for this host's name.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, *_: Any) -> None:
        log.warning("request_failed", error=type(sys.exception()).__name__)


def _handler(answer: Callable[[str], Answer]) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = PATIENCE_S
        server_version = "prefillq"
        sys_version = ""

        def do_GET(self) -> None:
            try:
                status, body = answer(self.path)
            except Exception as error:  # noqa: BLE001 - one request's trouble is told to it
                log.warning("request_failed", error=type(error).__name__)
                status = HTTPStatus.INTERNAL_SERVER_ERROR
                body = PrefillqError(
                    "something unexpected happened",
                    remedy="The log of 'prefillq scale --serve' names it; ask again.",
                ).to_dict()
            self._send(status, body)

        def _refuse(self) -> None:
            self._send(
                HTTPStatus.METHOD_NOT_ALLOWED,
                InvalidInput(
                    "only GET is answered here", given=self.command[:40], remedy="Use GET."
                ).to_dict(),
            )

        do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = _refuse  # noqa: N815

        def _send(self, status: HTTPStatus, body: dict[str, Any]) -> None:
            data = b"" if self.command == "HEAD" else f"{json_line(body)}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            if status is HTTPStatus.METHOD_NOT_ALLOWED:
                self.send_header("Allow", "GET")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Nothing: a line for every poll would drown the log."""

    return Handler


class Endpoint:
    """Answers from `serve` on. Raises Conflict for a port that is taken, SettingsError for one, or
    an address, that cannot be used. Port 0 takes any that is free.
    """

    def __init__(self, answer: Callable[[str], Answer], *, host: str, port: int) -> None:
        self._server = _bind(host, port, _handler(answer))
        self.host, self.port = host, int(self._server.server_port)

    def serve(self) -> None:
        """Until `close` is called from another thread, or Ctrl-C."""
        log.info("scale_listening", host=self.host, port=self.port)
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Take no more requests and free the port."""
        self._server.shutdown()
        self._server.server_close()


def _bind(host: str, port: int, handler: type[http.server.BaseHTTPRequestHandler]) -> _Server:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        server = type("_Server", (_Server,), {"address_family": family})
        made: _Server = server((str(address[0]), port), handler)
    except OSError as error:
        given = f"{host}:{port} ({error.strerror or type(error).__name__})"
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                "the port is taken",
                given=given,
                expected="a port that no other process listens on",
                remedy="Give --serve another port, or 0 for any free one.",
            ) from error
        raise SettingsError(
            "nothing can be served there",
            given=given,
            expected="an address of this host and a port that this user may open",
            remedy="Change --serve.",
        ) from error
    return made
