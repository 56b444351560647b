"""When jobs came and how long each took: from workers' logs, or from JSON lines of one's own.

A line of one's own has `at` (seconds, from any start) and `template` (`acme/triage`), and may have
`version` (1), `service_s` (that a worker had the job, without loading a prefix), `batch_size` (jobs
that shared the engine with it) and `prefix_s` (what loading the version's prefix takes). Lines of a
worker's log are read as `prefillq report` reads them, and its `worker_ready` line too.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from contract.console import YEAR_S
from contract.errors import InvalidInput, PrefillqError
from contract.ids import is_name
from report.lines import STAGES, JobLine, Unreadable, WarmedLine, read_line
from report.sources import Reading, read_sources

# Of a job's stages, those that are its own.
_OWN = tuple(stage for stage in STAGES if stage not in ("queue_s", "prefill_s"))
_MOST_JOBS = 5_000_000  # about 650 bytes each, with what is measured of them
_MOST_BATCH = 4096
_MOST_STARTS = 100_000  # of workers; what further ones took is not looked at


class NoTrace(PrefillqError):
    """Files without one line of a job that can be simulated."""

    code = "no_trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJob:
    """One job that came."""

    at: float  # seconds
    tenant: str
    version: str  # `acme/triage@1`
    service_s: float | None  # at `batch_size`, without loading a prefix; None if not measured
    batch_size: int = 1
    worker: str = ""
    claimed_at: float | None = None
    ended_at: float | None = None
    stages_s: float = 0.0  # what its stages say that it took of its own; 0 if they say nothing
    prefill_s: float | None = None  # of its version's prefix, if it was this job that loaded it


@dataclass(slots=True, kw_only=True)
class Trace:
    """What was read, sorted by `at`."""

    jobs: list[TracedJob] = field(default_factory=list)
    prefix_s: dict[str, float] = field(default_factory=dict)  # version -> seconds, where measured
    cold_starts_s: list[float] = field(default_factory=list)  # of workers, from start to ready
    waits_s: list[float] = field(default_factory=list)  # as they really were, where measured
    left_out: int = 0  # lines of jobs that were never computed, or cannot be read


def read_trace(names: Sequence[str]) -> Trace:
    """All jobs of these files, "-" for stdin. Raises InvalidInput and NoTrace."""
    trace, reading = Trace(), Reading()
    warmed: dict[str, list[float]] = {}  # version -> what loading it took
    names_of: dict[str, str] = {}  # one text for all jobs of a name: there are millions
    for raw in read_sources(names, reading):
        try:
            line = read_line(raw)
        except Unreadable:
            trace.left_out += 1
            continue
        match line:
            case JobLine():
                _add_logged(trace, line, names_of)
            case WarmedLine():
                warmed.setdefault(f"{line.address}@{line.version}", []).append(
                    line.prefill_s + line.parity_s
                )
            case None:
                _add_other(trace, raw, names_of)
        if len(trace.jobs) > _MOST_JOBS:
            raise InvalidInput("the trace is too long", expected=f"at most {_MOST_JOBS:,} jobs")
    if not trace.jobs:
        raise NoTrace(
            "there is no job to simulate",
            given=f"{reading.lines:,} lines, {trace.left_out:,} of them of jobs that were never "
            "computed or cannot be read",
            expected="job_finished lines of a worker's log, or JSON lines with `at` and `template`",
            remedy="Keep a worker's log: prefillq worker start 2> worker.log",
        )
    trace.jobs.sort(key=lambda job: job.at)
    _tell_loads_apart(trace, warmed)
    return trace


def _add_logged(trace: Trace, line: JobLine, names_of: dict[str, str]) -> None:
    total, queued = line.seconds.get("total_s"), line.seconds.get("queue_s")
    if line.at is None or total is None or queued is None or not line.batch_size:
        trace.left_out += 1
        return
    version, worker, tenant = (
        names_of.setdefault(name, name)
        for name in (f"{line.address}@{line.version}", line.worker, line.tenant)
    )
    prefill = line.seconds.get("prefill_s", 0.0)
    trace.waits_s.append(queued)
    trace.jobs.append(
        TracedJob(
            at=line.at - total,
            tenant=tenant,
            version=version,
            service_s=max(0.0, total - queued),
            batch_size=min(line.batch_size, _MOST_BATCH),
            worker=worker,
            claimed_at=line.at - total + queued,
            ended_at=line.at,
            prefill_s=prefill if prefill > 0 or line.cache_reason == "cold" else None,
            stages_s=sum(line.seconds.get(stage, 0.0) for stage in _OWN),
        )
    )


def _add_other(trace: Trace, raw: bytes, names_of: dict[str, str]) -> None:
    """A line of one's own, or a worker's that is ready."""
    try:
        data = json.loads(raw[max(raw.find(b"{"), 0) :].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return  # talk among the lines of a log
    if not isinstance(data, dict):
        return
    if data.get("event") == "worker_ready":
        seconds = _number(data.get("seconds"), 0, YEAR_S)
        if seconds is not None and len(trace.cold_starts_s) < _MOST_STARTS:
            trace.cold_starts_s.append(seconds)
    if "event" in data or "at" not in data:
        return
    at, version = _number(data.get("at"), -1e12, 1e12), _version(data)
    service = _number(data.get("service_s"), 0, YEAR_S)
    batch = _number(data.get("batch_size", 1), 1, _MOST_BATCH)
    prefix = _number(data.get("prefix_s"), 0, YEAR_S)
    wrong = ("service_s" in data and service is None) or ("prefix_s" in data and prefix is None)
    if at is None or version is None or batch is None or wrong:
        trace.left_out += 1
        return
    version = names_of.setdefault(version, version)
    if prefix is not None:
        trace.prefix_s[version] = prefix
    tenant = version.partition("/")[0]
    trace.jobs.append(
        TracedJob(
            at=at,
            tenant=names_of.setdefault(tenant, tenant),
            version=version,
            service_s=service,
            batch_size=int(batch),
        )
    )


def _version(data: dict[str, Any]) -> str | None:
    address, number = data.get("template"), data.get("version", 1)
    if not isinstance(address, str) or type(number) is not int or not 0 < number < 10**9:
        return None
    tenant, _, name = address.partition("/")
    return f"{address}@{number}" if is_name(tenant) and is_name(name) else None


def _number(value: object, least: float, most: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # No number is nan's peer, and an integer of any length may be compared, but be no float.
    return float(value) if least <= value <= most else None


def _tell_loads_apart(trace: Trace, warmed: dict[str, list[float]]) -> None:
    """Take the loading of prefixes out of the times of jobs that did it or waited for it.

    What such a job took of its own is what its stages say, and what others take beside theirs. A
    prefix takes what `version_warmed` lines say, with the check of its first time; else what it
    cost the jobs that loaded it.
    """
    loading: dict[tuple[str, str], list[TracedJob]] = {}
    for job in trace.jobs:
        if job.prefill_s is not None:
            loading.setdefault((job.worker, job.version), []).append(job)
    for jobs in loading.values():
        jobs.sort(key=_claimed_at)
    touched = [n for n, job in enumerate(trace.jobs) if _met_a_load(job, loading)]
    met = set(touched)
    beside = [
        job.service_s - job.stages_s
        for n, job in enumerate(trace.jobs)
        if n not in met and job.stages_s and job.service_s is not None
    ]
    usual = max(0.0, median(beside)) if beside else 0.0
    cold: dict[str, list[float]] = {}
    for n in touched:
        job = trace.jobs[n]
        took = job.service_s or 0.0
        own = min(took, job.stages_s + usual) if job.stages_s else None
        if job.prefill_s is not None:
            beyond = 0.0 if own is None else took - own
            cold.setdefault(job.version, []).append(max(job.prefill_s, beyond))
        trace.jobs[n] = replace(job, service_s=own)
    for version, seconds in (cold | warmed).items():
        trace.prefix_s[version] = fmean(seconds)


def _claimed_at(job: TracedJob) -> float:
    return job.claimed_at or 0.0


def _met_a_load(job: TracedJob, loading: dict[tuple[str, str], list[TracedJob]]) -> bool:
    """True if it came to its worker while its version's prefix was loaded there, or by it."""
    loads = loading.get((job.worker, job.version))
    if not loads:
        return False
    at = bisect_right(loads, _claimed_at(job), key=_claimed_at)
    return at > 0 and (job.claimed_at or 0.0) <= (loads[at - 1].ended_at or 0.0)
