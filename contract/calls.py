"""What is asked of Redis, apart from how: written once, for blocking clients and for asyncio's.

What both kinds of producer do is written as coroutines that await a `Server`. Over redis-py's
blocking client they never wait for anything, so that
`contract.awaited.run_now` gives their result like a plain
call; over `contract.async_server.AsyncServer` an event loop runs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from contract.errors import PrefillqError
from contract.redis_client import Client, errors_explained
from contract.scripts import Argument, Scripts
from contract.settings import Settings

T = TypeVar("T")

BATCH = 256  # commands in one pipeline: bounds the memory of both ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of Redis with its arguments."""

    words: tuple[Argument, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One script of the server's library."""

    script: str
    keys: tuple[str, ...]
    args: tuple[Argument, ...]


Call = Command | Run


class Server(Protocol):
    """Where calls go."""

    async def ask_each(self, calls: Sequence[Call]) -> list[Any]:
        """All replies, in few round trips; what was refused is a PrefillqError in its place.

        Raises RedisUnreachable when there are no replies.
        """
        ...


def command(*words: Argument) -> Command:
    """`command("HGET", key, field)`."""
    return Command(words=words)


async def ask(server: Server, *calls: Call) -> list[Any]:
    """All replies. Raises RedisUnreachable, and the first refusal."""
    replies = await server.ask_each(calls)
    for reply in replies:
        if isinstance(reply, PrefillqError):
            raise reply
    return replies


class BlockingServer:
    """`Server` over a blocking client: no coroutine that asks it is ever suspended."""

    def __init__(self, client: Client, settings: Settings, scripts: Scripts | None = None) -> None:
        self._client: Any = client  # redis-py types each reply as a value or an awaitable
        self._settings = settings
        self._scripts = scripts

    async def ask_each(self, calls: Sequence[Call]) -> list[Any]:
        replies: list[Any] = []
        for group in groups(calls):
            with errors_explained(self._settings):
                pipe = self._client.pipeline(transaction=False)
                add(pipe, group, self._scripts)
                replies += pipe.execute(raise_on_error=False)
        return [explained(reply, self._settings) for reply in replies]


def add(pipe: Any, calls: Sequence[Call], scripts: Scripts | None) -> None:
    """Add calls to a pipeline of either client."""
    for call in calls:
        if isinstance(call, Command):
            pipe.execute_command(*call.words)
        elif scripts is None:
            raise PrefillqError(f"the script {call.script} is of no library here")
        else:
            scripts.add(call.script, keys=call.keys, args=call.args, pipe=pipe)


def explained(reply: Any, settings: Settings) -> Any:
    """A pipeline's reply; redis-py's error as ours."""
    if not isinstance(reply, Exception):
        return reply
    try:
        with errors_explained(settings):
            raise reply
    except PrefillqError as error:
        return error


def groups(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """The items, at most BATCH at a time."""
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]
