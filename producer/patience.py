"""Trying again while Redis cannot be reached, for as long as the caller asked."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from contract.awaited import Sleep, run_now
from contract.errors import RedisUnreachable

T = TypeVar("T")

RETRY_S = 0.25
TURN_S = 0.005  # of work without a pause


async def blocking_sleep(seconds: float) -> None:
    """`Sleep` of what runs over a blocking client."""
    if seconds:  # a pause is for others in the loop, and there are none
        time.sleep(seconds)  # noqa: ASYNC251 - no event loop runs this


def time_left(timeout: float | None) -> Callable[[], float | None]:
    """Says how many of `timeout` seconds from now are left; None for no limit."""
    give_up = None if timeout is None else time.monotonic() + timeout
    return lambda: None if give_up is None else max(0.0, give_up - time.monotonic())


class Pace:
    """Of a long piece of work: lets the event loop's others have a turn now and then."""

    def __init__(self, sleep: Sleep) -> None:
        self._sleep = sleep
        self._since = time.monotonic()

    async def step(self) -> None:
        """Between two items, whatever one takes."""
        if time.monotonic() - self._since >= TURN_S:
            await self._sleep(0)
            self._since = time.monotonic()


@dataclass(frozen=True, slots=True)
class Patience:
    """`seconds` of trying; 0 tries once."""

    seconds: float = 0.0

    def until(self, at_most_s: float | None = None) -> float:
        """When it ends if it begins now, on the monotonic clock; `at_most_s`: what is left of a
        timeout, which goes before patience."""
        seconds = self.seconds if at_most_s is None else min(self.seconds, at_most_s)
        return time.monotonic() + seconds

    def call(self, act: Callable[[], T], *, until: float | None = None) -> T:
        """What `act` gives. It must be safe to repeat, for its reply may be all that was lost.

        Raises RedisUnreachable when patience has ended (at `until`, if several calls share it).
        """

        async def acts() -> T:
            return act()

        return run_now(self.wait_for(acts, sleep=blocking_sleep, until=until))

    async def wait_for(
        self, act: Callable[[], Awaitable[T]], *, sleep: Sleep, until: float | None = None
    ) -> T:
        """As `call`, of what is awaited."""
        give_up = self.until() if until is None else until
        while True:
            try:
                return await act()
            except RedisUnreachable:
                if time.monotonic() + RETRY_S > give_up:
                    raise
            await sleep(RETRY_S)


NONE = Patience()
