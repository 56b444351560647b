"""Why a job store refuses what it is asked: one error for each, whatever the store is made of."""

from __future__ import annotations

from contract.errors import (
    Conflict,
    KeyTaken,
    NotFound,
    OverLimit,
    QueueFull,
    TemplateMoved,
)
from contract.job_store import MAX_SCORES
from contract.types import Job, JobState


def no_such_job(job_id: str) -> NotFound:
    return NotFound(
        "no such job",
        given=job_id,
        expected="a job of this Redis whose record has not expired",
        remedy="It may have expired: records are kept for PREFILLQ_RESULT_TTL_S after the end.",
    )


def key_taken(job_id: str) -> KeyTaken:
    return KeyTaken(
        "this idempotency key was used with other input",
        given=f"a request that differs from that of job {job_id}",
        expected="the same template, variables and use_cache",
        remedy=f"Read job {job_id}, or choose another key.",
    )


def queue_full(job: Job, limit: int) -> QueueFull:
    return QueueFull(
        f"the queue of {job.ref.tenant}/{job.ref.template} is full",
        given="one more job",
        expected=f"at most {limit} waiting (limits.max_queue)",
        remedy="Submit again when workers have caught up.",
    )


def template_moved(job: Job) -> TemplateMoved:
    return TemplateMoved(
        f"{job.ref.tenant}/{job.ref.template} was changed while a job of it was submitted",
        given=f"version {job.ref.version}",
        remedy="Submit again.",
    )


def not_succeeded(job_id: str, state: JobState) -> Conflict:
    return Conflict(
        "only an answer can be scored",
        given=f"{job_id}, which is {state}",
        expected="a job that succeeded",
    )


def too_many_scores(job_id: str) -> Conflict:
    return Conflict(
        "the job has too many scores",
        given=f"one more of {job_id}",
        expected=f"at most {MAX_SCORES} names",
    )


def over_queued(tenant: str, limit: int) -> OverLimit:
    return OverLimit(
        f"{tenant} has as many queued jobs as it may",
        given="one more job",
        expected=f"at most {limit}",
        remedy="Submit again when workers have caught up.",
    )


def over_rate(tenant: str, retry_after_s: float) -> OverLimit:
    return OverLimit(
        f"{tenant} submits faster than it may",
        remedy=f"Submit again in {retry_after_s:.{0 if retry_after_s >= 100 else 2}f} s.",
        retry_after_s=retry_after_s,
    )


def not_dead(job_id: str, state: JobState) -> Conflict:
    return Conflict(
        "the job is not dead",
        given=f"{job_id}, which is {state}",
        expected="a job that used up its attempts, as `prefillq dead list` shows them",
    )


def already_ended(job_id: str, state: JobState) -> Conflict:
    return Conflict(
        "the job has ended and cannot be cancelled",
        given=f"{job_id}, which is {state}",
        expected="a job that is queued or running",
    )
