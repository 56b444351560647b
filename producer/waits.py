"""Who waits for which job: what both kinds of watcher keep, without clocks and threads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from contract.errors import PrefillqError, RedisUnreachable, TimedOut
from contract.ids import tenant_of
from contract.types import JobState

POLL_S = 1.0  # between looks at the records, for up to POLL_JOBS of them; longer for more
POLL_JOBS = 1000
OUTAGE_S = 30.0  # a wait survives a Redis that is away for this long
TICK_S = 0.1  # how late a new tenant's notices may be asked for


class Wait(Protocol):
    """Where a waiter is told of a job that ended, or why it waits in vain."""

    def put(self, item: str | Exception, /) -> None: ...


W = TypeVar("W", bound=Wait)


class Waits(Generic[W]):
    """One entry per job waited for."""

    def __init__(self) -> None:
        self._by_job: dict[str, list[W]] = {}
        self.tenants: set[str] = set()  # of all jobs since anything was last waited for

    def __len__(self) -> int:
        return len(self._by_job)

    def add(self, wait: W, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self.tenants.add(tenant_of(job_id))
            self._by_job.setdefault(job_id, []).append(wait)

    def remove(self, wait: W, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            waits = self._by_job.get(job_id, [])
            if wait in waits:
                waits.remove(wait)
            if not waits:
                self._by_job.pop(job_id, None)
        self._forget_tenants()

    def tell(self, job_id: str) -> None:
        """The job has ended. Told once and forgotten, however slowly the waiter takes it."""
        for wait in self._by_job.pop(job_id, ()):
            wait.put(job_id)
        self._forget_tenants()

    def tell_all(self, error: Exception) -> None:
        """All wait in vain."""
        for wait in {id(w): w for waits in self._by_job.values() for w in waits}.values():
            wait.put(error.copied() if isinstance(error, PrefillqError) else error)

    def jobs(self, tenant: str | None = None) -> list[str]:
        """The jobs that are waited for; with `tenant` only its."""
        return [
            job_id for job_id in self._by_job if tenant is None or job_id.startswith(f"{tenant}.")
        ]

    def _forget_tenants(self) -> None:
        if not self._by_job:
            self.tenants.clear()


def ended_of(job_ids: Sequence[str], states: Sequence[JobState | None]) -> Iterator[str]:
    """Those that have ended or have no record that can be read: their own `view` says so."""
    for job_id, state in zip(job_ids, states, strict=True):
        if state is None or state.ended:
            yield job_id


def poll_after_s(poll_s: float, jobs: int) -> float:
    """Seconds until the records are due for a look."""
    return poll_s * max(1.0, jobs / POLL_JOBS)


def timed_out(pending: Collection[str], total: int) -> TimedOut:
    return TimedOut(
        f"{len(pending)} of {total} job(s) have not ended in time",
        given=f"still waiting for {min(pending)}",
        remedy="The jobs go on: wait again, or cancel them.",
    )


def in_vain(outage: Outage, pending: Collection[str], total: int) -> PrefillqError:
    """The error of a wait whose time is over: Redis's own while it is away."""
    return timed_out(pending, total) if outage.error is None else outage.error.copied()


def closed() -> PrefillqError:
    return PrefillqError("the producer is closed", remedy="Make a new one.")


def closed_while_waiting() -> PrefillqError:
    return PrefillqError("the producer was closed while waiting for jobs")


class Outage:
    """How long Redis has been away."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since = 0.0
        self.error: RedisUnreachable | None = None  # while it lasts

    def note(self, error: RedisUnreachable, now: float) -> bool:
        """Redis did not answer; True when it has been away for too long."""
        if self.error is None:
            self._since = now
        self.error = error
        return now - self._since >= self._patience_s

    def over(self) -> None:
        self.error = None
