"""Rings again for jobs whose message was lost: the record is the truth, the message a doorbell.

A message can be lost with its worker, on its way from the broker, or when it came back while
its job was still leased. Ringing once too often costs one refused claim; never ringing would
cost the job.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import cast

from contract import keys
from contract.errors import RedisRefused, RedisUnreachable
from contract.job_store import Doorbell, JobStore
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained, text
from contract.settings import Settings
from contract.types import JobState
from worker.doorbell import job_in
from worker.ringing import Ring

log = get_logger(__name__)

LATER_MS = 1000  # producers' clocks differ; being wrong costs one refused claim
LIMIT = 64  # of each kind, per tenant and sweep: a sweep's work is bounded


class Janitor:
    """One sweep at a time among all workers, at most every `interval_s`."""

    def __init__(
        self,
        *,
        client: Client,
        settings: Settings,
        store: JobStore,
        worker_id: str,
        ring: Ring,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._trusts_leases_at = -math.inf
        self._client = client
        self._settings = settings
        self._store = store
        self._worker_id = worker_id
        self._ring = ring
        # Often enough that a killed worker's jobs wait for little more than their lease.
        self.interval_s = min(5.0, settings.lease_s / 4)

    def sweep(self) -> int:
        """Ring for every job that needs it; returns how many. 0 when another worker sweeps."""
        try:
            return self._sweep()
        except (RedisUnreachable, RedisRefused):
            self._distrust_leases()
            raise

    def _sweep(self) -> int:
        if not self._is_ours():
            return 0
        rung = 0
        with errors_explained(self._settings):
            tenants = sorted(text(tenant) for tenant in self._client.smembers(keys.TENANTS))
        for tenant in tenants:
            try:
                rung += self._sweep_tenant(tenant)
            except RedisRefused as error:
                # Something is wrong with this one's keys: no reason to forget the others.
                log.warning("tenant_not_swept", tenant=tenant, error=str(error))
                self._distrust_leases()
        return rung

    def _sweep_tenant(self, tenant: str) -> int:
        late = [job for job in self._store.overdue(tenant, limit=LIMIT) if self._may_ring(job)]
        # All before the first ring, which changes what the next message is. Each ring goes before
        # those that are there, so the longest overdue comes last.
        silent = [job for job in late if self._has_no_message(job)]
        for job in reversed(silent):
            self._ring(job.queue, job.job_id)
            log.info("rung_again", job_id=job.job_id, queue=job.queue, state=str(job.state))
        self._store.rung(late)
        return len(silent)

    def _is_ours(self) -> bool:
        with errors_explained(self._settings):
            ttl_ms = round(self.interval_s * 800)
            return bool(self._client.set(keys.JANITOR, self._worker_id, nx=True, px=ttl_ms))

    def _distrust_leases(self) -> None:
        """Nobody could renew a lease either, so one that ran out says nothing of its worker: they
        all have the time of one lease to come back.
        """
        self._trusts_leases_at = self._clock() + self._settings.lease_s

    def _may_ring(self, job: Doorbell) -> bool:
        return job.state is not JobState.RUNNING or self._clock() >= self._trusts_leases_at

    def _has_no_message(self, job: Doorbell) -> bool:
        if job.silent or job.state is JobState.RUNNING:
            return True  # a running one's is with a worker that is gone, and comes back in a minute
        # A queued job in a queue that holds messages very likely has one of its own. It has none if
        # the next message to be taken is of a job that was submitted later.
        with errors_explained(self._settings):
            oldest = self._client.lindex(keys.messages(job.queue), -1)
        if oldest is None:
            return True
        next_job = job_in(cast(bytes, oldest), job.queue)
        return (
            next_job is not None and _submitted_ms(next_job) > _submitted_ms(job.job_id) + LATER_MS
        )


def _submitted_ms(job_id: str) -> int:
    return int(job_id[-32:-20], 16)
