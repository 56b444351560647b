"""Trying again while Redis cannot be reached, for as long as the caller asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from contract.errors import RedisUnreachable

T = TypeVar("T")

RETRY_S = 0.25


@dataclass(frozen=True, slots=True)
class Patience:
    """`seconds` of trying; 0 tries once."""

    seconds: float = 0.0

    def until(self) -> float:
        """When it ends if it begins now, on the monotonic clock."""
        return time.monotonic() + self.seconds

    def call(self, act: Callable[[], T], *, until: float | None = None) -> T:
        """What `act` gives. It must be safe to repeat, for its reply may be all that was lost.

        Raises RedisUnreachable when patience has ended (at `until`, if several calls share it).
        """
        give_up = self.until() if until is None else until
        while True:
            try:
                return act()
            except RedisUnreachable:
                if time.monotonic() + RETRY_S > give_up:
                    raise
            time.sleep(RETRY_S)


NONE = Patience()
