"""What jobs that share a worker cost each other, from when each was there.

A log's `batch_size` is the most jobs that ever shared a step with one. How many were beside it at
each moment is known better: from all the claims and ends of its worker. So a job's time is taken
back to what it would have taken alone by the same clock as `scale.simulate` runs it forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, pvariance

from scale.trace import TracedJob

_FITTED = 20_000  # jobs that the slowdown is fitted to: the first of the trace
_STEPS = 12  # each halves, or nearly, the interval that the slowdown lies in
_GOLDEN = 0.618
# Levels that a worker was at for less of its time are no slots: a line is written a little after
# the job's end, and the next one may be claimed by then.
_PASSING = 0.01


class Stays:
    """When each job was on its worker and computing; only of jobs that logs tell of."""

    def __init__(self, jobs: Sequence[TracedJob]) -> None:
        self._jobs = jobs
        self._of: dict[str, list[int]] = {}  # worker -> places in `jobs`
        for place, job in enumerate(jobs):
            if _begin(job) < _end(job):
                self._of.setdefault(job.worker, []).append(place)

    def __bool__(self) -> bool:
        return bool(self._of)

    def alone_s(self, slowdown: float) -> Iterator[tuple[int, float]]:
        """Place in `jobs` and seconds with the engine to itself, if with `b` jobs all take
        `1 + slowdown * (b - 1)` times as long as alone.
        """
        for places in self._of.values():
            clock, last, there = 0.0, 0.0, 0
            began: dict[int, float] = {}
            for at, begins, place in _events(self._jobs, places):
                if there:
                    clock += (at - last) / (1 + slowdown * (there - 1))
                last = at
                if begins:
                    there += 1
                    began[place] = clock
                else:
                    there -= 1
                    yield place, clock - began.pop(place)

    def most_at_once(self) -> int:
        """Jobs that a worker had at once, for more than a moment."""
        most = 0
        for places in self._of.values():
            spent: dict[int, float] = {}
            last, there = 0.0, 0
            for at, begins, _ in _events(self._jobs, places):
                if there:
                    spent[there] = spent.get(there, 0.0) + at - last
                last = at
                there += 1 if begins else -1
            passing, above = _PASSING * sum(spent.values()), 0.0
            for level in sorted(spent, reverse=True):
                above += spent[level]
                if above >= passing:
                    most = max(most, level)
                    break
        return most


def fitted_slowdown(jobs: Sequence[TracedJob]) -> float:
    """The slowdown, from 0 to 1, with which jobs of a version are the most alike when alone."""
    some = jobs[:_FITTED]
    stays = Stays(some)

    def spread(slowdown: float) -> float:
        alone: dict[str, list[float]] = {}
        for place, seconds in stays.alone_s(slowdown):
            alone.setdefault(some[place].version, []).append(seconds)
        return sum(_spread(seconds) for seconds in alone.values())

    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if spread(left) <= spread(right):  # nothing tells them apart: a batch is free
            high = right
        else:
            low = left
    found = (low + high) / 2
    return min((0.0, found, 1.0), key=spread)


def _spread(seconds: Sequence[float]) -> float:
    """Variance as a share of the mean's square, for each of them: the same in any unit."""
    mean = fmean(seconds)
    return len(seconds) * pvariance(seconds, mean) / mean**2 if mean > 0 else 0.0


def _events(jobs: Sequence[TracedJob], places: Iterable[int]) -> Sequence[tuple[float, bool, int]]:
    """Ends before the begins of the same moment."""
    found = []
    for place in places:
        found += [(_begin(jobs[place]), True, place), (_end(jobs[place]), False, place)]
    return sorted(found)


def _begin(job: TracedJob) -> float:
    """The last of its time: before, it may have waited for a prefix."""
    if job.claimed_at is None or job.service_s is None:
        return _end(job)
    return max(job.claimed_at, _end(job) - job.service_s)


def _end(job: TracedJob) -> float:
    return job.ended_at or 0.0
