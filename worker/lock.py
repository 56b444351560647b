"""A lock in Redis that one worker has at a time, for as long as it says that it is still at it."""

from __future__ import annotations

import time
from collections.abc import Callable

from contract import keys
from contract.records import job_library
from contract.redis_client import Client, errors_explained
from contract.scripts import Scripts
from contract.settings import Settings


class JanitorLock:
    """Who sweeps now. Not safe to share between threads.

    Every method raises RedisUnreachable and RedisRefused.
    """

    def __init__(
        self,
        client: Client,
        settings: Settings,
        worker_id: str,
        *,
        hold_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._settings = settings
        self._scripts = Scripts(client, settings, job_library())
        self._worker_id = worker_id
        self._hold_s = hold_s
        self._clock = clock
        self._kept_at = 0.0

    def take(self) -> bool:
        """Have it for `hold_s` seconds, unless somebody has it."""
        self._kept_at = self._clock()
        with errors_explained(self._settings):
            return bool(
                self._client.set(keys.JANITOR, self._worker_id, nx=True, px=_ms(self._hold_s))
            )

    def keep(self) -> bool:
        """Have it for another `hold_s` seconds; False when it was lost meanwhile.

        Redis is asked once a quarter of that is over: before, nobody else can have it.
        """
        asked_at = self._clock()
        if asked_at - self._kept_at < self._hold_s / 4:
            return True
        self._kept_at = asked_at
        return self._keep(self._hold_s)

    def leave(self, *, after_s: float) -> None:
        """Nobody has it from `after_s` seconds on."""
        self._keep(after_s)

    def _keep(self, seconds: float) -> bool:
        with errors_explained(self._settings):
            return bool(
                self._scripts.run("keep", keys=[keys.JANITOR], args=[self._worker_id, _ms(seconds)])
            )


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
