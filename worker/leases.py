"""Keeps the leases of running jobs alive, in the record and at the broker.

A job is its worker's while the record's lease lasts. The broker has a clock of its own: a
message that is not acknowledged within the visibility timeout is delivered again. Both are
pushed forward from one thread every quarter of the lease, so that a long job runs once and a
killed worker's job is free again after one lease.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from contract import keys
from contract.errors import PrefillqError, RedisRefused, RedisUnreachable
from contract.job_store import JobStore, StopReason
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained
from contract.settings import Settings
from worker.periodic import Periodic

log = get_logger(__name__)

# Why a running job should stop: its record says so, or its worker ends and gives it back.
Stop = StopReason | Literal["returned"]

# How often a running job looks at its record for a cancel, between decode steps.
POLL_S = 0.5


@dataclass(slots=True, kw_only=True)
class HeldLease:
    """One running job's lease. Written by the renewing thread, read by the engine's."""

    job_id: str
    fence: int
    delivery_tag: str | None
    look: Callable[[], StopReason | None]  # asks the record
    _stop: Stop | None = None
    _looked_at: float = field(default_factory=time.monotonic)
    asked_at: float = field(default_factory=time.monotonic)  # when the job last made a step

    @property
    def known_stop(self) -> Stop | None:
        """The last known reason to stop, without asking the record."""
        return self._stop

    def stop_reason(self) -> Stop | None:
        """Why the engine should stop, or None; reads the record at most every POLL_S.

        An absent Redis stops nothing: the job may well end before the lease does, and the
        fence refuses it if not.
        """
        now = self.beat()
        if self._stop is None and now - self._looked_at >= POLL_S:
            self._looked_at = now
            try:
                self._stop = self.look()
            except (RedisUnreachable, RedisRefused) as error:
                log.warning("stop_check_skipped", job_id=self.job_id, error=str(error))
        return self._stop

    def beat(self) -> float:
        """The job made a step; returns the time of it."""
        self.asked_at = time.monotonic()
        return self.asked_at

    def end(self, reason: Stop) -> None:
        """Make the engine stop at its next step."""
        self._stop = reason


class LeaseKeeper:
    """All leases this worker holds, and the thread that renews them."""

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
        self._thread = Periodic("lease-renewal", self.renew_all, interval_s=self.lease_s / 4)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    @contextmanager
    def hold(
        self, job_id: str, fence: int, *, delivery_tag: str | None = None
    ) -> Iterator[HeldLease]:
        """Keep the job's lease alive inside the block."""
        held = HeldLease(
            job_id=job_id,
            fence=fence,
            delivery_tag=delivery_tag,
            look=lambda: self._store.stop_reason(job_id, fence),
        )
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
        with self._lock:
            asked_at = [lease.asked_at for lease in self._held.values()]
        return time.monotonic() - max(asked_at) if asked_at else 0.0

    def return_all(self) -> None:
        """Make every running job stop at its next step, to be given back."""
        with self._lock:
            held = list(self._held.values())
        for lease in held:
            lease.end("returned")

    def renew_all(self) -> None:
        """Renew every held lease once; a lost one stops its job."""
        with self._lock:
            held = list(self._held.values())
        for lease in held:
            try:
                self._renew(lease)
            except PrefillqError as error:
                # The next lease's renewal does not depend on this one's.
                log.warning("lease_not_renewed", job_id=lease.job_id, error=str(error))

    def _renew(self, lease: HeldLease) -> None:
        match self._store.renew(lease.job_id, lease.fence, self.lease_s):
            case "lost":
                lease.end("lost")
            case "cancel_requested":
                lease.end("cancelled")
        if self._broker is not None and lease.delivery_tag is not None:
            with errors_explained(self._settings):
                # XX: a message that was acknowledged meanwhile must not come back.
                self._broker.zadd(
                    f"{keys.BROKER_PREFIX}unacked_index", {lease.delivery_tag: time.time()}, xx=True
                )
