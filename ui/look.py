"""One look at Redis: queues, workers, jobs, rollouts and limits of a moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from contract.job_store import JobView, TenantLimits
from contract.types import JobState
from templates.rollouts.journal import Entry
from templates.rollouts.moves import TemplateState
from templates.rollouts.outcomes import VersionOutcomes
from templates.rollouts.rollout import Rollout

# What a look reads at most. A page says where it left something out.
MAX_TENANTS = 200
MAX_TEMPLATES = 1000  # of all tenants
MAX_RUNNING = 500  # of a tenant
MAX_WAITING = 25  # of a template; the ones whose deadline is next
MAX_DEAD = 50  # of a tenant
MAX_ENDED = 50  # of a tenant
MAX_ROLLOUTS = 100
MAX_ROWS = 1000  # records of jobs that run, as many of those that wait, and of the dead


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job in a list. Times are the server's, seconds since the epoch."""

    id: str
    tenant: str
    template: str
    version: int
    state: JobState
    attempt: int
    worker: str  # of the last claim; "" before the first
    created_at: float
    ended_at: float | None
    dead: bool

    @classmethod
    def of(cls, view: JobView) -> JobRow:
        """From a record."""
        job = view.job
        return cls(
            id=job.id,
            tenant=job.ref.tenant,
            template=job.ref.template,
            version=job.ref.version,
            state=view.state,
            attempt=job.attempt,
            worker=view.worker,
            created_at=job.created_at,
            ended_at=view.finished_at,
            dead=view.dead,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A template's queue."""

    tenant: str
    template: str
    waiting: int
    oldest_at: float | None  # when the oldest of the first MAX_WAITING was submitted
    running: int | None  # None where records may not be read, or too many run to read all

    @property
    def name(self) -> str:
        return f"{self.tenant}/{self.template}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRow:
    """A tenant's totals, and what it may have at most."""

    name: str
    templates: int
    waiting: int
    running: int
    dead: int
    limits: TenantLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRow:
    """An active rollout."""

    tenant: str
    template: str
    rollout: Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """All that the lists show. `at` is the server's time."""

    at: float
    tenants: tuple[TenantRow, ...] = ()
    queues: tuple[QueueRow, ...] = ()
    workers: tuple[Mapping[str, Any], ...] | None = ()  # None: not to be read by this user
    strange_workers: tuple[str, ...] = ()  # that report, but not as this release does
    running: tuple[JobRow, ...] | None = ()  # of these and the next two, None as of workers
    waiting: tuple[JobRow, ...] | None = ()
    dead: tuple[JobRow, ...] | None = ()
    ended: tuple[JobRow, ...] | None = ()  # since the page was started, the last first
    rollouts: tuple[RolloutRow, ...] = ()
    left_out: tuple[str, ...] = ()  # in words

    @property
    def waiting_count(self) -> int:
        return sum(queue.waiting for queue in self.queues)

    @property
    def running_count(self) -> int:
        return sum(tenant.running for tenant in self.tenants)

    @property
    def dead_count(self) -> int:
        return sum(tenant.dead for tenant in self.tenants)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSight:
    """One job. Without `with_text` its variables were not read, and its answer is not shown."""

    at: float
    view: JobView
    with_text: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSight:
    """What moves of one template, and what moved."""

    at: float
    tenant: str
    name: str
    state: TemplateState
    damage: str = ""  # why the rollout cannot be shown
    outcomes: tuple[VersionOutcomes, ...] = ()
    journal: tuple[Entry, ...] = field(default=())  # newest first
