"""What submitting needs, for whoever can await: over Redis, or over parts that block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from contract.calls import Server, ask, groups
from contract.doorbell import ring_last
from contract.errors import PrefillqError
from contract.ids import TemplateAddress
from contract.job_calls import JobDesk
from contract.job_store import JobStore, JobView, Submission, Submitted
from contract.pieces import Entry
from contract.types import JobState, VersionRef
from producer.bell import Bell, Ring
from producer.refused import OutcomeDesk
from templates.target import Target
from templates.version import PublishedVersion


class Versions(Protocol):
    """Where a producer finds templates; `templates.registry.Registry` is one."""

    def target(self, address: TemplateAddress) -> Target: ...
    def get(self, ref: VersionRef) -> PublishedVersion: ...


class VersionDesk(Protocol):
    """The same, awaited; `templates.lookup.VersionLookup` is one."""

    async def target(self, address: TemplateAddress) -> Target: ...
    async def get(self, ref: VersionRef) -> PublishedVersion: ...


class BellDesk(Protocol):
    """As `producer.bell.Bell`, awaited."""

    async def ring(self, rings: Iterable[Ring]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a producer works with. Tests pass parts that need no Redis."""

    store: JobStore
    undo_store: JobStore  # the same records, asked with less patience
    versions: Versions
    bell: Bell
    outcomes: OutcomeDesk | None = None  # None: nobody is told what a canary refuses

    def close(self) -> None:
        self.bell.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The same, for whoever can await."""

    jobs: JobDesk
    undo: JobDesk
    versions: VersionDesk
    bell: BellDesk
    outcomes: OutcomeDesk | None = None


def desk_of(parts: Parts) -> Desk:
    """Parts that block as ones to await; nobody who awaits them is ever suspended."""
    return Desk(
        jobs=StoreDesk(parts.store),
        undo=StoreDesk(parts.undo_store),
        versions=_Versions(parts.versions),
        bell=_Bell(parts.bell),
        outcomes=parts.outcomes,
    )


class StoreDesk:
    """`JobDesk` over a job store."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    async def submit_many(
        self, submissions: Sequence[Submission]
    ) -> list[Submitted | PrefillqError]:
        return self._store.submit_many(submissions)

    async def find(self, tenant: str, key: str, input_digest: str) -> Submitted | None:
        return self._store.find(tenant, key, input_digest)

    async def withdraw(self, job_id: str, *, idempotency_key: str | None = None) -> bool:
        return self._store.withdraw(job_id, idempotency_key=idempotency_key)

    async def cancel(self, job_id: str) -> JobState:
        return self._store.cancel(job_id)

    async def get(self, job_id: str) -> JobView:
        return self._store.get(job_id)

    async def score(self, job_id: str, name: str, value: float) -> None:
        self._store.score(job_id, name, value)

    async def states(self, job_ids: Sequence[str]) -> list[JobState | None]:
        return self._store.states(job_ids)

    async def pieces(self, job_id: str, after: str, *, limit: int) -> list[Entry]:
        return self._store.pieces(job_id, after, limit=limit)

    async def piece(self, job_id: str, entry: str) -> Entry | None:
        return self._store.piece(job_id, entry)


class _Versions:
    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    async def target(self, address: TemplateAddress) -> Target:
        return self._versions.target(address)

    async def get(self, ref: VersionRef) -> PublishedVersion:
        return self._versions.get(ref)


class _Bell:
    def __init__(self, bell: Bell) -> None:
        self._bell = bell

    async def ring(self, rings: Iterable[Ring]) -> None:
        self._bell.ring(rings)


class DirectBell:
    """Rings without kombu, which would block the event loop: the message is written as it does."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def ring(self, rings: Iterable[Ring]) -> None:
        for group in groups(tuple(rings)):  # an event loop has its turn between two
            await ask(self._server, *(ring_last(one.job_id, one.queue) for one in group))
