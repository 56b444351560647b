"""How long the jobs of a killed worker wait until another has them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from contract import keys
from contract.errors import RedisRefused, RedisUnreachable
from contract.redis_client import Client, errors_explained, text
from contract.settings import Settings
from tests.chaos.ledger import Ledger

_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One job of a killed worker, taken over."""

    job_id: str
    worker: str
    began_at: float  # wall clock, as in the ledger
    ended_at: float

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at


@dataclass(frozen=True, slots=True, kw_only=True)
class _Orphan:
    job_id: str
    worker: str
    fence: bytes
    killed_at: float


class Recoveries:
    """Follows each orphan until it is claimed again or ends; `look` is called often.

    Looks over a connection of its own, straight to Redis. A kill while Redis is away is not
    measured: nobody knows what the worker had. `tenants` are those whose jobs any worker may take.
    """

    def __init__(
        self, client: Client, settings: Settings, tenants: tuple[str, ...], events: Ledger
    ) -> None:
        self.done: list[Recovery] = []
        self.unmeasured = 0  # kills
        self._events = events
        self._client = client
        self._settings = settings
        self._tenants = tenants
        self._orphans: list[_Orphan] = []
        self._look_at = 0.0

    def killed(self, worker: str, pid: int) -> None:
        """Note which jobs this worker had when it was killed, just now."""
        killed_at = time.time()
        try:
            with errors_explained(self._settings):
                for tenant in self._tenants:
                    for member in self._client.zrange(keys.running(tenant), 0, -1):
                        job_id = text(member)
                        holder, fence = self._client.hmget(keys.job(job_id), "worker", "fence")
                        if fence is not None and f"-{pid}-" in text(holder or b""):
                            self._orphans.append(
                                _Orphan(
                                    job_id=job_id, worker=worker, fence=fence, killed_at=killed_at
                                )
                            )
        except (RedisUnreachable, RedisRefused):
            self.unmeasured += 1

    def look(self) -> None:
        """See which orphans have been claimed again."""
        if not self._orphans or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_S
        try:
            with errors_explained(self._settings):
                pipe = self._client.pipeline(transaction=False)
                for orphan in self._orphans:
                    pipe.hmget(keys.job(orphan.job_id), "fence", "state")
                found = pipe.execute()
        except (RedisUnreachable, RedisRefused):
            return
        now, waiting = time.time(), []
        for orphan, (fence, state) in zip(self._orphans, found, strict=True):
            if fence != orphan.fence:
                recovery = Recovery(
                    job_id=orphan.job_id,
                    worker=orphan.worker,
                    began_at=orphan.killed_at,
                    ended_at=now,
                )
                self.done.append(recovery)
                self._events.write(
                    "taken_over",
                    job_id=orphan.job_id,
                    worker=orphan.worker,
                    seconds=round(recovery.seconds, 2),
                )
            elif state in (b"running", b"queued"):
                waiting.append(orphan)
            # else it was cancelled, expired or used up: nobody need take it
        self._orphans = waiting
