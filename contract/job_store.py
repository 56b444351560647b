"""What a job store does, whatever it is made of: the record is the truth about a job.

`contract.records.RedisJobStore` is the store that producers and workers share;
`contract.memory_store.MemoryJobStore` behaves the same inside one process, for tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from contract.errors import PrefillqError
from contract.pieces import Entry
from contract.types import Job, JobState, Result

Refusal = Literal[
    "ended",
    "cancelled",
    "expired",
    "leased",
    "delayed",
    "limited",
    "dead",
    "suspect",
    "damaged",
    "not_found",
]
Renewal = Literal["ok", "cancel_requested", "lost"]
StopReason = Literal["cancelled", "expired", "lost"]
Held = tuple[str, int]  # a claimed job's id and its fence

MAX_SCORES = 16  # of one job
# As often as its workers may have died while they ran a job beside others; then it runs alone, so
# that the one that ends its workers takes no others with it. Of `Settings.max_attempts`.
SUSPECT_CRASHES = 2
# A record outlives its deadline by this and the result's TTL, so that a late commit finds it.
COMMIT_GRACE_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job to write, and on which terms. The store sets the job's times, attempt and fence."""

    job: Job
    input_digest: str  # over all that the caller asked for; decides what "the same input" is
    idempotency_key: str | None = None
    deadline_s: float | None = None  # from submit; None means `Settings.default_deadline_s`
    max_queue: int | None = None  # jobs of this template that may wait at once
    # The template's when the version was chosen; None when the caller named a version.
    revision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The outcome of a submit. `created` is False when the key named an earlier job."""

    job_id: str
    created: bool
    state: JobState
    queue: str  # of the job that `job_id` names, which may be an earlier one's


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The job is the caller's until its lease ends; `job.fence` is needed to commit."""

    job: Job
    queued_s: float  # from submit to this claim, by the store's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The job is not the caller's to run, and why."""

    reason: Refusal
    state: JobState | None  # None when there is no record


@dataclass(frozen=True, slots=True, kw_only=True)
class Doorbell:
    """Whom to ring for which job."""

    job_id: str
    queue: str
    state: JobState  # queued, or running with a lease that ran out
    silent: bool = False  # its message was used up: tried before, or held back by a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A record as a reader sees it."""

    job: Job
    state: JobState
    worker: str  # of the last claim; "" before the first
    finished_at: float | None
    result: Result | None  # set exactly when `state.ended`
    cancel_requested: bool
    dead: bool = False  # it failed with its last attempt, and waits for an operator
    scores: Mapping[str, float] = field(default_factory=dict)  # see `JobStore.score`


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A job ended; or, without a job id, notices of this tenant arrive from now on."""

    tenant: str
    job_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """What a tenant may have at most; None is no limit."""

    rate_per_s: float | None = None  # submits; a second's worth of them may come at once
    max_queued: int | None = None
    max_running: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceWrite:
    """New entries of a job's stream, which is forgotten `keep_s` seconds after this."""

    job_id: str
    entries: tuple[Entry, ...]
    keep_s: float


class NoticeStream(Protocol):
    """One connection's view of jobs that end. A notice may be lost; the record is not."""

    def follow(self, tenant: str) -> None:
        """Ask for a tenant's notices; `next` confirms it with a notice without a job id."""
        ...

    def next(self, timeout: float) -> Notice | None:
        """The next notice, or None after `timeout` seconds."""
        ...

    def close(self) -> None: ...


