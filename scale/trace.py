"""When jobs came and how long each took: from workers' logs, or from JSON lines of one's own.

A line of one's own has `at` (seconds, from any start) and `template` (`acme/triage`), and may have
`version` (1), `service_s` (that a worker had the job, without loading a prefix), `batch_size` (jobs
that shared the engine with it) and `prefix_s` (what loading the version's prefix takes). Lines of a
worker's log are read as `prefillq report` reads them.
"""

from __future__ import annotations

import json
import math
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from contract.console import YEAR_S
from contract.errors import InvalidInput, PrefillqError
from contract.ids import is_name
from report.lines import JobLine, Unreadable, WarmedLine, read_line
from report.sources import Reading, read_sources

_MOST_JOBS = 10_000_000  # about 100 bytes each
_MOST_BATCH = 4096


class NoTrace(PrefillqError):
    """Files without one line of a job that can be simulated."""

    code = "no_trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJob:
    """One job that came."""

    at: float  # seconds
    tenant: str
    version: str  # `acme/triage@1`
    service_s: float | None  # at `batch_size`; None if not measured
    batch_size: int = 1
    worker: str = ""
    claimed_at: float | None = None
    ended_at: float | None = None


@dataclass(slots=True, kw_only=True)
class Trace:
    """What was read, sorted by `at`."""

    jobs: list[TracedJob] = field(default_factory=list)
    prefix_s: dict[str, float] = field(default_factory=dict)  # version -> seconds, where measured
    waits_s: list[float] = field(default_factory=list)  # as they really were, where measured
    left_out: int = 0  # lines of jobs that were never computed, or cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A job as the simulation takes it."""

    at: float  # seconds since the first job came
    tenant: str
    version: str
    alone_s: float  # that it takes with the engine to itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """All of it, and what was measured of it."""

    works: Sequence[Work]
    prefix_s: dict[str, float]
    slowdown: float  # of each further job in a batch: with b jobs all take 1 + slowdown * (b - 1)
    turnaround_s: float = 0.0  # from a job's end to the next one's start in its slot
    batch_size: int  # the largest seen


def read_trace(names: Sequence[str]) -> Trace:
    """All jobs of these files, "-" for stdin. Raises InvalidInput and NoTrace."""
    trace, reading = Trace(), Reading()
    cold: dict[str, list[tuple[float, float]]] = {}  # version -> prefill, whole service
    warmed: dict[str, list[float]] = {}
    for raw in read_sources(names, reading):
        try:
            line = read_line(raw)
        except Unreadable:
            trace.left_out += 1
            continue
        match line:
            case JobLine():
                _add_logged(trace, line, cold)
            case WarmedLine():
                warmed.setdefault(f"{line.address}@{line.version}", []).append(line.prefill_s)
            case None:
                _add_own(trace, raw)
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
    _load_times(trace, cold, warmed)
    return trace


def _add_logged(trace: Trace, line: JobLine, cold: dict[str, list[tuple[float, float]]]) -> None:
    total, queued = line.seconds.get("total_s"), line.seconds.get("queue_s")
    if line.at is None or total is None or queued is None or not line.batch_size:
        trace.left_out += 1
        return
    version = f"{line.address}@{line.version}"
    service: float | None = max(0.0, total - queued)
    prefill = line.seconds.get("prefill_s", 0.0)
    if prefill > 0 or line.cache_reason == "cold":
        # Its time is that of loading the prefix, with the greedy check of the version's first time.
        cold.setdefault(version, []).append((prefill, service or 0.0))
        service = None
    trace.waits_s.append(queued)
    trace.jobs.append(
        TracedJob(
            at=line.at - total,
            tenant=line.tenant,
            version=version,
            service_s=service,
            batch_size=min(line.batch_size, _MOST_BATCH),
            worker=line.worker,
            claimed_at=line.at - total + queued,
            ended_at=line.at,
        )
    )


