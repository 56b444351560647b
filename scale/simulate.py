"""What a number of workers would have made of a trace: a simulation from event to event.

A worker takes up to `concurrency` jobs at once. What its engine computes advances at the same pace,
which falls with how much that is (`Workload.slowdown`), and changes whenever something comes or
goes: that is kept as the worker's own clock, which runs slower the more there is, so that a change
costs nothing for what stays. The first job of a version on a worker loads the prefix, two prefixes
at once; jobs of a version that is loaded wait for it in their slots. A job goes to the worker that
has waited longest, as Redis gives messages out.

Each event takes O(log) of the jobs of one worker and of the workers that are busy.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from typing import Any

from scale.turns import Rotation, Waiting, template_of
from scale.workload import Work, Workload

LOADS = 2  # prefixes that a worker loads at once, as `worker.prefix.cache` has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The workers. All are started when the first job comes."""

    workers: int
    concurrency: int
    # From a worker's start until it takes jobs: each has one of these, in turn. None: no time.
    cold_starts_s: Sequence[float] = ()
    warm: bool = False  # hold all prefixes from the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it went. A wait is from a job's coming to its start on a worker."""

    workers: int
    concurrency: int
    jobs: int
    wait_p50_s: float
    wait_p95_s: float
    wait_p99_s: float
    wait_max_s: float
    utilisation: float  # share of the slots' time that was used
    cold_loads: int  # a worker loaded a prefix
    span_s: float  # from the first job's coming to the last one's end
    jobs_per_s: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


# In the place of a stamp.
_TURNED = -1  # a slot takes its next job
_OPENS = -2  # a worker is up


class _Worker:
    __slots__ = (
        *("clock", "ends", "held", "in_line", "jobs", "loading", "moved_at", "rotation"),
        *("stamp", "to_load", "turning", "waiting"),
    )

    def __init__(self) -> None:
        self.clock = 0.0  # its own: seconds of work that each thing it computes has got
        self.moved_at = 0.0  # when that was so
        # What it computes, a heap: when it ends on its clock, a number to tell apart, and the
        # version whose prefix it is, or none for a job.
        self.ends: list[tuple[float, int, str]] = []
        self.jobs = 0  # that it has, those included that wait for a prefix
        self.held: set[str] = set()  # versions whose prefix is there
        self.waiting: dict[str, list[float]] = {}  # version being loaded -> its jobs' seconds
        self.to_load: deque[str] = deque()
        self.loading = 0
        self.rotation = Rotation()
        self.stamp = 0  # of the one end among the events that is still true
        self.turning = 0  # slots between two jobs
        self.in_line = False


def simulate(load: Workload, pool: Pool) -> Outcome:
    """The same for the same load and pool: nothing is drawn."""
    waits = _Simulation(load, pool).run()
    waits.waits.sort()
    count = len(waits.waits)
    span = max(waits.last_end, 1e-9)

    def percentile(share: float) -> float:
        return round(waits.waits[max(0, math.ceil(share * count) - 1)], 6)

    return Outcome(
        workers=pool.workers,
        concurrency=pool.concurrency,
        jobs=count,
        wait_p50_s=percentile(0.5),
        wait_p95_s=percentile(0.95),
        wait_p99_s=percentile(0.99),
        wait_max_s=percentile(1.0),
        utilisation=round(waits.busy_s / (pool.workers * pool.concurrency * span), 6),
        cold_loads=waits.cold_loads,
        span_s=round(span, 6),
        jobs_per_s=round(count / span, 6),
    )


