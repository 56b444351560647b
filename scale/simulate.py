"""What a number of workers would have made of a trace: a simulation from event to event.

A worker takes up to `concurrency` jobs at once. All of them advance at the same pace, which falls
with their number (`Workload.slowdown`), and changes whenever one comes or goes: that is kept as
the worker's own clock, which runs slower the more there are, so that a change costs nothing for the
jobs that stay. The first job of a version on a worker loads the prefix; others of that version wait
for it there. A job goes to the worker that has waited longest, as Redis gives messages out.

Each event takes O(log) of the jobs of one worker and of the workers that are busy.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from typing import Any

from scale.trace import Work, Workload
from scale.turns import Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The workers. All are started when the first job comes."""

    workers: int
    concurrency: int
    cold_start_s: float = 0.0  # until a worker takes its first job
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


_TURNED = -1  # in the place of a stamp: a slot takes its next job


class _Worker:
    __slots__ = ("clock", "ends", "held", "in_line", "moved_at", "stamp", "turning")

    def __init__(self) -> None:
        self.clock = 0.0  # its own: seconds of work that each of its jobs has got
        self.moved_at = 0.0  # when that was so
        self.ends: list[tuple[float, int]] = []  # heap: on its clock, and a number to tell apart
        self.held: dict[str, float] = {}  # version -> when its prefix is there, on its clock
        self.stamp = 0  # of the one end in the heap that is still true
        self.turning = 0  # slots between two jobs
        self.in_line = False


def simulate(load: Workload, pool: Pool, *, seed: int) -> Outcome:
    """Deterministic for a seed, which decides in what order the workers stand at the start."""
    waits = _Simulation(load, pool, seed).run()
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
    def __init__(self, load: Workload, pool: Pool, seed: int) -> None:
        self._load = load
        self._pool = pool
        # How long a second of work takes with so many jobs on one worker.
        self._pace = [1 + load.slowdown * max(0, n - 1) for n in range(pool.concurrency + 1)]
        order = list(range(pool.workers))
        random.Random(seed).shuffle(order)
        self._workers = [_Worker() for _ in order]
        self._line = deque(self._workers[i] for i in order)
        for worker in self._workers:
            worker.in_line = True
        self._numbers = 0
        self._events: list[tuple[float, int, int, _Worker]] = []
        self._waiting = Turns()
        self.waits: list[float] = []
        self.cold_loads = 0
        self.busy_s = 0.0
        self.last_end = 0.0

    def run(self) -> _Simulation:
        works, opens, done = self._load.works, self._pool.cold_start_s, 0
        coming = 0
        while done < len(works):
            arrives = works[coming].at if coming < len(works) else math.inf
            happens = self._next_event()
            if arrives <= happens:
                if arrives < opens:  # nobody is up yet
                    self._waiting.add(works[coming])
                    coming += 1
                    if coming == len(works) or works[coming].at >= opens:
                        self._open(opens)
                    continue
                self._come(works[coming], arrives)
                coming += 1
            elif self._events[0][2] == _TURNED:
                self._turned(happens)
            else:
                self._end(happens)
                done += 1
        return self

    def _open(self, now: float) -> None:
        while self._waiting and self._line:
            self._hand_out(self._waiting.take(), now)

    def _come(self, work: Work, now: float) -> None:
        if self._line:
            self._hand_out(work, now)
        else:
            self._waiting.add(work)

    def _hand_out(self, work: Work, now: float) -> None:
        worker = self._line.popleft()
        worker.in_line = False
        self._move(worker, now)
        self._begin(worker, work, now)
        self._stand_in_line(worker)
        self._plan(worker, now)

    def _end(self, now: float) -> None:
        _, _, _, worker = heappop(self._events)
        self._move(worker, now)
        heappop(worker.ends)
        self.last_end = now
        if self._load.turnaround_s > 0:
            worker.turning += 1
            self._numbers += 1
            at = now + self._load.turnaround_s
            heappush(self._events, (at, self._numbers, _TURNED, worker))
        else:
            self._take_next(worker, now)
        self._plan(worker, now)

    def _turned(self, now: float) -> None:
        _, _, _, worker = heappop(self._events)
        worker.turning -= 1
        self._move(worker, now)
        self._take_next(worker, now)
        self._plan(worker, now)

    def _take_next(self, worker: _Worker, now: float) -> None:
        if self._waiting:
            self._begin(worker, self._waiting.take(), now)
        else:
            self._stand_in_line(worker)

    def _begin(self, worker: _Worker, work: Work, now: float) -> None:
        self.waits.append(now - work.at)
        ready = worker.clock
        if not self._pool.warm:
            loaded = worker.held.get(work.version)
            if loaded is None:
                seconds = self._load.prefix_s.get(work.version, 0.0)
                self.cold_loads += seconds > 0
                loaded = worker.held[work.version] = worker.clock + seconds
            ready = max(ready, loaded)
        self._numbers += 1
        heappush(worker.ends, (ready + work.alone_s, self._numbers))

    def _stand_in_line(self, worker: _Worker) -> None:
        taken = len(worker.ends) + worker.turning
        if not worker.in_line and taken < self._pool.concurrency:
            worker.in_line = True
            self._line.append(worker)

    def _move(self, worker: _Worker, now: float) -> None:
        """Let the worker's jobs get what they got since it was last looked at."""
        jobs, passed = len(worker.ends), now - worker.moved_at
        if jobs:
            worker.clock += passed / self._pace[jobs]
            self.busy_s += passed * jobs
        worker.moved_at = now

    def _plan(self, worker: _Worker, now: float) -> None:
        """The worker's next end, with the jobs that it has now; an earlier plan is void."""
        worker.stamp += 1
        if worker.ends:
            left = max(0.0, worker.ends[0][0] - worker.clock)
            self._numbers += 1
            at = now + left * self._pace[len(worker.ends)]
            heappush(self._events, (at, self._numbers, worker.stamp, worker))

    def _next_event(self) -> float:
        events = self._events
        while events and events[0][2] not in (_TURNED, events[0][3].stamp):
            heappop(events)
        return events[0][0] if events else math.inf
