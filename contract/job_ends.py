"""Results as they are read: of jobs that nobody ran to an end or that are too large, and times."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from contract.types import Job, JobError, JobState, Result, Timings


def outcome_of(result: Result) -> tuple[str, int, str]:
    """Cache state, completion tokens and error code: what a rollout keeps of a result."""
    code = "" if result.error is None else result.error.code
    return str(result.cache.state), result.usage.completion_tokens, code


def end_without_result(job: Job, state: JobState, worker: str, finished_at: float) -> Result:
    """The Result of a job that ended while nobody ran it."""
    if state is JobState.FAILED:
        return Result(
            job_id=job.id,
            ref=job.ref,
            status=state,
            timings=Timings(total_s=max(0.0, finished_at - job.created_at)),
            worker=worker,
            attempt=job.attempt,
            rollout=job.rollout,
            error=JobError(
                code="attempts_exhausted",
                message=f"{job.attempt} attempts began and none ended: their workers died",
                remedy="It may be what ends them; see `prefillq dead show`.",
            ),
        )
    if state is JobState.EXPIRED:
        error = JobError(
            code="expired",
            message="the deadline passed before a worker finished the job",
            remedy="Give it a longer deadline, or start more workers for this template.",
        )
        reason: Literal["expired", "cancelled"] = "expired"
    else:
        error = JobError(code="cancelled", message="the job was cancelled")
        reason = "cancelled"
    return Result(
        job_id=job.id,
        ref=job.ref,
        status=state,
        finish_reason=reason,
        timings=Timings(total_s=max(0.0, finished_at - job.created_at)),
        worker=worker,
        attempt=job.attempt,
        error=error,
        rollout=job.rollout,
    )


def fit_result(result: Result, size: int, limit: int) -> Result:
    """`result` itself if its `size` in bytes is within `limit`, else a failed one that says so."""
    if size <= limit:
        return result
    return replace(
        result,
        status=JobState.FAILED,
        text="",
        choice=None,
        data=None,
        probabilities={},
        token_ids=(),
        finish_reason="error",
        error=JobError(
            code="result_too_large",
            message=f"the result has {size} bytes, over the limit of {limit}",
            remedy="Lower generation.max_new_tokens or raise PREFILLQ_MAX_RESULT_BYTES.",
        ),
    )


def with_commit_time(result: Result, commit_s: float) -> Result:
    """The result with the seconds of its own commit in its timings."""
    timings = replace(result.timings, commit_s=commit_s, total_s=result.timings.total_s + commit_s)
    return replace(result, timings=timings)
