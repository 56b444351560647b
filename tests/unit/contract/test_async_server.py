"""The line in which an event loop's calls wait, over a client that answers when it is told to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from contract.async_server import CONNECTIONS, AsyncNotices, AsyncServer
from contract.calls import command
from contract.errors import PrefillqError, RedisUnreachable
from contract.settings import Settings


class Wire:
    """A client, and all its pipelines that were sent and have no reply yet."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, asyncio.Future[list[Any]]]] = []
        self.closed = False

    def pipeline(self, *, transaction: bool) -> _Pipe:
        assert not transaction
        return _Pipe(self)

    async def answered(self, count: int) -> None:
        """Reply to that many, in one turn of the loop, once they were sent."""
        async with asyncio.timeout(5):
            while len(self.sent) < count:  # noqa: ASYNC110
                await asyncio.sleep(0)
        group, self.sent = self.sent[:count], self.sent[count:]
        for calls, reply in group:
            reply.set_result([b"ok"] * calls)

    async def aclose(self) -> None:
        self.closed = True

    def pubsub(self) -> _Mute:
        return _Mute()


class _Mute:
    """Connects for ever, as to a host that drops what it is sent."""

    async def get_message(self, **_: float) -> None:
        await asyncio.Event().wait()


class _Pipe:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._calls = 0

    def execute_command(self, *_: Any) -> None:
        self._calls += 1

    async def execute(self, *, raise_on_error: bool) -> list[Any]:
        assert not raise_on_error
        reply: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._wire.sent.append((self._calls, reply))
        return await reply


async def ask(server: AsyncServer) -> Any:
    [reply] = await server.ask_each([command("PING")])
    return reply


async def in_flight(server: AsyncServer, wire: Wire, *, times: int = 1) -> list[asyncio.Task[Any]]:
    """As many callers as there are connections, one on each; the first asks that many times."""

    async def asks(times: int) -> Any:
        for _ in range(times):
            reply = await ask(server)
        return reply

    asking = []
    for count in range(1, CONNECTIONS + 1):
        asking.append(asyncio.create_task(asks(times if count == 1 else 1)))
        while len(wire.sent) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)
    return asking


def test_who_asks_again_at_once_is_answered() -> None:
    """Also when all senders came to their end in the turn before."""

    async def scenario() -> None:
        wire = Wire()
        server = AsyncServer(wire, Settings())  # type: ignore[arg-type]
        asking = await in_flight(server, wire, times=2)
        await wire.answered(CONNECTIONS)
        await wire.answered(1)
        async with asyncio.timeout(5):
            assert await asyncio.gather(*asking) == [b"ok"] * CONNECTIONS
        await server.close()

    asyncio.run(scenario())


def test_an_error_that_nobody_thought_of_is_the_callers_and_the_line_goes_on() -> None:
    """Those whose calls were sent with it get it as it is; those behind them are answered."""

    async def scenario() -> None:
        wire = Wire()
        server = AsyncServer(wire, Settings())  # type: ignore[arg-type]
        asking = await in_flight(server, wire)
        behind = asyncio.create_task(ask(server))
        await asyncio.sleep(0)
        for _, reply in wire.sent[1:]:
            reply.set_exception(ValueError("broken"))
        wire.sent[0][1].set_exception(ValueError("broken"))
        wire.sent.clear()
        await wire.answered(1)
        async with asyncio.timeout(5):
            assert await behind == b"ok"
            for each in asking:
                with pytest.raises(ValueError, match="broken"):
                    await each
        await server.close()

    asyncio.run(scenario())


def test_nobody_waits_for_a_sender_that_was_cancelled() -> None:
    """As when a loop ends: those on the wire and those in the line are told."""

    async def scenario() -> None:
        wire = Wire()
        server = AsyncServer(wire, Settings())  # type: ignore[arg-type]
        asking = await in_flight(server, wire)
        asking.append(asyncio.create_task(ask(server)))
        await asyncio.sleep(0)
        for sender in server._senders:
            sender.cancel()
        async with asyncio.timeout(5):
            for each in asking:
                with pytest.raises(PrefillqError, match="closed"):
                    await each
        wire.sent.clear()
        again = asyncio.create_task(ask(server))
        await wire.answered(1)
        async with asyncio.timeout(5):
            assert await again == b"ok"

    asyncio.run(scenario())


def test_another_loop_is_told_so() -> None:
    """What ends in the first would not wake it, and its connections are not there."""
    wire = Wire()
    server = AsyncServer(wire, Settings())  # type: ignore[arg-type]

    async def scenario() -> None:
        asking = asyncio.create_task(ask(server))
        await wire.answered(1)
        assert await asking == b"ok"

    async def elsewhere() -> None:
        with pytest.raises(PrefillqError, match="another event loop"):
            async with asyncio.timeout(5):
                await ask(server)

    asyncio.run(scenario())
    asyncio.run(elsewhere())


def test_a_cancelled_close_closes_all_the_same() -> None:
    """And those who wait are told."""

    async def scenario() -> None:
        wire = Wire()
        server = AsyncServer(wire, Settings())  # type: ignore[arg-type]
        asking = await in_flight(server, wire)
        asking.append(asyncio.create_task(ask(server)))
        await asyncio.sleep(0)
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0)
        closing.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await closing
            for each in asking:
                with pytest.raises(PrefillqError, match="closed"):
                    await each
        assert wire.closed

    asyncio.run(scenario())


def test_notices_that_cannot_connect_say_so() -> None:
    """In bounded time: whoever listens looks at the records between two notices."""

    async def scenario() -> None:
        notices = AsyncNotices(Wire(), Settings(redis_timeout_s=0.2))  # type: ignore[arg-type]
        async with asyncio.timeout(5):
            with pytest.raises(RedisUnreachable):
                await notices.next(0.1)

    asyncio.run(scenario())
