"""Keeps the leases of running jobs alive, in the record and at the broker.

A job is its worker's while the record's lease lasts. The broker has a clock of its own: a
message that is not acknowledged within the visibility timeout is delivered again. Both are
pushed forward from one thread every quarter of the lease, so that a long job runs once and a
killed worker's job is free again after one lease.

All leases are renewed in one round trip, and another thread looks, as often as POLL_S, whether a
job should stop. The engine only reads what was found: were it to ask Redis itself between its
steps, a slow or silent Redis would hold up every job in the batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from contract import keys
from contract.errors import PrefillqError
from contract.job_store import JobStore, StopReason
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained
from contract.settings import Settings
from worker.periodic import Periodic

log = get_logger(__name__)

# Why a running job should stop: its record says so, or its worker ends and gives it back.
Stop = StopReason | Literal["returned"]


class Stoppable(Protocol):
    """Who knows why an answer should stop; a `HeldLease` does."""

    def stop_reason(self) -> Stop | None:
        """Why the engine should stop, or None. Asked between its steps."""


# How often the records of running jobs are looked at for a cancel or a deadline.
POLL_S = 0.5


@dataclass(slots=True, kw_only=True)
class HeldLease:
    """One running job's lease. Written by the keeper's threads, read by the engine's."""

    job_id: str
    fence: int
    delivery_tag: str | None
    _stop: Stop | None = None
    asked_at: float = field(default_factory=time.monotonic)  # when the job last made a step

    def stop_reason(self) -> Stop | None:
        """Why the engine should stop, as last seen, or None.

        An absent Redis stops nothing: the job may well end before the lease does, and the
        fence refuses it if not.
        """
        self.beat()
        return self._stop

    def beat(self) -> float:
        """The job made a step; returns the time of it."""
        self.asked_at = time.monotonic()
        return self.asked_at

    def end(self, reason: Stop) -> None:
        """Make the engine stop at its next step."""
        self._stop = reason

    @property
    def stops(self) -> bool:
        """True once it was told to."""
        return self._stop is not None


class LeaseKeeper:
    """All leases this worker holds, and the threads that look after them."""

    def __init__(
        self, store: JobStore, *, settings: Settings, broker: Client | None = None
    ) -> None:
        self.lease_s = settings.lease_s
        self._settings = settings
        self._store = store
        self._broker = broker
        # By job and fence: a job whose lease was lost may come back to this very worker while
        # its former run has not yet noticed.
        self._held: dict[tuple[str, int], HeldLease] = {}
        self._lock = threading.Lock()
        self._threads = [
            Periodic("lease-renewal", self.renew_all, interval_s=self.lease_s / 4),
            Periodic("lease-look", self.look_all, interval_s=POLL_S),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for thread in self._threads:
            thread.stop()

    @contextmanager
    def hold(
        self, job_id: str, fence: int, *, delivery_tag: str | None = None
    ) -> Iterator[HeldLease]:
        """Keep the job's lease alive inside the block."""
        held = HeldLease(job_id=job_id, fence=fence, delivery_tag=delivery_tag)
        with self._lock:
            self._held[job_id, fence] = held
        try:
            yield held
        finally:
            with self._lock:
                del self._held[job_id, fence]

    @property
    def running(self) -> int:
        """Number of leases held now."""
        with self._lock:
            return len(self._held)

    @property
    def silent_s(self) -> float:
        """Seconds since any running job made a step; 0 when none runs."""
        now = time.monotonic()
        return now - max((lease.asked_at for lease in self._all()), default=now)

    @property
    def stuck_s(self) -> float:
        """The longest that a job that was to stop has made no step; 0 when there is none."""
        now = time.monotonic()
        return now - min((lease.asked_at for lease in self._all() if lease.stops), default=now)

    def return_all(self) -> None:
        """Make every running job stop at its next step, to be given back."""
        for lease in self._all():
            lease.end("returned")

    def renew_all(self) -> None:
        """Renew every held lease once; a lost one stops its job."""
        held = self._all()
        if not held:
            return
        replies = self._store.renew_many([(it.job_id, it.fence) for it in held], self.lease_s)
        for lease, reply in zip(held, replies, strict=True):
            match reply:
                case "lost":
                    lease.end("lost")
                case "cancel_requested":
                    lease.end("cancelled")
                case PrefillqError():
                    log.warning("lease_not_renewed", job_id=lease.job_id, error=str(reply))
        self._renew_messages(held)

    def look_all(self) -> None:
        """Find out which running jobs should stop, and make them."""
        held = self._all()
        if not held:
            return
        reasons = self._store.stop_reasons([(lease.job_id, lease.fence) for lease in held])
        for lease, reason in zip(held, reasons, strict=True):
            if isinstance(reason, PrefillqError):
                log.warning("stop_check_skipped", job_id=lease.job_id, error=str(reason))
            elif reason is not None:
                lease.end(reason)

    def _all(self) -> list[HeldLease]:
        with self._lock:
            return list(self._held.values())

    def _renew_messages(self, held: list[HeldLease]) -> None:
        now = time.time()  # the clock by which kombu, in this process, counts what it took
        scores = {lease.delivery_tag: now for lease in held if lease.delivery_tag is not None}
        if self._broker is not None and scores:
            with errors_explained(self._settings):
                # XX: a message that was acknowledged meanwhile must not come back.
                self._broker.zadd(f"{keys.BROKER_PREFIX}unacked_index", scores, xx=True)
