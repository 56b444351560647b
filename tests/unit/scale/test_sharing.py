"""What jobs on one worker cost each other, taken back from when each was there."""

from __future__ import annotations

import random

import pytest

from scale.sharing import Stays, fitted_slowdown
from scale.trace import Trace, TracedJob
from scale.workload import workload


def stay(claimed: float, ended: float, **more: object) -> TracedJob:
    """A job that came when it was claimed."""
    told = {"version": "acme/a@1", "worker": "w", "batch_size": 8, "service_s": ended - claimed}
    return TracedJob(
        at=claimed,
        tenant="acme",
        claimed_at=claimed,
        ended_at=ended,
        **(told | more),  # type: ignore[arg-type]
    )


def shared(begins: list[float], alone_s: list[float], slowdown: float) -> list[tuple[float, float]]:
    """When jobs that begin then are there, all at one pace that falls with their number."""
    now, left, ends = 0.0, dict[int, float](), dict[int, float]()
    while len(ends) < len(begins):
        pace = 1 + slowdown * max(0, len(left) - 1)
        coming = min((n for n in range(len(begins)) if n not in left | ends), default=None)
        first = min(left, key=left.__getitem__, default=None)
        to_come = float("inf") if coming is None else begins[coming] - now
        to_end = float("inf") if first is None else left[first] * pace
        passed = min(to_come, to_end)
        left = {n: seconds - passed / pace for n, seconds in left.items()}
        now += passed
        if to_come <= to_end and coming is not None:
            left[coming] = alone_s[coming]
        elif first is not None:
            del left[first]
            ends[first] = now
    return [(begins[n], ends[n]) for n in range(len(begins))]


@pytest.mark.parametrize("slowdown", [0.0, 0.1, 0.5, 1.0])
def test_times_alone_are_found_again(slowdown: float) -> None:
    """Of jobs that came at random, two kinds of them on two workers; batch sizes tell nothing."""
    draw = random.Random(3)
    jobs, wanted = [], []
    for worker in ("w1", "w2"):
        at, begins, alone_s = 0.0, [], []
        for _ in range(60):
            at += draw.expovariate(1 / (1 + 3 * slowdown))
            begins.append(at)
            alone_s.append(draw.choice([0.5, 4.0]))
        spans = shared(begins, alone_s, slowdown)
        wanted += alone_s
        jobs += [
            stay(*span, worker=worker, version=f"acme/{seconds}@1")
            for span, seconds in zip(spans, alone_s, strict=True)
        ]
    assert fitted_slowdown(jobs) == pytest.approx(slowdown, abs=0.01)
    found = dict(Stays(jobs).alone_s(slowdown))
    assert [found[n] for n in range(len(jobs))] == pytest.approx(wanted)
    load = workload(Trace(jobs=jobs), seed=0)
    assert [work.alone_s for work in load.works] == pytest.approx(wanted, rel=0.05)


def test_what_a_job_waited_for_its_prefix_is_no_company() -> None:
    """It computed for the last second of its three."""
    jobs = [stay(0, 3, service_s=1.0), stay(0, 2)]
    assert dict(Stays(jobs).alone_s(1.0)) == {0: 1.0, 1: 2.0}
    assert dict(Stays([stay(0, 2.5, service_s=1.0), stay(0, 2)]).alone_s(1.0)) == {
        0: pytest.approx(0.75),
        1: pytest.approx(1.75),
    }


def test_slots_are_the_most_jobs_at_once_for_more_than_a_moment() -> None:
    """The line of a job is written when the next one is claimed already."""
    jobs = [stay(n, n + 1.002) for n in range(10)] + [stay(n, n + 1.002) for n in range(5)]
    assert Stays(jobs).most_at_once() == 2
    assert workload(Trace(jobs=jobs), seed=0).slots == 2


def test_jobs_of_no_length_and_of_no_worker() -> None:
    """They are passed over."""
    jobs = [stay(1, 1), stay(5, 2, service_s=0.0), stay(1, 2, service_s=None)]
    jobs.append(TracedJob(at=0, tenant="acme", version="acme/a@1", service_s=1.0))
    stays = Stays(jobs)
    assert not stays
    assert list(stays.alone_s(0.5)) == []
    assert stays.most_at_once() == 0
