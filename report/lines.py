"""One line of a worker's log, read with suspicion.

A log has passed through other hands: collectors, disks that were full, whoever can write there.
What a job's line must have is who it was and how it ended; any number that is none is left out and
counted, so that one NaN does not become everybody's average.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeGuard

from contract.console import YEAR_S, one_line
from contract.types import CacheState, JobState

STAGES = (
    "queue_s",
    "tokenize_s",
    "verify_s",
    "prefill_s",
    "fork_s",
    "suffix_prefill_s",
    "decode_s",
    "commit_s",
)
_SECONDS = (*STAGES, "ttft_s", "total_s")
_COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "batch_size", "attempt")
_EVENTS = (b"job_finished", b"version_warmed", b"job_tried_later")
_NAME_CHARS = 80
_REF_CHARS = 160  # tenant/template@version, each name of which has at most 64
_MOST = 2**40  # tokens of a job; keeps every sum of a log far from where floats lose count
_LAST_AT = 4_102_444_800.0  # the year 2100
_ENDED = {str(state) for state in JobState if state.ended}
_CACHE = {str(state) for state in CacheState}


class Unreadable(Exception):
    """A line that speaks of a job and cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """A `job_finished` line. What it lacks, or has as no sensible number, is None."""

    at: float | None  # seconds since the epoch
    tenant: str
    template: str
    version: str
    status: str
    model: str
    device: str
    worker: str
    cache_state: str
    cache_reason: str
    error: str
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    batch_size: int | None
    attempt: int | None
    seconds: dict[str, float]  # those of `_SECONDS` that it has
    bad_values: int  # fields that were there and no use

    @property
    def address(self) -> str:
        """`tenant/template`."""
        return f"{self.tenant}/{self.template}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmedLine:
    """A `version_warmed` line: a worker computed a prefix, for a job or before any."""

    at: float | None
    tenant: str
    address: str
    version: str
    prefill_s: float
    parity_s: float = 0.0  # the check of a version's first time


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedLaterLine:
    """A `job_tried_later` line: an attempt failed and the job was put back."""

    at: float | None
    tenant: str
    error: str


Line = JobLine | WarmedLine | TriedLaterLine


def read_line(raw: bytes) -> Line | None:
    """What a line says; None when it is none of ours. Raises Unreadable.

    What stands before the first `{` is passed over: `docker compose logs` puts a name there.
    """
    if not any(event in raw for event in _EVENTS):
        return None
    try:
        data = json.loads(raw[max(raw.find(b"{"), 0) :].decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise Unreadable("no JSON") from error
    event = data.get("event") if isinstance(data, dict) else None
    match event:
        case "job_finished":
            return _job(data)
        case "version_warmed":
            return _warmed(data)
        case "job_tried_later":
            return _tried_later(data)
        case str():
            return None  # the words stand elsewhere in it
        case _:
            raise Unreadable("no event")


def _job(data: dict[str, Any]) -> JobLine:
    status = _name(data, "status")
    if status not in _ENDED:
        raise Unreadable("no status")
    bad = 0
    seconds: dict[str, float] = {}
    for name in _SECONDS:
        value = data.get(name)
        if value is None:
            continue
        if type(value) is float and 0 <= value <= YEAR_S:  # nearly always
            seconds[name] = value
        elif _is_number(value) and value <= YEAR_S:
            seconds[name] = float(value)
        else:
            bad += 1
    counts: dict[str, int | None] = {}
    for name in _COUNTS:
        value = data.get(name)
        if type(value) is int and 0 <= value <= _MOST:
            counts[name] = value
        elif _is_number(value) and value <= _MOST and value == int(value):
            counts[name] = int(value)
        else:
            counts[name] = None
            bad += value is not None
    at = _at(data)
    cache_state = _text(data, "cache_state")
    bad += at is None and "timestamp" in data
    bad += cache_state not in _CACHE and "cache_state" in data
    cached, prompt = counts["cached_tokens"], counts["prompt_tokens"]
    if cached is not None and (prompt is None or cached > prompt):
        counts["cached_tokens"] = None  # more than the prompt has: one of both is wrong
        bad += 1
    return JobLine(
        at=at,
        tenant=_name(data, "tenant"),
        template=_name(data, "template"),
        version=_version(data),
        status=status,
        model=_text(data, "model"),
        device=_text(data, "device"),
        worker=_text(data, "worker"),
        cache_state=cache_state if cache_state in _CACHE else "",
        cache_reason=_text(data, "cache_reason").partition("=")[0],  # ids_differ_at=17 is one kind
        error=_text(data, "error"),
        seconds=seconds,
        bad_values=bad,
        **counts,
    )


def _warmed(data: dict[str, Any]) -> WarmedLine | None:
    ref = _text(data, "version", limit=_REF_CHARS)
    if not ref:
        raise Unreadable("no version")
    address, _, version = ref.partition("@")
    prefill_s, parity_s = data.get("prefill_s"), data.get("parity_s")
    if not (_is_number(prefill_s) and 0 < prefill_s <= YEAR_S):
        return None  # it came from disk
    return WarmedLine(
        at=_at(data),
        tenant=address.partition("/")[0],
        address=address,
        version=version,
        prefill_s=float(prefill_s),
        parity_s=float(parity_s) if _is_number(parity_s) and parity_s <= YEAR_S else 0.0,
    )


def _tried_later(data: dict[str, Any]) -> TriedLaterLine:
    tenant = _name(data, "job_id").partition(".")[0]
    return TriedLaterLine(at=_at(data), tenant=tenant, error=_text(data, "error"))


def _is_number(value: object) -> TypeGuard[int | float]:
    """A finite number of 0 or more; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < math.inf


def _version(data: dict[str, Any]) -> str:
    value = data.get("version")
    if type(value) is int and 0 <= value < 10**9:
        return str(value)
    raise Unreadable("no version")


def _name(data: dict[str, Any], field: str) -> str:
    name = _text(data, field)
    if not name:
        raise Unreadable(f"no {field}")
    return name


def _text(data: dict[str, Any], field: str, *, limit: int = _NAME_CHARS) -> str:
    """Text on one line without control codes; empty for what is no text."""
    value = data.get(field)
    if type(value) is not str:
        return ""
    if len(value) <= limit and value.isprintable():
        return value
    return one_line(value[: limit + 1], limit=limit)


def _at(data: dict[str, Any]) -> float | None:
    value = data.get("timestamp")
    if type(value) is not str:
        return None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        at = moment.timestamp()
    except (ValueError, OverflowError):
        return None
    return at if 0 <= at < _LAST_AT else None