class _Simulation:
    def __init__(self, load: Workload, pool: Pool) -> None:
        self._load = load
        self._pool = pool
        # How long a second of work takes with so many jobs on one worker.
        self._pace = [1 + load.slowdown * max(0, n - 1) for n in range(pool.concurrency + 1)]
        self._workers = [_Worker() for _ in range(pool.workers)]
        self._line: deque[_Worker] = deque()
        self._numbers = 0
        self._events: list[tuple[float, int, int, _Worker]] = []
        self._waiting = Waiting()
        self.waits: list[float] = []
        self.cold_loads = 0
        self.busy_s = 0.0
        self.last_end = 0.0
        starts = pool.cold_starts_s or (0.0,)
        for number, worker in enumerate(self._workers):
            if (start := starts[number % len(starts)]) > 0:
                self._plan_at(start, _OPENS, worker)
            else:
                self._stand_in_line(worker)

    def run(self) -> _Simulation:
        works, done, coming = self._load.works, 0, 0
        while done < len(works):
            arrives = works[coming].at if coming < len(works) else math.inf
            happens = self._next_event()
            if arrives <= happens:
                self._come(works[coming], arrives)
                coming += 1
            elif self._events[0][2] == _OPENS:
                self._open(happens)
            elif self._events[0][2] == _TURNED:
                self._turned(happens)
            else:
                done += self._end(happens)
        return self

    def _open(self, now: float) -> None:
        """All that are up at this moment, so that each gets its share of what waits."""
        while self._events and self._events[0][0] <= now and self._events[0][2] == _OPENS:
            self._stand_in_line(heappop(self._events)[3])
        while self._waiting and self._line:
            worker = self._line.popleft()
            self._give(worker, self._waiting.take(worker.rotation, now), now)

    def _come(self, work: Work, now: float) -> None:
        if self._line:
            worker = self._line.popleft()
            worker.rotation.serve(work.tenant, template_of(work.version))
            self._give(worker, work, now)
        else:
            self._waiting.add(work)

    def _give(self, worker: _Worker, work: Work, now: float) -> None:
        worker.in_line = False
        self._move(worker, now)
        self._begin(worker, work, now, self._load.pickup_s)
        self._stand_in_line(worker)
        self._plan(worker, now)

    def _end(self, now: float) -> bool:
        """Of a job, or of the loading of a prefix; True for a job."""
        _, _, _, worker = heappop(self._events)
        self._move(worker, now)
        _, _, version = heappop(worker.ends)
        if version:
            self._loaded(worker, version)
        else:
            worker.jobs -= 1
            self.last_end = now
            if self._load.turnaround_s > 0:
                worker.turning += 1
                self._plan_at(now + self._load.turnaround_s, _TURNED, worker)
            else:
                self._take_next(worker, now)
        self._plan(worker, now)
        return not version

    def _turned(self, now: float) -> None:
        _, _, _, worker = heappop(self._events)
        worker.turning -= 1
        self._move(worker, now)
        self._take_next(worker, now)
        self._plan(worker, now)

    def _take_next(self, worker: _Worker, now: float) -> None:
        if self._waiting:
            self._begin(worker, self._waiting.take(worker.rotation, now), now)
        else:
            self._stand_in_line(worker)

    def _begin(self, worker: _Worker, work: Work, now: float, pickup_s: float = 0.0) -> None:
        self.waits.append(now + pickup_s - work.at)
        seconds = work.alone_s + pickup_s  # the slot is taken from now on
        worker.jobs += 1
        version = work.version
        if self._pool.warm or version in worker.held or not self._load.prefix_s.get(version):
            self._compute(worker, seconds)
        elif (waiting := worker.waiting.get(version)) is not None:
            waiting.append(seconds)
        else:
            worker.waiting[version] = [seconds]
            worker.to_load.append(version)
            self.cold_loads += 1
            self._load_next(worker)

    def _load_next(self, worker: _Worker) -> None:
        while worker.to_load and worker.loading < LOADS:
            version = worker.to_load.popleft()
            worker.loading += 1
            self._compute(worker, self._load.prefix_s[version], version)

    def _loaded(self, worker: _Worker, version: str) -> None:
        worker.loading -= 1
        worker.held.add(version)
        worker.rotation.held.add(template_of(version))
        for seconds in worker.waiting.pop(version):
            self._compute(worker, seconds)
        self._load_next(worker)

    def _compute(self, worker: _Worker, seconds: float, version: str = "") -> None:
        self._numbers += 1
        heappush(worker.ends, (worker.clock + seconds, self._numbers, version))

    def _stand_in_line(self, worker: _Worker) -> None:
        if not worker.in_line and worker.jobs + worker.turning < self._pool.concurrency:
            worker.in_line = True
            self._line.append(worker)

    def _move(self, worker: _Worker, now: float) -> None:
        """Let the worker's engine do what it did since it was last looked at."""
        passed = now - worker.moved_at
        if worker.ends:
            worker.clock += passed / self._pace[len(worker.ends)]
        self.busy_s += passed * worker.jobs
        worker.moved_at = now

    def _plan(self, worker: _Worker, now: float) -> None:
        """The worker's next end, with what it computes now; an earlier plan is void."""
        worker.stamp += 1
        if worker.ends:
            left = max(0.0, worker.ends[0][0] - worker.clock)
            self._plan_at(now + left * self._pace[len(worker.ends)], worker.stamp, worker)

    def _plan_at(self, at: float, stamp: int, worker: _Worker) -> None:
        self._numbers += 1
        heappush(self._events, (at, self._numbers, stamp, worker))

    def _next_event(self) -> float:
        events = self._events
        while events and 0 <= events[0][2] != events[0][3].stamp:
            heappop(events)
        return events[0][0] if events else math.inf
