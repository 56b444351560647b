"""What both sides pass to each other: jobs, results and the states between them.

All are frozen and keyword-only. Seconds are floats from a monotonic clock unless a field
ends in `_at`, which is Redis server time in seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal, Self, TypeVar, cast

Variables = Mapping[str, Any]

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


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
    first_claim: bool = True  # nobody had claimed it before this fence
    rollout: str = ""  # id of the rollout that chose the version, if one did
    shadow: int = 0  # number of the version that answers a copy of it, unseen; 0: none does
    traceparent: str = ""  # of the submit's span, see contract.tracing; "" without one
    stream: bool = False  # its answer is also written piece by piece, see contract.pieces


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
            prompt_tokens=_of(int, data, "prompt_tokens"),
            completion_tokens=_of(int, data, "completion_tokens"),
            cached_tokens=_of(int, _of(dict, data, "prompt_tokens_details"), "cached_tokens"),
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

    def __str__(self) -> str:
        """What happened and what to do, in sentences."""
        return f"{self.message.rstrip('.')}. {self.remedy}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The end of a job, committed exactly once."""

    job_id: str
    ref: VersionRef
    status: JobState
    text: str = ""
    choice: str | None = None  # one of the template's output.choices
    probabilities: Mapping[str, float] = field(default_factory=dict)  # of each, their sum 1
    data: Any = None  # the JSON that `text` spells, where the template has an output.schema
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
    rollout: str = ""  # as the job's; known to whoever reads the record

    def to_dict(self) -> dict[str, Any]:
        """Plain data for msgpack and JSON."""
        return {
            "job_id": self.job_id,
            "tenant": self.ref.tenant,
            "template": self.ref.template,
            "version": self.ref.version,
            "digest": self.ref.digest,
            "rollout": self.rollout or None,
            "status": str(self.status),
            "text": self.text,
            "choice": self.choice,
            "probabilities": dict(self.probabilities),
            "data": self.data,
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
        """The inverse of `to_dict`. Timings this version does not know are left out.

        Raises KeyError, TypeError or ValueError that names the field and quotes no value.
        """
        timings, error = _of(dict, data, "timings"), data["error"]
        cache = _of(dict, data, "cache")
        probabilities = data.get("probabilities", {})  # results of older workers have none
        return cls(
            job_id=_of(str, data, "job_id"),
            ref=VersionRef(
                tenant=_of(str, data, "tenant"),
                template=_of(str, data, "template"),
                version=_of(int, data, "version"),
                digest=_of(str, data, "digest"),
            ),
            status=_one_of(JobState, data, "status"),
            text=_of(str, data, "text"),
            choice=None if data["choice"] is None else _of(str, data, "choice"),
            probabilities={name: _of(float, probabilities, name) for name in probabilities},
            data=data.get("data"),  # nor this
            token_ids=tuple(_each(int, data, "token_ids")),
            finish_reason=cast(FinishReason, _of(str, data, "finish_reason")),
            usage=Usage.from_dict(_of(dict, data, "usage")),
            cache=CacheInfo(
                state=_one_of(CacheState, cache, "state"), reason=_of(str, cache, "reason")
            ),
            timings=Timings(
                **{
                    f.name: _of(float, timings, f.name)
                    for f in fields(Timings)
                    if f.name in timings
                }
            ),
            model=_of(str, data, "model"),
            device=_of(str, data, "device"),
            worker=_of(str, data, "worker"),
            attempt=_of(int, data, "attempt"),
            batch_size=_of(int, data, "batch_size"),
            error=None
            if error is None
            else JobError(
                code=_of(str, error, "code"),
                message=_of(str, error, "message"),
                remedy=_of(str, error, "remedy"),
            ),
            # Results of older workers say nothing of it.
            rollout="" if data.get("rollout") is None else _of(str, data, "rollout"),
        )


def _of(kind: type[T], data: Any, name: str) -> T:
    """`data[name]`, which must be of this kind; an integer is a float too, a boolean neither."""
    value = data[name]
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return cast(T, float(value))
    raise TypeError(f"{name} is of type {type(value).__name__}, not {kind.__name__}")


def _each(kind: type[T], data: Any, name: str) -> list[T]:
    values = _of(list, data, name)
    if any(type(value) is not kind for value in values):
        raise TypeError(f"{name} holds more than values of type {kind.__name__}")
    return values


def _one_of(kind: type[E], data: Any, name: str) -> E:
    value = _of(str, data, name)
    if value not in tuple(kind):
        raise ValueError(f"{name} is none of {', '.join(kind)}")
    return kind(value)
