"""The simulation: small cases reckoned by hand, a slow one to compare with, and queueing theory."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from scale.simulate import LOADS, Outcome, Pool, simulate
from scale.turns import OUT_OF_TURN, OUT_OF_TURN_S, Rotation, Waiting
from scale.workload import Work, Workload
from worker import rotation
from worker.prefix import cache


def load_of(
    *jobs: tuple[float, float], prefix_s: float = 0.0, slowdown: float = 0.0, versions: int = 1
) -> Workload:
    """Jobs as (when, seconds); several versions in turn."""
    works = [
        Work(at=at, tenant="acme", version=f"acme/t@{n % versions}", alone_s=seconds)
        for n, (at, seconds) in enumerate(jobs)
    ]
    return Workload(
        works=works,
        prefix_s={work.version: prefix_s for work in works},
        slowdown=slowdown,
        slots=1,
    )


def run(load: Workload, workers: int = 1, concurrency: int = 1, **more: Any) -> Outcome:
    pool = Pool(workers=workers, concurrency=concurrency, **more)
    return simulate(load, pool)


def test_one_after_the_other() -> None:
    """Three jobs of 2 s at once, one slot: waits of 0, 2 and 4 s."""
    outcome = run(load_of((0, 2), (0, 2), (0, 2)))
    assert (outcome.wait_p50_s, outcome.wait_max_s, outcome.span_s) == (2.0, 4.0, 6.0)
    assert outcome.utilisation == 1.0


def test_slots_and_workers_are_alike_where_a_batch_is_free() -> None:
    """Two workers of one slot, one of two."""
    load = load_of((0, 2), (0, 2), (0, 2), (0, 2))
    assert run(load, 2, 1).wait_max_s == run(load, 1, 2).wait_max_s == 2.0


def test_a_batch_is_slower() -> None:
    """Two jobs of 2 s together at half pace each end after 4 s, the second's last half alone."""
    assert run(load_of((0, 2), (0, 2), slowdown=1.0), 1, 2).span_s == 4.0
    # One alone for 1 s, then both: its other second takes 2, and by then the other has 1 left.
    assert run(load_of((0, 2), (1, 2), slowdown=1.0), 1, 2).span_s == 4.0
    assert run(load_of((0, 2), (0, 2), slowdown=0.5), 1, 2).span_s == 3.0


def test_first_job_of_a_version_loads_its_prefix() -> None:
    """Once per worker and version; the next of that version waits for it there."""
    outcome = run(load_of((0, 1), (0, 1), (10, 1), prefix_s=5.0), 1, 2)
    assert (outcome.cold_loads, outcome.span_s) == (1, 11.0)
    assert run(load_of((0, 1), (2, 1), prefix_s=5.0), 1, 2).span_s == 6.0
    assert run(load_of((0, 1), (0, 1), (10, 1), prefix_s=5.0), 1, 2, warm=True).cold_loads == 0
    assert run(load_of((0, 1), (0, 1), (0, 1), prefix_s=5.0, versions=3), 1, 1).cold_loads == 3
    assert run(load_of((0, 1), (0, 1), prefix_s=5.0), 2, 1).cold_loads == 2


def test_two_prefixes_are_loaded_at_once() -> None:
    """The third of a worker waits for one of them, as do its version's jobs; others go on."""
    load = load_of((0, 1), (0, 1), (0, 1), prefix_s=5.0, versions=3)
    assert run(load, 1, 3).span_s == 11.0
    assert run(load, 1, 3).utilisation == pytest.approx((6 + 6 + 11) / (3 * 11), abs=1e-6)
    assert run(load_of((0, 1), (0, 1), prefix_s=5.0, versions=2), 1, 2).span_s == 6.0
    # Of two versions: one is there, the other loads, and the first one's job does not wait for it.
    load = load_of((0, 1), (10, 1), (10, 1), prefix_s=5.0, versions=2)
    assert run(replace(load, prefix_s={"acme/t@0": 0.0, "acme/t@1": 5.0}), 1, 3).span_s == 16.0


