"""What both sides pass to each other: jobs, results and the states between them.

All are frozen and keyword-only. Seconds are floats from a monotonic clock unless a field
ends in `_at`, which is Redis server time in seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal, Self

Variables = Mapping[str, Any]


class JobState(StrEnum):
    """Where a job is. The record in Redis is the only authority."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def ended(self) -> bool:
        """True when nothing can change the job any more."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


class CacheState(StrEnum):
    """How the prefix cache served a job. Only `hit` reuses tokens."""

    HIT = "hit"
    MISS = "miss"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRef:
    """One immutable template version."""

    tenant: str
    template: str
    version: int  # counts from 1 within the template
    digest: str  # sha256 hex over spec, model, tokenizer and chat template

    def __str__(self) -> str:
        return f"{self.tenant}/{self.template}@{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a worker is asked to do, as written in the record at submit."""

    id: str  # "<tenant>.<time and randomness, hex>", see contract.ids
    ref: VersionRef  # resolved once, at submit; retries never change it
    queue: str = ""  # where its doorbell rings, see contract.keys.queue
    variables: Variables
    use_cache: bool = True  # False asks for the plain path, for comparison
    created_at: float = 0.0
    deadline_at: float | None = None
    attempt: int = 0  # 1 at the first claim
    fence: int = 0  # grows with every claim; only the newest may commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts under the names of the OpenAI API."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            prompt_tokens=data["prompt_tokens"],
            completion_tokens=data["completion_tokens"],
            cached_tokens=data["prompt_tokens_details"]["cached_tokens"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where a job's time went, in seconds; the device is synchronized at each edge.

    `queue_s` runs from submit to claim on Redis's clock; the rest on the worker's monotonic
    clock. `ttft_s` (time to first token) and `total_s` run from submit. The greedy check of a
    version's first warming is in no stage; its seconds are in the log line `version_warmed`.
    """

    queue_s: float = 0.0
    tokenize_s: float = 0.0
    verify_s: float = 0.0
    prefill_s: float = 0.0  # the prefix, when this job had to compute it
    fork_s: float = 0.0
    suffix_prefill_s: float = 0.0  # to the first token's logits; the whole prompt on a miss
    ttft_s: float = 0.0
    decode_s: float = 0.0
    commit_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInfo:
    """What the prefix cache did for one job, and why when it was no hit."""

    state: CacheState
    reason: str = ""


FinishReason = Literal["stop", "length", "stop_string", "error", "cancelled", "expired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """Why a job ended without an answer."""

    code: str
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The end of a job, committed exactly once."""

    job_id: str
    ref: VersionRef
    status: JobState
    text: str = ""
    choice: str | None = None  # one of the template's output.choices
    probabilities: Mapping[str, float] = field(default_factory=dict)  # of each, their sum 1
    token_ids: tuple[int, ...] = ()  # of the completion, the end-of-sequence id included
    finish_reason: FinishReason = "error"
    usage: Usage = field(default_factory=Usage)
    cache: CacheInfo = field(default_factory=lambda: CacheInfo(state=CacheState.OFF))
    timings: Timings = field(default_factory=Timings)
    model: str = ""
    device: str = ""
    worker: str = ""
    attempt: int = 0
    batch_size: int = 0
    error: JobError | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for msgpack and JSON."""
        return {
            "job_id": self.job_id,
            "tenant": self.ref.tenant,
            "template": self.ref.template,
            "version": self.ref.version,
            "digest": self.ref.digest,
            "status": str(self.status),
            "text": self.text,
            "choice": self.choice,
            "probabilities": dict(self.probabilities),
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "usage": self.usage.to_dict(),
            "cache": {"state": str(self.cache.state), "reason": self.cache.reason},
            "timings": asdict(self.timings),
            "model": self.model,
            "device": self.device,
            "worker": self.worker,
            "attempt": self.attempt,
            "batch_size": self.batch_size,
            "error": None if self.error is None else asdict(self.error),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`. Timings this version does not know are left out."""
        known = {f.name for f in fields(Timings)}
        error = data["error"]
        return cls(
            job_id=data["job_id"],
            ref=VersionRef(
                tenant=data["tenant"],
                template=data["template"],
                version=data["version"],
                digest=data["digest"],
            ),
            status=JobState(data["status"]),
            text=data["text"],
            choice=data["choice"],
            probabilities=data.get("probabilities", {}),  # results of older workers have none
            token_ids=tuple(data["token_ids"]),
            finish_reason=data["finish_reason"],
            usage=Usage.from_dict(data["usage"]),
            cache=CacheInfo(
                state=CacheState(data["cache"]["state"]), reason=data["cache"]["reason"]
            ),
            timings=Timings(**{k: v for k, v in data["timings"].items() if k in known}),
            model=data["model"],
            device=data["device"],
            worker=data["worker"],
            attempt=data["attempt"],
            batch_size=data["batch_size"],
            error=None if error is None else JobError(**error),
        )
