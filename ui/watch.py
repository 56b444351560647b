"""One reader of Redis, however many browsers look: what was read is kept a moment and shared."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from contract.errors import PrefillqError, RedisUnreachable

T = TypeVar("T")

_KEPT = 64  # things, the least recently shown out first


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """Redis does not answer; what is shown is old."""

    error: RedisUnreachable
    since: datetime


@dataclass(slots=True, kw_only=True)
class Seen(Generic[T]):
    """What was read, or why it could not be. `away` is set beside a value that is old."""

    value: T | None = None
    error: PrefillqError | None = None
    away: Away | None = None
    read_at: float = 0.0  # on this process's clock


class Watch:
    """For one event loop. Reads in threads, one at a time."""

    def __init__(self, *, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval_s = interval_s
        self._clock = clock
        self._lock = asyncio.Lock()
        self._kept: OrderedDict[str, Seen[Any]] = OrderedDict()
        self._away: Away | None = None
        self._failed_at = 0.0

    async def see(self, name: str, read: Callable[[], T], *, every_s: float = 0.0) -> Seen[T]:
        """What `read` gave within the interval, or within `every_s` if that is longer.

        While Redis is away the last value is given, and whether it is back is tried once per
        interval, whatever is asked for.
        """
        async with self._lock:
            kept = self._kept.get(name)
            now = self._clock()
            if self._away is not None and now - self._failed_at < self.interval_s:
                return self._old(kept)
            fresh_s = max(self.interval_s, every_s)
            if kept is not None and kept.away is None and now - kept.read_at < fresh_s:
                self._kept.move_to_end(name)
                return kept
            try:
                value = await asyncio.to_thread(read)
                seen = Seen(value=value, read_at=now)
            except RedisUnreachable as error:
                since = datetime.now(UTC) if self._away is None else self._away.since
                self._away, self._failed_at = Away(error=error, since=since), self._clock()
                return self._old(kept)
            except PrefillqError as error:
                seen = Seen(error=error, read_at=now)
            self._away = None
            self._kept[name] = seen
            self._kept.move_to_end(name)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return seen

    def _old(self, kept: Seen[T] | None) -> Seen[T]:
        away = self._away
        if kept is None:
            return Seen(error=None if away is None else away.error, away=away)
        return Seen(value=kept.value, error=kept.error, away=away, read_at=kept.read_at)