def test_a_job_that_waits_for_a_prefix_slows_none_down() -> None:
    """The engine computes the prefix alone for 5 s, then both jobs at half pace."""
    assert run(load_of((0, 1), (0, 1), prefix_s=5.0, slowdown=1.0), 1, 2).span_s == 7.0
    # A prefix of 4 s and another's job of 3 s at half pace until 6 s, the prefix's rest until 7.
    load = load_of((0, 1), (0, 3), (0, 1), prefix_s=4.0, slowdown=1.0, versions=2)
    assert run(replace(load, prefix_s={"acme/t@0": 4.0}), 1, 3).span_s == 9.0


def test_each_worker_has_a_cold_start_of_its_own() -> None:
    """In turn, where there are more workers than times; those that are up share what waits."""
    load = load_of((0, 1), (0, 1), (0, 1), (0, 1))
    assert run(load, 2, 1, cold_starts_s=(2.0, 2.5)).span_s == 4.5
    assert run(load, 4, 1, cold_starts_s=(2.0, 2.5)).wait_max_s == 2.5
    # Both are up at once, and have two of the jobs each: at half pace they take 2 s.
    assert run(replace(load, slowdown=1.0), 2, 4, cold_starts_s=(2.0,)).span_s == 4.0
    assert run(load, 2, 2, cold_starts_s=(0.0, 90.0)).wait_max_s == 1.0


def test_workers_take_jobs_once_they_are_up() -> None:
    """What came before waits for them, in order."""
    outcome = run(load_of((0, 1), (1, 1), (20, 1)), 1, 1, cold_starts_s=(10.0,))
    assert (outcome.wait_max_s, outcome.wait_p50_s, outcome.span_s) == (10.0, 10.0, 21.0)
    assert run(load_of((0, 1), (1, 1)), 9, 1, cold_starts_s=(10.0,)).wait_p50_s == 9.0


def test_a_slot_takes_its_next_job_after_a_turnaround() -> None:
    """The engine is not busy meanwhile, and a slot that was never used waits for nothing."""
    load = replace(load_of((0, 2), (0, 2), (0, 2), slowdown=1.0), turnaround_s=0.5)
    assert run(load, 1, 1).wait_max_s == 5.0
    # Two together for 4 s; the third starts half a second later and is alone.
    assert run(load, 1, 2).span_s == 6.5
    assert run(load, 3, 1).wait_max_s == 0.0
    assert run(replace(load_of((0, 1), (1.2, 1)), turnaround_s=0.5)).wait_max_s == 0.3


def test_a_free_slot_takes_a_job_after_a_moment() -> None:
    """And is not free meanwhile."""
    load = replace(load_of((0, 1), (0.5, 1)), pickup_s=0.25)
    outcome = run(load, 1, 1)
    assert (outcome.wait_p50_s, outcome.wait_max_s, outcome.span_s) == (0.25, 0.75, 2.25)
    assert run(load, 2, 1).wait_max_s == 0.25
    assert run(load, 1, 1, cold_starts_s=(3.0,)).wait_p50_s == 3.25


def test_workers_do_not_split_the_templates_among_them() -> None:
    """Each of two begins with the first name, and so both load both prefixes."""
    load = load_of((0, 1), (0, 1), (0, 1), (0, 1), prefix_s=1.0, versions=1)
    works = [replace(w, version=f"acme/{n % 2}@1") for n, w in enumerate(load.works)]
    load = replace(load, works=works, prefix_s={work.version: 1.0 for work in works})
    assert run(load, 2, 2, cold_starts_s=(1.0,)).cold_loads == 4


def waiting(*addresses: str) -> Waiting:
    found = Waiting()
    for n, address in enumerate(addresses):
        tenant = address.partition("/")[0]
        found.add(Work(at=n, tenant=tenant, version=f"{address}@1", alone_s=1.0))
    return found