def _add_own(trace: Trace, raw: bytes) -> None:
    try:
        data = json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return  # talk among the lines of a log
    if not isinstance(data, dict) or "event" in data or "at" not in data:
        return
    at, version = _number(data.get("at"), -1e12, 1e12), _version(data)
    service = _number(data.get("service_s"), 0, YEAR_S)
    batch = _number(data.get("batch_size", 1), 1, _MOST_BATCH)
    prefix = _number(data.get("prefix_s"), 0, YEAR_S)
    wrong = ("service_s" in data and service is None) or ("prefix_s" in data and prefix is None)
    if at is None or version is None or batch is None or wrong:
        trace.left_out += 1
        return
    if prefix is not None:
        trace.prefix_s[version] = prefix
    trace.jobs.append(
        TracedJob(
            at=at,
            tenant=version.partition("/")[0],
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


def _load_times(
    trace: Trace, cold: dict[str, list[tuple[float, float]]], warmed: dict[str, list[float]]
) -> None:
    """What a prefix's first use costs: what cold jobs took beyond warm ones, or the prefill."""
    warm: dict[str, list[float]] = {}
    for job in trace.jobs:
        if job.service_s is not None:
            warm.setdefault(job.version, []).append(job.service_s)
    for version, seconds in warmed.items():
        trace.prefix_s.setdefault(version, fmean(seconds))
    for version, found in cold.items():
        usual = fmean(warm[version]) if version in warm else math.inf
        trace.prefix_s[version] = fmean(max(prefill, took - usual) for prefill, took in found)


def workload(
    trace: Trace, *, seed: int, service_s: float | None = None, prefix_s: float = 0.0
) -> Workload:
    """What is to be simulated. `service_s` and `prefix_s` stand in where nothing was measured.

    A job whose own time is not known takes that of another of its version, drawn by `seed`; of any
    other, where its version has none. Raises NoTrace if there is none at all.
    """
    slowdown = measured_slowdown(trace.jobs)
    alone: dict[str, list[float]] = {}
    for job in trace.jobs:
        if job.service_s is not None:
            taken = job.service_s / (1 + slowdown * (job.batch_size - 1))
            alone.setdefault(job.version, []).append(taken)
    every = [seconds for several in alone.values() for seconds in several]
    if not every and service_s is None:
        raise NoTrace(
            "no job of the trace says how long it took",
            expected="`service_s`, or jobs of a worker's log that found their prefix",
            remedy="Say it with --service-time, in seconds.",
        )
    draw = random.Random(seed)
    start = trace.jobs[0].at
    works = []
    for job in trace.jobs:
        if job.service_s is not None:
            seconds = job.service_s / (1 + slowdown * (job.batch_size - 1))
        elif service_s is not None and job.version not in alone:
            seconds = service_s
        else:
            seconds = draw.choice(alone.get(job.version) or every)
        works.append(
            Work(at=job.at - start, tenant=job.tenant, version=job.version, alone_s=seconds)
        )
    return Workload(
        works=works,
        prefix_s={
            version: trace.prefix_s.get(version, prefix_s)
            for version in {job.version for job in trace.jobs}
        },
        slowdown=slowdown,
        turnaround_s=measured_turnaround(trace.jobs),
        batch_size=max(job.batch_size for job in trace.jobs),
    )


def measured_slowdown(jobs: Iterable[TracedJob]) -> float:
    """How much longer a job takes for each further one in its batch, as a share of its time alone.

    A straight line by least squares through the jobs of each version, and the versions pooled; from
    0 (a batch costs nothing) to 1 (it saves nothing). 0 where all batches had one size.
    """
    by_version: dict[str, list[tuple[int, float]]] = {}
    for job in jobs:
        if job.service_s is not None:
            by_version.setdefault(job.version, []).append((job.batch_size, job.service_s))
    rise = at_one = 0.0
    for points in by_version.values():
        middle = fmean(batch for batch, _ in points)
        spread = sum((batch - middle) ** 2 for batch, _ in points)
        if spread == 0:
            continue
        mean = fmean(seconds for _, seconds in points)
        slope = sum((batch - middle) * (seconds - mean) for batch, seconds in points) / spread
        alone = mean - slope * (middle - 1)
        rise += slope * len(points)
        at_one += max(alone, 0.0) * len(points)
    if rise <= 0:
        return 0.0
    return min(1.0, rise / at_one) if at_one > 0 else 1.0


def measured_turnaround(jobs: Iterable[TracedJob]) -> float:
    """Seconds from a job's end to the claim of the next one, which waited already; the mean.

    Those of over ten times the median are left out: the worker was cut off, not slow. A worker
    acknowledges the one, fetches the other and claims it. Of workers' logs alone; 0 where no job
    waited.
    """
    by_worker: dict[str, list[tuple[float, bool, float]]] = {}
    for job in jobs:
        if job.claimed_at is not None and job.ended_at is not None:
            events = by_worker.setdefault(job.worker, [])
            events += [(job.ended_at, False, 0.0), (job.claimed_at, True, job.at)]
    gaps = []
    for events in by_worker.values():
        ended: deque[float] = deque()  # slots by when they became free
        for at, claims, came in sorted(events):
            if not claims:
                ended.append(at)
            elif ended and came <= (since := ended.popleft()):
                gaps.append(at - since)
    if not gaps:
        return 0.0
    usual = 10 * median(gaps)
    return fmean(gap for gap in gaps if gap <= usual)
