"""What a job came to: from the engine's answer to the committed Result and its log line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from contract.errors import PrefillqError
from contract.logs import get_logger
from contract.types import (
    CacheInfo,
    CacheState,
    FinishReason,
    Job,
    JobError,
    JobState,
    Result,
    Timings,
    Usage,
)
from worker.engine.base import Generation

log = get_logger(__name__)

NOT_RUN = CacheInfo(state=CacheState.OFF, reason="not_run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The engine's side of a job, before the record is written."""

    status: JobState
    cache: CacheInfo = NOT_RUN
    generation: Generation | None = None
    choice: str | None = None
    probabilities: Mapping[str, float] = field(default_factory=dict)
    data: Any = None  # the JSON of an answer that has a schema
    prompt_tokens: int = 0
    cached_tokens: int = 0
    engine_started_s: float = 0.0  # from the claim to the engine's call
    timings: Timings = field(default_factory=Timings)
    error: JobError | None = None
    passing: bool = False  # a failure that another attempt may not meet


def failed(
    code: str,
    message: str,
    *,
    remedy: str = "",
    cache: CacheInfo = NOT_RUN,
    prompt_tokens: int = 0,
    passing: bool = False,
) -> Answer:
    """An answer that says why there is none."""
    return Answer(
        passing=passing,
        status=JobState.FAILED,
        cache=cache,
        prompt_tokens=prompt_tokens,
        error=JobError(code=code, message=message, remedy=remedy),
    )


def failed_with(error: PrefillqError, *, cache: CacheInfo = NOT_RUN, tokens: int = 0) -> Answer:
    """`failed` from one of our own errors, whose text is fit for a result."""
    return failed(
        error.code,
        error.without_remedy,
        remedy=error.remedy,
        cache=cache,
        prompt_tokens=tokens,
        passing=error.passing,
    )


def spoiled(answer: Answer, error: PrefillqError) -> Answer:
    """An answer that was computed, with its tokens and times, and is none."""
    return replace(answer, status=JobState.FAILED, error=job_error(error))


def job_error(error: PrefillqError) -> JobError:
    """One of our own errors, whose text is fit for a result."""
    return JobError(code=error.code, message=error.without_remedy, remedy=error.remedy)


def stopped(reason: str, answer: Answer | None = None) -> Answer:
    """The end of a job that was cancelled or ran out of time, with what it had computed."""
    status = JobState.EXPIRED if reason == "expired" else JobState.CANCELLED
    text = "the deadline passed" if status is JobState.EXPIRED else "cancelled while running"
    return replace(
        answer or Answer(status=status),
        status=status,
        error=JobError(code=str(status), message=text),
    )


def make_result(
    job: Job,
    answer: Answer,
    *,
    queue_s: float,
    elapsed_s: float,
    model: str,
    device: str,
    worker: str,
) -> Result:
    """The Result to commit. `elapsed_s` is from claim to now; the commit adds its own time."""
    generation = answer.generation
    first_token_s = 0.0
    if generation is not None and generation.token_ids:
        # The engine counts from its own call, which began `engine_started_s` after the claim.
        first_token_s = queue_s + answer.engine_started_s + generation.first_token_s
    completion = generation.token_ids if generation is not None else ()
    return Result(
        job_id=job.id,
        ref=job.ref,
        status=answer.status,
        text=generation.text if generation is not None else "",
        choice=answer.choice,
        probabilities=answer.probabilities,
        data=answer.data,
        token_ids=completion,
        finish_reason=generation.finish_reason if generation is not None else _unfinished(answer),
        usage=Usage(
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=len(completion),
            cached_tokens=answer.cached_tokens,
        ),
        cache=answer.cache,
        timings=replace(
            answer.timings, queue_s=queue_s, ttft_s=first_token_s, total_s=queue_s + elapsed_s
        ),
        model=model,
        device=device,
        worker=worker,
        attempt=job.attempt,
        batch_size=generation.batch_size if generation is not None else 0,
        error=answer.error,
    )


def _unfinished(answer: Answer) -> FinishReason:
    match answer.status:
        case JobState.EXPIRED:
            return "expired"
        case JobState.CANCELLED:
            return "cancelled"
        case _:
            return "error"


def log_finished(result: Result) -> None:
    """The one canonical line per job. Never the variables or the text."""
    log.info(
        "job_finished",
        job_id=result.job_id,
        tenant=result.ref.tenant,
        template=result.ref.template,
        version=result.ref.version,
        digest=result.ref.digest,
        status=str(result.status),
        model=result.model,
        device=result.device,
        worker=result.worker,
        attempt=result.attempt,
        cache_state=str(result.cache.state),
        cache_reason=result.cache.reason,
        prompt_tokens=result.usage.prompt_tokens,
        cached_tokens=result.usage.cached_tokens,
        completion_tokens=result.usage.completion_tokens,
        batch_size=result.batch_size,
        finish_reason=result.finish_reason,
        error=None if result.error is None else result.error.code,
        **{name: round(seconds, 6) for name, seconds in asdict(result.timings).items()},
    )