class JobStore(Protocol):
    """Every method is atomic. All raise RedisUnreachable and RedisRefused where Redis is used."""

    def submit(
        self,
        job: Job,
        *,
        input_digest: str,
        idempotency_key: str | None = None,
        deadline_s: float | None = None,
        max_queue: int | None = None,
        revision: int | None = None,
    ) -> Submitted:
        """Write a `queued` record, or find the one first written under the key.

        Raises Conflict when the key was used with other input or the queue is full, OverLimit
        when the tenant has as much as it may, TemplateMoved when the template has another revision
        by now or, without one, when the version was retired.
        """
        ...

    def submit_many(self, submissions: Sequence[Submission]) -> list[Submitted | PrefillqError]:
        """As `submit` for each, in few round trips; a refusal stands in its place, not raised."""
        ...

    def find(self, tenant: str, key: str, input_digest: str) -> Submitted | None:
        """The job first written under the key, as a submit of that input would find it.

        Raises Conflict when the key was used with other input.
        """
        ...

    def withdraw(self, job_id: str, *, idempotency_key: str | None = None) -> bool:
        """Erase a record that nobody claimed and only one submit has returned."""
        ...

    def claim(
        self, job_id: str, worker_id: str, lease_s: float, *, alone: bool = False
    ) -> Claimed | Refused:
        """Take a queued job, or a running one whose lease ran out, for `lease_s` seconds.

        One that is `suspect`, since SUSPECT_CRASHES of its workers died, is given only to a
        caller that runs it `alone`.
        """
        ...

    def renew(self, job_id: str, fence: int, lease_s: float) -> Renewal:
        """Move the lease's end to `lease_s` seconds from now, while the fence is the newest."""
        ...

    def renew_many(self, held: Sequence[Held], lease_s: float) -> list[Renewal | PrefillqError]:
        """As `renew` for each, in one round trip; a refusal stands in its place, not raised."""
        ...

    def stop_reason(self, job_id: str, fence: int) -> StopReason | None:
        """Why a running job should stop now."""
        ...

    def stop_reasons(self, held: Sequence[Held]) -> list[StopReason | PrefillqError | None]:
        """As `stop_reason` for each, in one round trip; a refusal stands in its place."""
        ...

    def commit(self, result: Result, fence: int) -> Result | None:
        """Write the result and end the job, if it runs under this fence.

        Returns the result as written; None means refused, and nothing was changed. Repeating
        a commit that was written gives it again, so that a caller who lost the reply may
        retry. A result over `max_result_bytes` is written as failed with the code
        `result_too_large` (see `fit_result`).
        """
        ...

    def note_commit(self, job_id: str, fence: int, commit_s: float) -> Doorbell | None:
        """Add the seconds that a commit took, known only after it, to the result's timings.

        Returns whom to ring for: a job of the tenant that was refused because too many ran.
        """
        ...

    def overdue(self, tenant: str, *, limit: int, leases_tell: bool = True) -> list[Doorbell]:
        """Jobs that may lack a message: leases that ran out, and jobs queued for long.

        At most `limit` of each kind, longest overdue first. Those that are cancelled or past
        their deadline are ended on the way, so that they count under no limit; one whose lease is
        over for another lease's time is `queued` again, the attempt counted. With `leases_tell`
        False a lease that ran out says nothing of its worker, and such jobs are left alone.
        """
        ...

    def rung(self, doorbells: Sequence[Doorbell]) -> None:
        """These have a message or get one now: they are not overdue for another lease, nor held."""
        ...

    def retry(self, result: Result, fence: int, delay_s: float) -> JobState | None:
        """End a failed attempt; the next may begin in `delay_s` seconds.

        Returns the job's state then: `queued`; or `failed` with this result when it was the last
        attempt (`Settings.max_attempts`), and the job is dead; or what a cancel or the deadline
        made of it. None means that the claim was lost, and nothing was changed.
        """
        ...

    def dead(self, tenant: str, *, limit: int) -> list[JobView]:
        """The tenant's dead jobs, the last to die first."""
        ...

    def revive(self, job_id: str, *, deadline_s: float | None = None) -> str:
        """Give a dead job all its attempts again; returns the queue where to ring.

        Raises NotFound, and Conflict when it is not dead.
        """
        ...

    def drop(self, job_id: str) -> None:
        """Erase a dead job. Raises NotFound, and Conflict when it is not dead."""
        ...

    def pinned(self, tenant: str, template: str) -> dict[int, int]:
        """Version -> how many jobs of it have not ended; versions without such jobs are left out.

        Jobs that are claimed or put back while this counts may be missed.
        """
        ...

    def release(self, job_id: str, fence: int) -> bool:
        """Put a running job back in the queue; the attempt does not count. False if lost."""
        ...

    def cancel(self, job_id: str) -> JobState:
        """End a queued job; ask a running one to stop (the state returned tells which).

        Raises Conflict when it has ended, NotFound when there is no record.
        """
        ...

    def get(self, job_id: str) -> JobView:
        """The record. Raises NotFound when there is none, or no more."""
        ...

    def score(self, job_id: str, name: str, value: float) -> None:
        """Say how good the answer of a job is; the last value of a name counts.

        Raises InvalidInput for what is no name or number, NotFound, and Conflict for a job that
        has not succeeded or has `MAX_SCORES` others.
        """
        ...

    def states(self, job_ids: Sequence[str]) -> list[JobState | None]:
        """The state of each job in few round trips; None where there is no record that can be
        read, of which `get` says what is wrong."""
        ...

    def set_limits(self, tenant: str, limits: TenantLimits) -> None:
        """From now on; jobs that are queued or running stay."""
        ...

    def limits(self, tenant: str) -> TenantLimits:
        """As set last, or none."""
        ...

    def notices(self) -> NoticeStream:
        """A new stream; nothing arrives before the first `follow`."""
        ...

    def write_pieces(self, writes: Sequence[PieceWrite]) -> list[PrefillqError | None]:
        """Add to the streams of several jobs in one round trip; refusals stand in their place."""
        ...

    def pieces(self, job_id: str, after: str, *, limit: int) -> list[Entry]:
        """The next entries of a job's stream; none when there is no stream (any more)."""
        ...

    def piece(self, job_id: str, entry: str) -> Entry | None:
        """One entry, if it is still there."""
        ...
