"""What is to be simulated: jobs, and what was measured of workers."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from scale.sharing import Stays, fitted_slowdown
from scale.trace import NoTrace, Trace, TracedJob

CUT_OFF_S = 1.0


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
    pickup_s: float = 0.0  # from a job's coming to its start in a slot that was free
    slots: int  # that a worker has: the most jobs that one had at once


def workload(
    trace: Trace,
    *,
    seed: int,
    wanted: Callable[[str], bool] = lambda _version: True,
    service_s: float | None = None,
    prefix_s: float = 0.0,
) -> Workload:
    """What is to be simulated: the jobs of wanted versions, measured beside all the others.

    `service_s` and `prefix_s` stand in where nothing was measured.

    A job whose own time is not known takes that of another of its version, drawn by `seed`; of any
    other, where its version has none. Raises NoTrace if there is none at all, or no wanted job.
    """
    stays = Stays(trace.jobs)
    slowdown = fitted_slowdown(trace.jobs) if stays else measured_slowdown(trace.jobs)
    taken = [
        None if job.service_s is None else job.service_s / (1 + slowdown * (job.batch_size - 1))
        for job in trace.jobs
    ]
    for place, seconds in stays.alone_s(slowdown):
        taken[place] = seconds
    alone: dict[str, list[float]] = {}
    for job, took in zip(trace.jobs, taken, strict=True):
        if took is not None:
            alone.setdefault(job.version, []).append(took)
    every = [seconds for several in alone.values() for seconds in several]
    if not every and service_s is None:
        raise NoTrace(
            "no job of the trace says how long it took",
            expected="`service_s`, or jobs of a worker's log that found their prefix",
            remedy="Say it with --service-time, such as 0.7 or 700ms.",
        )
    jobs = [pair for pair in zip(trace.jobs, taken, strict=True) if wanted(pair[0].version)]
    if not jobs:
        raise NoTrace("the trace has none of the jobs that were asked for")
    draw = random.Random(seed)
    start = jobs[0][0].at
    works = []
    for job, took in jobs:
        if took is not None:
            seconds = took
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
            for version in {job.version for job, _ in jobs}
        },
        slowdown=slowdown,
        turnaround_s=measured_turnaround(trace.jobs),
        pickup_s=measured_pickup(trace.jobs),
        slots=stays.most_at_once() or max(job.batch_size for job, _ in jobs),
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

    Those of over a second that are over ten times the median too are left out: the worker was cut
    off, not slow. A worker acknowledges the one, fetches the other and claims it. Of workers' logs
    alone, and of all their jobs: a slot that another's job had was not idle. 0 where no job waited.
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
    usual = max(CUT_OFF_S, 10 * median(gaps))
    return fmean(gap for gap in gaps if gap <= usual)


def measured_pickup(jobs: Iterable[TracedJob]) -> float:
    """Seconds from a job's coming to its claim by a worker that had a slot free; the median.

    Such a job is one that got no slot of another's: none ended on its worker while it waited. And
    one whose worker had taken others before it came: until its first claim a worker may have been
    starting. Of those over a second the worker was cut off. Of workers' logs alone.
    """
    by_worker: dict[str, list[TracedJob]] = {}
    for job in jobs:
        if job.claimed_at is not None and job.ended_at is not None:
            by_worker.setdefault(job.worker, []).append(job)
    waits = []
    for some in by_worker.values():
        ends = sorted(job.ended_at or 0.0 for job in some)
        up_at = min(job.claimed_at or 0.0 for job in some)
        for job in some:
            claimed = job.claimed_at or 0.0
            wait = claimed - job.at
            unhindered = bisect_left(ends, job.at) == bisect_left(ends, claimed)
            if job.at >= up_at and wait < CUT_OFF_S and unhindered:
                waits.append(wait)
    return max(0.0, median(waits)) if waits else 0.0
