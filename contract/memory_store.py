"""The job store in one process's memory, for tests of what runs on top of it.

Same behaviour as `contract.records.RedisJobStore`, shown by the same tests; the clock is the
caller's, so that leases and deadlines can be tested without waiting.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from contract import keys
from contract.codec import pack, unpack
from contract.errors import PrefillqError
from contract.ids import tenant_of
from contract.job_checks import check_ended, check_limits, check_score, check_submission
from contract.job_ends import end_without_result, fit_result, outcome_of, with_commit_time
from contract.job_refusals import (
    already_ended,
    key_taken,
    no_such_job,
    not_dead,
    not_succeeded,
    over_queued,
    over_rate,
    queue_full,
    template_moved,
    too_many_scores,
)
from contract.job_store import (
    COMMIT_GRACE_S,
    MAX_SCORES,
    SUSPECT_CRASHES,
    Claimed,
    Doorbell,
    Held,
    JobView,
    Notice,
    NoticeStream,
    PieceWrite,
    Refusal,
    Refused,
    Renewal,
    StopReason,
    Submission,
    Submitted,
    TenantLimits,
)
from contract.pieces import Entry
from contract.settings import Settings
from contract.types import Job, JobState, Result

_OUTCOMES = (JobState.SUCCEEDED, JobState.FAILED)
_OTHER_ENDS: dict[JobState, Refusal] = {
    JobState.CANCELLED: "cancelled",
    JobState.EXPIRED: "expired",
}


@dataclass(slots=True, kw_only=True)
class _Record:
    job: Job
    input_digest: str
    expires_at: float
    deadline_at: float
    state: JobState = JobState.QUEUED
    submits: int = 1
    worker: str = ""
    lease_until: float = 0.0
    ring_at: float  # when it is overdue, while it is queued or running
    not_before: float = 0.0
    ended_attempt: int = 0
    tried: int = 0
    dead: bool = False
    revived: bool = False
    cancel_requested: bool = False
    result: Result | None = None
    commit_s: float = 0.0
    finished_at: float | None = None
    scores: dict[str, float] = field(default_factory=dict)
    pieces: list[Entry] = field(default_factory=list)


class MemoryJobStore:
    """`JobStore` in memory; one lock makes every method atomic."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.RLock()
        self._records: dict[str, _Record] = {}
        self._first_of_key: dict[tuple[str, str], str] = {}  # (tenant, idempotency key) -> job id
        self._streams: list[_MemoryNotices] = []
        self._limits: dict[str, TenantLimits] = {}
        # (tenant, template) -> revision and retired versions
        self._templates: dict[tuple[str, str], tuple[int, frozenset[int]]] = {}
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens, and when that was
        self._held_back: dict[str, None] = {}  # job ids held back by a limit, in order of submit
        # As the streams of that name: what was noted of a rollout's jobs, oldest first.
        self.outcomes: defaultdict[str, list[dict[str, str]]] = defaultdict(list)

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
        outcome = self._submit(
            Submission(
                job=job,
                input_digest=input_digest,
                idempotency_key=idempotency_key,
                deadline_s=deadline_s,
                max_queue=max_queue,
                revision=revision,
            )
        )
        if isinstance(outcome, PrefillqError):
            raise outcome
        return outcome

    def submit_many(self, submissions: Sequence[Submission]) -> list[Submitted | PrefillqError]:
        return [self._submit(submission) for submission in submissions]

    def _submit(self, submission: Submission) -> Submitted | PrefillqError:
        check_submission(submission)
        job = submission.job
        variables = unpack(pack(job.variables))
        tenant, key = tenant_of(job.id), submission.idempotency_key
        with self._lock:
            now = self._clock()
            if own := self._live(job.id):
                return _submitted(own, created=True)
            first_id = None if key is None else self._first_of_key.get((tenant, key))
            if first_id and (first := self._live(first_id)):
                if first.input_digest != submission.input_digest:
                    return key_taken(first_id)
                first.submits += 1
                return _submitted(first, created=False)
            if self._moved(submission):
                return template_moved(job)
            limit = submission.max_queue
            if limit is not None and self._waiting(job, now) >= limit:
                return queue_full(job, limit)
            limits = self._limits.get(tenant, TenantLimits())
            most_queued = limits.max_queued
            # All records are looked through for it: only where there is a limit.
            if most_queued is not None and len(self._of(tenant, JobState.QUEUED)) >= most_queued:
                return over_queued(tenant, most_queued)
            if (rate := limits.rate_per_s) is not None:
                most = max(1.0, rate)
                tokens, at = self._buckets.get(tenant, (most, now))
                tokens = min(most, tokens + max(0.0, now - at) * rate)
                if tokens < 1:
                    return over_rate(tenant, (1 - tokens) / rate)
                self._buckets[tenant] = (tokens - 1, now)
            deadline_at = now + (submission.deadline_s or self._settings.default_deadline_s)
            record = self._records[job.id] = _Record(
                job=replace(
                    job,
                    variables=variables,
                    created_at=now,
                    deadline_at=deadline_at,
                    attempt=0,
                    fence=0,
                ),
                input_digest=submission.input_digest,
                deadline_at=deadline_at,
                ring_at=now + self._settings.lease_s,
                expires_at=deadline_at + self._settings.result_ttl_s + COMMIT_GRACE_S,
            )
            if key is not None:
                self._first_of_key[tenant, key] = job.id
        return _submitted(record, created=True)

    def template_moved(
        self, tenant: str, template: str, revision: int, *, retired: Collection[int] = ()
    ) -> None:
        """What the registry's moves write in Redis, where the other store reads it."""
        with self._lock:
            self._templates[tenant, template] = (revision, frozenset(retired))

    def _moved(self, submission: Submission) -> bool:
        ref = submission.job.ref
        revision, retired = self._templates.get((ref.tenant, ref.template), (0, frozenset()))
        if submission.revision is None:
            return ref.version in retired
        return submission.revision != revision

    def find(self, tenant: str, key: str, input_digest: str) -> Submitted | None:
        with self._lock:
            first = self._live(self._first_of_key.get((tenant, key), ""))
            if first is None:
                return None
            if first.input_digest != input_digest:
                raise key_taken(first.job.id)
            first.submits += 1
            return _submitted(first, created=False)

    def withdraw(self, job_id: str, *, idempotency_key: str | None = None) -> bool:
        tenant = tenant_of(job_id)
        with self._lock:
            record = self._live(job_id)
            if record is None:
                return True
            unseen = record.job.fence == 0 and record.submits == 1
            if record.state is not JobState.QUEUED or not unseen:
                return False
            del self._records[job_id]
            if idempotency_key and self._first_of_key.get((tenant, idempotency_key)) == job_id:
                del self._first_of_key[tenant, idempotency_key]
        return True

    def claim(
        self, job_id: str, worker_id: str, lease_s: float, *, alone: bool = False
    ) -> Claimed | Refused:
        tenant_of(job_id)
        with self._lock:
            record, free = self._settled(job_id)
            if record is None:
                return Refused(reason="not_found", state=None)
            if reason := self._refusal(record, free=free, alone=alone):
                return Refused(reason=reason, state=record.state)
            now, job = self._clock(), record.job
            self._held_back.pop(job_id, None)
            record.not_before = 0.0
            record.job = replace(
                job, attempt=job.attempt + 1, fence=job.fence + 1, first_claim=job.fence == 0
            )
            record.state, record.worker = JobState.RUNNING, worker_id
            record.lease_until = record.ring_at = now + lease_s
            return Claimed(job=record.job, queued_s=now - job.created_at)

    def _refusal(self, record: _Record, *, free: bool, alone: bool) -> Refusal | None:
        if record.state.ended:
            return _OTHER_ENDS.get(record.state, "ended")
        if not free:
            return "leased"
        if record.not_before > self._clock():
            return "delayed"
        if record.job.attempt >= self._settings.max_attempts:
            self._bury(record)
            self._note_outcome(record, ("", 0, "attempts_exhausted"))
            return "dead"
        if record.job.attempt - record.tried >= SUSPECT_CRASHES and not alone:
            return "suspect"
        tenant = record.job.ref.tenant
        limit = self._limits.get(tenant, TenantLimits()).max_running
        others = [r for r in self._of(tenant, JobState.RUNNING) if r is not record]
        if limit is not None and len(others) >= limit:
            self._held_back[record.job.id] = None
            return "limited"
        return None

    def renew(self, job_id: str, fence: int, lease_s: float) -> Renewal:
        with self._lock:
            record = self._held(job_id, fence)
            if record is None:
                return "lost"
            record.lease_until = record.ring_at = self._clock() + lease_s
            return "cancel_requested" if record.cancel_requested else "ok"

    def renew_many(self, held: Sequence[Held], lease_s: float) -> list[Renewal | PrefillqError]:
        return [self.renew(job_id, fence, lease_s) for job_id, fence in held]

    def stop_reasons(self, held: Sequence[Held]) -> list[StopReason | PrefillqError | None]:
        return [self.stop_reason(job_id, fence) for job_id, fence in held]

    def stop_reason(self, job_id: str, fence: int) -> StopReason | None:
        with self._lock:
            record = self._held(job_id, fence)
            if record is None:
                return "lost"
            if record.cancel_requested:
                return "cancelled"
            return "expired" if record.deadline_at <= self._clock() else None

    def commit(self, result: Result, fence: int) -> Result | None:
        check_ended(result)
        size = len(pack(result.to_dict()))
        result = fit_result(result, size, self._settings.max_result_bytes)
        with self._lock:
            record = self._held(result.job_id, fence)
            if record is None:
                record = self._live(result.job_id)
                written = record is not None and (record.job.fence, record.result) == (
                    fence,
                    result,
                )
                return result if written else None
            record.result = result
            self._finish(record, result.status)
            self._note_outcome(record, outcome_of(result))
        return result

    def note_commit(self, job_id: str, fence: int, commit_s: float) -> Doorbell | None:
        with self._lock:
            record = self._live(job_id)
            if record is not None and record.job.fence == fence and record.result is not None:
                record.commit_s = commit_s
            for held_id in self._held_of(tenant_of(job_id)):
                del self._held_back[held_id]
                held = self._live(held_id)
                if held is not None and held.state is JobState.QUEUED:
                    return Doorbell(
                        job_id=held_id, queue=held.job.queue, state=held.state, silent=True
                    )
        return None

    def overdue(self, tenant: str, *, limit: int, leases_tell: bool = True) -> list[Doorbell]:
        with self._lock:
            now = self._clock()
            held = self._held_of(tenant)
            for job_id in {*held, *(record.job.id for record in self._late(tenant))}:
                if leases_tell or self._records[job_id].state is JobState.QUEUED:
                    self._settled(job_id)
            held = self._held_of(tenant)
            gone = [r for r in self._late(tenant) if r.state is JobState.RUNNING]
            gone = gone[:limit] if leases_tell else []
            for record in gone:
                if now - record.lease_until >= self._settings.lease_s:
                    record.state, record.worker = JobState.QUEUED, ""
                    record.not_before = record.ring_at = now
            max_running = self._limits.get(tenant, TenantLimits()).max_running
            room = limit
            if max_running is not None:
                room = min(limit, max(0, max_running - len(self._of(tenant, JobState.RUNNING))))
            freed = [self._records[job_id] for job_id in held[:room]]
            for job_id in held[room:]:  # the end of another rings for it
                self._records[job_id].ring_at = now + self._settings.lease_s
            told = {record.job.id for record in gone + freed}
            late = [r for r in self._late(tenant) if r.state is JobState.QUEUED]
            late = [record for record in late if record.job.id not in told]
            again = [record for record in late if record.not_before][:limit]
            others = [record for record in late if not record.not_before][:limit]
            return [
                Doorbell(job_id=r.job.id, queue=r.job.queue, state=r.state, silent=silent)
                for records, silent in ((gone + freed + again, True), (others, False))
                for r in records
            ]

    def rung(self, doorbells: Sequence[Doorbell]) -> None:
        with self._lock:
            for bell in doorbells:
                record = self._live(bell.job_id)
                if record is not None and record.state is bell.state:
                    record.ring_at = self._clock() + self._settings.lease_s
                    self._held_back.pop(bell.job_id, None)

    def retry(self, result: Result, fence: int, delay_s: float) -> JobState | None:
        with self._lock:
            record = self._held(result.job_id, fence)
            if record is None:
                record = self._live(result.job_id)
                if record is None:
                    return None
                again = record.ended_attempt == fence or (
                    (record.job.fence, record.result) == (fence, result)
                )
                return record.state if again else None
            if record.job.attempt >= self._settings.max_attempts:
                record.result = result
                self._bury(record)
                self._note_outcome(record, outcome_of(result))
            else:
                record.not_before = record.ring_at = self._clock() + delay_s
                record.ended_attempt = fence
                record.tried += 1
                record.state, record.worker = JobState.QUEUED, ""
                self._settled(result.job_id)
            return record.state

    def dead(self, tenant: str, *, limit: int) -> list[JobView]:
        with self._lock:
            dead = [
                record
                for job_id in tuple(self._records)
                if (record := self._live(job_id)) and record.dead
                if record.job.ref.tenant == tenant
            ]
            dead.sort(key=lambda record: record.finished_at or 0.0, reverse=True)
            return [self.get(record.job.id) for record in dead[:limit]]

    def revive(self, job_id: str, *, deadline_s: float | None = None) -> str:
        with self._lock:
            record, now = self._dead(job_id), self._clock()
            deadline_at = now + (deadline_s or self._settings.default_deadline_s)
            record.job = replace(record.job, attempt=0, deadline_at=deadline_at)
            record.deadline_at, record.ring_at = deadline_at, now
            record.expires_at = deadline_at + self._settings.result_ttl_s + COMMIT_GRACE_S
            record.state, record.dead, record.cancel_requested = JobState.QUEUED, False, False
            record.result, record.finished_at, record.commit_s = None, None, 0.0
            record.not_before, record.ended_attempt, record.worker = 0.0, 0, ""
            record.tried = 0
            record.revived = True
            return record.job.queue

    def drop(self, job_id: str) -> None:
        with self._lock:
            self._dead(job_id)
            del self._records[job_id]

    def pinned(self, tenant: str, template: str) -> dict[int, int]:
        with self._lock:
            unfinished = self._of(tenant, JobState.QUEUED) + self._of(tenant, JobState.RUNNING)
            refs = [record.job.ref for record in unfinished]
            return dict(Counter(ref.version for ref in refs if ref.template == template))

    def release(self, job_id: str, fence: int) -> bool:
        with self._lock:
            record = self._held(job_id, fence)
            if record is None:
                return False
            record.job = replace(record.job, attempt=record.job.attempt - 1)
            record.state, record.worker = JobState.QUEUED, ""
            record.ring_at = self._clock()
            self._settled(job_id)
        return True

    def cancel(self, job_id: str) -> JobState:
        tenant_of(job_id)
        with self._lock:
            record, free = self._settled(job_id)
            if record is None:
                raise no_such_job(job_id)
            if record.state.ended:
                raise already_ended(job_id, record.state)
            if free:
                self._finish(record, JobState.CANCELLED)
            else:
                record.cancel_requested = True
            return record.state

    def get(self, job_id: str) -> JobView:
        tenant_of(job_id)
        with self._lock:
            record, _ = self._settled(job_id)
            if record is None:
                raise no_such_job(job_id)
            result = record.result
            if result is not None:
                result = with_commit_time(result, record.commit_s)
                result = replace(result, rollout=record.job.rollout)
            elif record.finished_at is not None:
                result = end_without_result(
                    record.job, record.state, record.worker, record.finished_at
                )
            return JobView(
                job=record.job,
                state=record.state,
                worker=record.worker,
                finished_at=record.finished_at,
                result=result,
                cancel_requested=record.cancel_requested,
                dead=record.dead,
                scores=dict(sorted(record.scores.items())),
            )

    def score(self, job_id: str, name: str, value: float) -> None:
        value = check_score(name, value)
        tenant_of(job_id)
        with self._lock:
            record, _ = self._settled(job_id)
            if record is None:
                raise no_such_job(job_id)
            if record.state is not JobState.SUCCEEDED:
                raise not_succeeded(job_id, record.state)
            if name not in record.scores and len(record.scores) >= MAX_SCORES:
                raise too_many_scores(job_id)
            record.scores[name] = value
            if record.job.rollout:
                self._outcomes_of(record.job).append(
                    {"score": name, "value": str(value), "job": job_id[-32:]}
                )

    def states(self, job_ids: Sequence[str]) -> list[JobState | None]:
        with self._lock:
            records = [self._settled(job_id)[0] for job_id in job_ids]
            return [None if record is None else record.state for record in records]

    def set_limits(self, tenant: str, limits: TenantLimits) -> None:
        check_limits(limits)
        with self._lock:
            self._limits[tenant] = limits

    def limits(self, tenant: str) -> TenantLimits:
        with self._lock:
            return self._limits.get(tenant, TenantLimits())

    def notices(self) -> NoticeStream:
        stream = _MemoryNotices()
        with self._lock:
            self._streams = [s for s in self._streams if not s.closed] + [stream]
        return stream

    def write_pieces(self, writes: Sequence[PieceWrite]) -> list[PrefillqError | None]:
        with self._lock:
            for write in writes:
                # Without a record they would only wait for their expiry.
                if (record := self._live(write.job_id)) is not None:
                    for entry in write.entries:
                        number = len(record.pieces) + 1
                        record.pieces.append(replace(entry, id=f"{number}-0"))
        return [None] * len(writes)

    def pieces(self, job_id: str, after: str, *, limit: int) -> list[Entry]:
        with self._lock:
            record = self._live(job_id)
            start = int(after.partition("-")[0])
            return [] if record is None else record.pieces[start : start + limit]

    def piece(self, job_id: str, entry: str) -> Entry | None:
        with self._lock:
            record = self._live(job_id)
            found = [] if record is None else [it for it in record.pieces if it.id == entry]
        return found[0] if found else None

    def _of(self, tenant: str, state: JobState) -> list[_Record]:
        return [
            record
            for record in self._records.values()
            if record.state is state and record.job.ref.tenant == tenant
        ]

    def _late(self, tenant: str) -> list[_Record]:
        """The longest overdue first."""
        late = [
            record
            for record in (*self._of(tenant, JobState.QUEUED), *self._of(tenant, JobState.RUNNING))
            if record.ring_at <= self._clock() < record.expires_at
        ]
        return sorted(late, key=lambda record: record.ring_at)

    def _held_of(self, tenant: str) -> list[str]:
        """In order of submit."""
        held = [
            record
            for job_id in tuple(self._held_back)
            if (record := self._live(job_id)) and record.state is JobState.QUEUED
            if record.job.ref.tenant == tenant
        ]
        held.sort(key=lambda record: record.job.created_at)
        return [record.job.id for record in held]

    def _dead(self, job_id: str) -> _Record:
        tenant_of(job_id)
        record = self._live(job_id)
        if record is None:
            raise no_such_job(job_id)
        if not record.dead:
            raise not_dead(job_id, record.state)
        return record

    def _bury(self, record: _Record) -> None:
        record.dead = True
        self._finish(record, JobState.FAILED)
        record.expires_at = self._clock() + self._settings.dead_ttl_s

    def _live(self, job_id: str) -> _Record | None:
        record = self._records.get(job_id)
        if record is not None and record.expires_at <= self._clock():
            del self._records[job_id]
            return None
        return record

    def _held(self, job_id: str, fence: int) -> _Record | None:
        tenant_of(job_id)
        record = self._live(job_id)
        if record is None or record.state is not JobState.RUNNING or record.job.fence != fence:
            return None
        return record

    def _settled(self, job_id: str) -> tuple[_Record | None, bool]:
        """End the job if nobody holds it and it is cancelled or late; True if it may be taken."""
        record = self._live(job_id)
        if record is None or record.state.ended:
            return record, False
        now = self._clock()
        if record.state is JobState.RUNNING and record.lease_until > now:
            return record, False
        if record.cancel_requested:
            self._finish(record, JobState.CANCELLED)
        elif record.deadline_at <= now:
            self._finish(record, JobState.EXPIRED)
            self._note_outcome(record, ("", 0, "expired"))
        return record, not record.state.ended

    def _finish(self, record: _Record, state: JobState) -> None:
        now = self._clock()
        record.state, record.finished_at = state, now
        record.expires_at = now + self._settings.result_ttl_s
        for stream in self._streams:
            stream.put(record.job.ref.tenant, record.job.id)

    def _note_outcome(self, record: _Record, outcome: tuple[str, int, str]) -> None:
        job, (cache, tokens, code) = record.job, outcome
        # One that expired before any worker had it says nothing of its version.
        taken_up = record.state is JobState.EXPIRED and job.attempt > 0
        if not job.rollout or record.revived or not (record.state in _OUTCOMES or taken_up):
            return
        self._outcomes_of(job).append(
            {
                "s": str(record.state),
                "c": cache,
                "t": f"{self._clock() - job.created_at:.6f}",
                "n": str(tokens),
                "e": code,
            }
        )

    def _outcomes_of(self, job: Job) -> list[dict[str, str]]:
        return self.outcomes[keys.outcomes(job.ref.tenant, job.rollout, job.ref.digest)]

    def _waiting(self, job: Job, now: float) -> int:
        return sum(
            record.state is JobState.QUEUED
            and record.deadline_at > now
            and (record.job.ref.tenant, record.job.ref.template)
            == (job.ref.tenant, job.ref.template)
            for record in self._records.values()
        )


class _MemoryNotices:
    def __init__(self) -> None:
        self.closed = False
        self._followed: set[str] = set()
        self._queue: queue.SimpleQueue[Notice] = queue.SimpleQueue()

    def put(self, tenant: str, job_id: str) -> None:
        if tenant in self._followed and not self.closed:
            self._queue.put(Notice(tenant=tenant, job_id=job_id))

    def follow(self, tenant: str) -> None:
        self._followed.add(tenant)
        self._queue.put(Notice(tenant=tenant, job_id=None))

    def next(self, timeout: float) -> Notice | None:
        try:
            return self._queue.get(timeout=timeout)
        except queue.Empty:
            return None

    def close(self) -> None:
        self.closed = True


def _submitted(record: _Record, *, created: bool) -> Submitted:
    return Submitted(
        job_id=record.job.id, created=created, state=record.state, queue=record.job.queue
    )
