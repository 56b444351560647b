"""Rings again for jobs whose message was lost: the record is the truth, the message a doorbell.

A message can be lost with its worker, on its way from the broker, or when it came back while
its job was still leased. Ringing once too often costs one refused claim; never ringing would
cost the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from contract import keys
from contract.errors import PrefillqError, RedisFull, RedisRefused, RedisUnreachable
from contract.job_store import JobStore
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained, text
from contract.settings import Settings
from worker.lock import JanitorLock
from worker.ringing import Rings

log = get_logger(__name__)

LIMIT = 64  # jobs of each kind, per tenant and sweep
SWEEP_LIMIT = 1024  # jobs of all tenants, after which a sweep leaves the others to the next


class Janitor:
    """One sweep at a time among all workers, at most every `interval_s`, of bounded work."""

    def __init__(
        self,
        *,
        client: Client,
        settings: Settings,
        store: JobStore,
        worker_id: str,
        rung_again: Callable[[], None] = lambda: None,  # told of each ring
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._client = client
        self._settings = settings
        self._store = store
        self._rings = Rings(client, settings)
        self._rung_again = rung_again
        # Often enough that a killed worker's jobs wait for little more than their lease.
        self.interval_s = min(5.0, settings.lease_s / 4)
        # For a lease: the jobs of a worker that was killed while it swept wait that long anyway.
        self._lock = JanitorLock(client, settings, worker_id, hold_s=settings.lease_s, clock=clock)
        self._swept_last = ""  # tenant
        self._looked_at = clock()
        # Before that a lease that ran out says nothing: there may have been an outage just before
        # this worker began.
        self._trusts_leases_at = clock() + settings.lease_s
        self._trusts_tenant_at: dict[str, float] = {}

    def sweep(self) -> int:
        """Ring for every job that needs it; returns how many. 0 when another worker sweeps."""
        if self._clock() - self._looked_at > 1.5 * self._settings.lease_s:
            # This process stood still, and what runs in it could renew no lease either.
            self._distrust_leases()
        self._looked_at = self._clock()
        try:
            return self._sweep()
        except (RedisUnreachable, RedisRefused):
            self._distrust_leases()
            raise

    def _sweep(self) -> int:
        if not self._lock.take():
            return 0
        rung = seen = 0
        with errors_explained(self._settings):
            tenants = sorted(text(tenant) for tenant in self._client.smembers(keys.TENANTS))
        # After the one that was swept last, so that all have their turn.
        tenants.sort(key=lambda tenant: tenant <= self._swept_last)
        for tenant in tenants:
            if seen >= SWEEP_LIMIT:
                break
            if not self._lock.keep():
                log.warning("sweep_given_up", tenant=tenant)
                return rung
            self._swept_last = tenant
            found = self._sweep_tenant(tenant)
            seen += found[0]
            rung += found[1]
        self._lock.leave(after_s=self.interval_s * 0.8)
        return rung

    def _sweep_tenant(self, tenant: str) -> tuple[int, int]:
        """How many jobs were looked at and how many rung for.

        What is wrong with one tenant's keys is no reason to forget the others. Raises
        RedisUnreachable when Redis answers nobody.
        """
        try:
            late = self._store.overdue(tenant, limit=LIMIT, leases_tell=self._trusts_leases(tenant))
            missing = self._rings.missing(late)
            # Before the ring: a job that is refused at once, for lack of room, stays held.
            self._store.rung(late)
            self._rings.ring(missing)
        except PrefillqError as error:
            if isinstance(error, RedisUnreachable):
                with errors_explained(self._settings):
                    self._client.ping()
            if isinstance(error, RedisFull):
                self._distrust_leases()
            log.warning("tenant_not_swept", tenant=tenant, error=str(error))
            self._trusts_tenant_at[tenant] = self._clock() + self._settings.lease_s
            return LIMIT, 0
        for job in missing:
            log.info("rung_again", job_id=job.job_id, queue=job.queue, state=str(job.state))
            self._rung_again()
        return len(late), len(missing)

    def _distrust_leases(self) -> None:
        """Nobody could renew a lease either, so one that ran out says nothing of its worker: they
        all have the time of one lease to come back.
        """
        self._trusts_leases_at = self._clock() + self._settings.lease_s

    def _trusts_leases(self, tenant: str) -> bool:
        return self._clock() >= max(self._trusts_leases_at, self._trusts_tenant_at.get(tenant, 0.0))