def taken(jobs: Waiting, by: Rotation, *, every_s: float = 0.0) -> list[str]:
    """The templates of all jobs, in the order in which one worker takes them."""
    return [jobs.take(by, n * every_s).version.removesuffix("@1") for n in range(len(jobs))]


def test_tenants_take_turns() -> None:
    """A tenant with a backlog does not hold up another, nor a template another of its tenant."""
    jobs = waiting("a/x", "a/x", "a/x", "a/y", "b/z", "b/z")
    assert taken(jobs, Rotation()) == ["a/x", "b/z", "a/y", "b/z", "a/x", "a/x"]
    assert len(jobs) == 0


def test_each_worker_takes_turns_of_its_own() -> None:
    """All begin with the first name, whatever came first, and whatever others took."""
    jobs, one, other = waiting("a/y", "a/x", "a/x", "a/y"), Rotation(), Rotation()
    found = [jobs.take(by, 0.0).version for by in (one, other, one, other)]
    assert found == ["a/x@1", "a/x@1", "a/y@1", "a/y@1"]
    jobs = waiting("a/x", "a/y")
    one.serve("a", "a/x")  # a job that it was given as it came
    assert taken(jobs, one) == ["a/y", "a/x"]


def test_a_worker_prefers_what_it_holds_within_a_bound() -> None:
    """Seven times, or for five seconds, and among its tenant's templates alone."""
    jobs, by = waiting("a/x", *["a/y"] * 10), Rotation()
    by.held.add("a/y")
    assert taken(jobs, by).index("a/x") == 7
    jobs, by = waiting("a/x", *["a/y"] * 10), Rotation()
    by.held.add("a/y")
    assert taken(jobs, by, every_s=2.0).index("a/x") == 3
    jobs, by = waiting("a/x", "b/y", "b/y"), Rotation()
    by.held.add("b/y")
    assert taken(jobs, by) == ["a/x", "b/y", "b/y"]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["a/u", "a/v", "a/x", "a/y", "b/z"]), max_size=60),
    st.sets(st.sampled_from(["a/v", "a/y", "b/z"])),
    st.sampled_from([0.0, 0.4, 3.0]),
)
def test_turns_are_those_of_a_worker(addresses: list[str], held: set[str], every_s: float) -> None:
    """The order of `worker.rotation`, whose worker looks at queues without knowing what waits."""
    jobs, by, clock = waiting(*addresses), Rotation(), 0.0
    by.held |= held
    names = ["a/u", "a/v", "a/x", "a/y", "b/z"]
    real = rotation.TenantRotation(clock=lambda: clock)
    # A queue that is empty may count as passed over there, so that all are as long here.
    real.update(sorted(set(addresses)))
    real.prefer(frozenset(held & set(addresses)))
    left = {name: addresses.count(name) for name in names}
    for n in range(len(jobs)):
        clock = n * every_s
        queue = next(q for q in real.consume(len(names)) if left[q])
        if not all(left[q] for q in set(addresses)):
            break
        left[real.rotate(queue)] -= 1
        assert jobs.take(by, clock).version == f"{queue}@1"


def test_bounds_are_those_of_a_worker() -> None:
    """Numbers that stand in both rooms."""
    bounds = (rotation.OUT_OF_TURN, rotation.OUT_OF_TURN_S, cache.BUILDS)
    assert bounds == (OUT_OF_TURN, OUT_OF_TURN_S, LOADS)


