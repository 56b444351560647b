"""A Redis proxy that misbehaves on request: cuts, holds, loses, delays and slows what it carries.

It follows the protocol far enough to know which reply answers which request, so that a test can
say "the reply to the next BRPOP that brings a message is lost". Controlled from the test's
thread; its own thread runs an event loop.

    with Proxy(redis_url) as proxy:
        client = redis.Redis.from_url(proxy.url)
        lost = proxy.on("BRPOP", lose_reply, reply_holds=b"prefillq.run")
        ...
        assert lost.wait(5)
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from tests.support.resp import Splitter, words

T = TypeVar("T")
Direction = Literal["requests", "replies"]
_BOTH: tuple[Direction, ...] = ("requests", "replies")
_TICK_S = 0.005
_REMEMBERED = 2000


class Cut(Exception):
    """Raised by an action to close both ends of its connection."""


@dataclass(slots=True, eq=False)
class Rule:
    """What to do with a request, or with its reply."""

    command: bytes
    action: Action
    holds: bytes
    reply_holds: bytes
    left: int
    happened: int = 0
    released: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def wait(self, timeout: float, *, times: int = 1) -> bool:
        """True once the action has been taken `times` times."""
        with self._changed:
            return self._changed.wait_for(lambda: self.happened >= times, timeout)

    def release(self) -> None:
        """Let go what `hold_reply` holds."""
        self.released = True

    def count(self) -> None:
        with self._changed:
            self.happened += 1
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Action:
    """`reply` gets the rule and the reply's bytes and gives the bytes to pass on.

    With `request`, the request itself is acted upon and nothing of it reaches the server.
    """

    name: str
    run: Callable[[Rule, bytes, Callable[[bytes], Awaitable[None]]], Awaitable[bytes]]
    on_request: bool = False


async def _lose(_rule: Rule, _reply: bytes, _send: Any) -> bytes:
    return b""


async def _hold(rule: Rule, reply: bytes, _send: Any) -> bytes:
    while not rule.released:  # noqa: ASYNC110 - set on another thread
        await asyncio.sleep(_TICK_S)
    return reply


async def _cut(_rule: Rule, _data: bytes, _send: Any) -> bytes:
    raise Cut


lose_reply = Action("lose the reply", _lose)  # the connection stays: the client waits in vain
hold_reply = Action("hold the reply", _hold)  # and all that follows it, until Rule.release()
cut_reply = Action("cut the reply", _cut)  # the server did it, and the client hears nothing
cut_request = Action("cut the request", _cut, on_request=True)  # the server never sees it


def cut_within_reply(size: int) -> Action:
    """Pass the first `size` bytes of the reply, then cut."""

    async def run(_rule: Rule, reply: bytes, send: Callable[[bytes], Awaitable[None]]) -> bytes:
        await send(reply[:size])
        raise Cut

    return Action(f"cut the reply after {size} bytes", run)


def delay_reply(seconds: float) -> Action:
    """Pass the reply, and all that follows it, so much later."""

    async def run(_rule: Rule, reply: bytes, _send: Any) -> bytes:
        await asyncio.sleep(seconds)
        return reply

    return Action(f"delay the reply by {seconds} s", run)


class Proxy:
    """Stands before a Redis on a port of its own."""

    def __init__(self, redis_url: str) -> None:
        target = urlsplit(redis_url)
        self._target = (target.hostname or "127.0.0.1", target.port or 6379)
        self._login = target.netloc.rpartition("@")[0]
        self._path = target.path
        self._port = 0
        self._rules: list[Rule] = []
        self._links: set[_Link] = set()
        self._stalled: set[Direction] = set()
        self._muted = False
        self._bytes_per_s: float | None = None
        self._delay_s = 0.0
        self._requests: deque[list[bytes]] = deque(maxlen=_REMEMBERED)
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="test-proxy", daemon=True
        )
        self._thread.start()
        self._call(self._listen())

    @property
    def url(self) -> str:
        login = f"{self._login}@" if self._login else ""
        return f"redis://{login}127.0.0.1:{self._port}{self._path}"

    @property
    def port(self) -> int:
        return self._port

    # --- one request or reply at a time

    def on(
        self,
        command: str,
        action: Action,
        *,
        holds: bytes = b"",
        reply_holds: bytes = b"",
        times: int = 1,
    ) -> Rule:
        """Take the action on the next `times` requests with this command, or on their replies.

        Only requests that contain `holds` and, where the action is on the reply, replies that
        contain `reply_holds` count.
        """
        rule = Rule(command.upper().encode(), action, holds, reply_holds, times)
        self._rules.append(rule)
        return rule

    def requests(self, command: str) -> list[list[bytes]]:
        """The words of the requests with this command that came lately, oldest first."""
        name = command.upper().encode()
        return [request for request in list(self._requests) if request[0].upper() == name]

    # --- all connections

    def stall(self, *directions: Direction) -> None:
        """Nothing comes through any more, and nothing is closed: a half-open connection."""
        self._stalled.update(directions or _BOTH)

    def resume(self) -> None:
        """Undo `stall`, `mute`, `slow` and `delay`; what was held back arrives."""
        self._stalled.clear()
        self._muted, self._bytes_per_s, self._delay_s = False, None, 0.0

    def freeze(self) -> None:
        """The connections that there are go half-open, for good; new ones work."""
        for link in list(self._links):
            link.frozen = True

    def mute(self) -> None:
        """New connections are accepted and never answered; the others go on."""
        self._muted = True

    def slow(self, bytes_per_s: float) -> None:
        """Replies trickle, on each connection at this rate."""
        self._bytes_per_s = bytes_per_s

    def delay(self, seconds: float) -> None:
        """Whatever the server sends at once comes so much later."""
        self._delay_s = seconds

    def drop(self) -> None:
        """Close every connection; new ones are welcome."""
        self._call(self._drop())

    def refuse(self) -> None:
        """Close every connection and refuse new ones, as a server that was stopped."""
        self._call(self._refuse())

    def accept(self) -> None:
        """Undo `refuse`."""
        self._call(self._listen())

    def stop(self) -> None:
        """`refuse`, for good."""
        if self._loop.is_closed():
            return
        self._call(self._refuse())
        self._call(asyncio.sleep(_TICK_S))  # what was closed is closed on the next turn
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # --- on the loop's thread

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=10)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self._drop()

    async def _drop(self) -> None:
        links, self._links = self._links, set()
        for link in links:
            link.task.cancel()
        await asyncio.gather(*(link.task for link in links), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        link = _Link(client=(reader, writer), task=task, muted=self._muted)
        self._links.add(link)
        try:
            await self._carry(link)
        except (OSError, Cut, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(link)
            link.close()

    async def _carry(self, link: _Link) -> None:
        while link.muted and self._muted:  # noqa: ASYNC110 - as above
            await asyncio.sleep(_TICK_S)
        link.server = await asyncio.open_connection(*self._target)
        ways = [
            asyncio.ensure_future(self._carry_requests(link)),
            asyncio.ensure_future(self._carry_replies(link)),
        ]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in done:
                way.result()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _carry_requests(self, link: _Link) -> None:
        reader, (_, writer) = link.client[0], link.server
        splitter = Splitter()
        while data := await reader.read(1 << 16):
            await self._gate("requests", link)
            for request in splitter.feed(data):
                self._requests.append(words(request))
                rule = self._rule_for(request)
                if rule is not None and rule.action.on_request and self._take(rule):
                    await rule.action.run(rule, request, _no_send)
                link.pending.append(rule)
                writer.write(request)
            await writer.drain()

    async def _carry_replies(self, link: _Link) -> None:
        reader, (_, writer) = link.server[0], link.client
        splitter = Splitter()

        async def send(data: bytes) -> None:
            await self._send(writer, data)

        while data := await reader.read(1 << 16):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            for reply in splitter.feed(data):
                await self._gate("replies", link)
                answers_one = link.pending and not reply.startswith(b">")
                rule = link.pending.popleft() if answers_one else None
                passed = reply
                if rule is not None and rule.reply_holds in reply and self._take(rule):
                    passed = await rule.action.run(rule, reply, send)
                await send(passed)

    def _rule_for(self, request: bytes) -> Rule | None:
        command = words(request)[0].upper()
        for rule in self._rules:
            if rule.left and rule.command == command and rule.holds in request:
                return rule
        return None

    def _take(self, rule: Rule) -> bool:
        """Whether the rule is still to be applied; counts it."""
        if not rule.left:
            return False
        rule.left -= 1
        rule.count()
        return True

    async def _gate(self, direction: Direction, link: _Link) -> None:
        while direction in self._stalled or link.frozen:  # noqa: ASYNC110 - as above
            await asyncio.sleep(_TICK_S)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        while data and (rate := self._bytes_per_s):
            piece = max(1, round(rate / 20))
            writer.write(data[:piece])
            await writer.drain()
            data = data[piece:]
            await asyncio.sleep(piece / rate)
        writer.write(data)
        await writer.drain()


_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True, eq=False)
class _Link:
    """One client's connection, and the one to the server that was made for it."""

    client: _Ends
    task: asyncio.Task[Any]
    muted: bool
    frozen: bool = False
    server: Any = None  # _Ends, once connected
    pending: deque[Rule | None] = field(default_factory=deque)  # one per unanswered request

    def close(self) -> None:
        for ends in (self.client, self.server):
            if ends is not None:
                ends[1].close()


async def _no_send(_data: bytes) -> None:
    """A request is not answered."""