def _by_steps(load: Workload, workers: int, concurrency: int) -> list[float]:
    """The same, the slow way: without an own clock, every job's rest of work at every event."""
    rests: list[list[float]] = [[] for _ in range(workers)]
    queue, waits, now = list(load.works), [], 0.0
    while queue or any(rests):
        free = [jobs for jobs in rests if len(jobs) < concurrency]
        while queue and queue[0].at <= now + 1e-12 and free:
            # Any worker with a free slot does here: where jobs do not slow each other down the
            # waits are the same.
            free[0].append(queue[0].alone_s)
            waits.append(now - queue.pop(0).at)
            free = [jobs for jobs in rests if len(jobs) < concurrency]
        paces = [1 + load.slowdown * max(0, len(jobs) - 1) for jobs in rests]
        ends = [min(jobs) * pace for jobs, pace in zip(rests, paces, strict=True) if jobs]
        coming = [queue[0].at - now] if queue and queue[0].at > now else []
        step = max(0.0, min(ends + coming))
        now += step
        for jobs, pace in zip(rests, paces, strict=True):
            jobs[:] = [rest - step / pace for rest in jobs if rest - step / pace > 1e-9]
    return sorted(waits)


jobs = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=25)


@settings(deadline=None)
@given(jobs, st.integers(1, 4), st.sampled_from([0.0, 0.25, 1.0]), st.integers(1, 3))
def test_is_what_the_slow_way_gives(
    found: list[tuple[int, int]], slots: int, slowdown: float, workers: int
) -> None:
    """Each wait, for one worker with batches and for several whose batches are free."""
    if workers > 1:
        slowdown = 0.0
    load = load_of(*sorted((at / 2, seconds / 8) for at, seconds in found), slowdown=slowdown)
    waits = _by_steps(load, workers, slots)
    outcome = run(load, workers, slots)
    assert outcome.wait_max_s == pytest.approx(waits[-1], abs=1e-5)
    assert outcome.wait_p50_s == pytest.approx(waits[math.ceil(len(waits) / 2) - 1], abs=1e-5)
    assert outcome.jobs == len(found)


@settings(deadline=None)
@given(jobs, st.integers(1, 4), st.integers(1, 5), st.integers(0, 3))
def test_slots_are_never_used_more_than_there_are(
    found: list[tuple[int, int]], slots: int, workers: int, prefix: int
) -> None:
    """And every job is served, whatever the prefixes cost."""
    load = load_of(*sorted(found), prefix_s=float(prefix), slowdown=0.3, versions=2)
    outcome = run(load, workers, slots)
    assert 0 < outcome.utilisation <= 1.000001
    assert outcome.wait_p50_s <= outcome.wait_p95_s <= outcome.wait_p99_s <= outcome.wait_max_s


def test_mean_wait_of_theory() -> None:
    """M/M/1 at 0.8: a job waits 4 service times on average, and 20 % do not wait (drawn)."""
    draw = random.Random(3)
    at, found = 0.0, []
    for _ in range(60_000):
        at += draw.expovariate(0.8)
        found.append((at, draw.expovariate(1.0)))
    outcome = run(load_of(*found))
    # The wait's share beyond t is 0.8 exp(-0.2 t): its median is ln(1.6)/0.2, its p95 ln(16)/0.2.
    assert outcome.wait_p50_s == pytest.approx(math.log(1.6) / 0.2, rel=0.1)
    assert outcome.wait_p95_s == pytest.approx(math.log(16) / 0.2, rel=0.1)
    assert outcome.utilisation == pytest.approx(0.8, rel=0.03)


def test_a_hundred_thousand_jobs_on_ten_thousand_workers() -> None:
    """Within 30 s of processor time, also where all but a few wait at once."""
    draw = random.Random(1)
    works, at = [], 0.0
    for n in range(100_000):
        at += draw.expovariate(5000)
        works.append(
            Work(at=at, tenant=f"t{n % 9}", version=f"t{n % 9}/x@1", alone_s=draw.expovariate(0.5))
        )
    load = replace(
        load_of((0.0, 1.0), slowdown=0.05), works=works, prefix_s={w.version: 3.0 for w in works}
    )
    started = time.process_time()
    few = run(load, 10, 4, cold_starts_s=(5.0,))
    many = run(load, 10_000, 4, cold_starts_s=(5.0,))
    assert time.process_time() - started < 30
    assert few.jobs == many.jobs == 100_000
    assert many.wait_p95_s < 5.1 < few.wait_p95_s
