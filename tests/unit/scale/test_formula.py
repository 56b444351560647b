"""The number of replicas: what holds for every demand, and figures reckoned by hand."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from scale.formula import LATE_SHARE, Advice, Demand, Goal, advise

demands = st.builds(
    Demand,
    waiting=st.integers(0, 100_000),
    running=st.integers(0, 1000),
    arrivals_per_s=st.floats(0, 200),
    service_s=st.floats(0, 60) | st.none(),
    concurrency=st.floats(1, 64),
    replicas=st.integers(0, 50),
)
goals = st.builds(
    lambda wait_s, minimum, more: Goal(wait_s=wait_s, minimum=minimum, maximum=minimum + more),
    st.floats(0.01, 600),
    st.integers(0, 20),
    st.integers(1, 200),
)


def demand(**changes: object) -> Demand:
    """A hundred jobs wait, each takes a second, and a replica has four slots."""
    usual = Demand(
        waiting=100, running=4, arrivals_per_s=0.0, service_s=1.0, concurrency=4, replicas=1
    )
    return replace(usual, **changes)


def replicas(goal: Goal, **changes: object) -> int:
    return advise(demand(**changes), goal).replicas


@given(demands, goals)
def test_is_within_bounds(asked: Demand, goal: Goal) -> None:
    """Whatever the demand, and at least one where there is something to do."""
    advice = advise(asked, goal)
    assert goal.minimum <= advice.replicas <= goal.maximum
    if asked.waiting or asked.running:
        assert advice.replicas >= 1


@given(demands, goals, st.integers(1, 1000), st.floats(0, 50), st.floats(0, 10))
def test_more_to_do_needs_no_fewer(
    asked: Demand, goal: Goal, waiting: int, rate: float, seconds: float
) -> None:
    """A longer queue, more arrivals, slower jobs."""
    before = advise(asked, goal).replicas
    assert advise(replace(asked, waiting=asked.waiting + waiting), goal).replicas >= before
    assert (
        advise(replace(asked, arrivals_per_s=asked.arrivals_per_s + rate), goal).replicas >= before
    )
    if asked.service_s is not None:
        slower = replace(asked, service_s=asked.service_s + seconds)
        assert advise(slower, goal).replicas >= before


@given(demands, goals, st.integers(1, 16), st.floats(0, 100))
def test_more_slots_or_patience_need_no_more(
    asked: Demand, goal: Goal, slots: int, patience: float
) -> None:
    """Larger workers, a longer target."""
    before = advise(asked, goal).replicas
    assert advise(replace(asked, concurrency=asked.concurrency + slots), goal).replicas <= before
    assert advise(asked, replace(goal, wait_s=goal.wait_s + patience)).replicas <= before


@pytest.mark.parametrize(
    ("most", "expected"), [(None, 25), (0, 1), (3, 1), (4, 1), (10, 3), (100, 25), (10_000, 25)]
)
def test_no_more_than_may_run_at_once_fill(most: int | None, expected: int) -> None:
    """What a tenant's max_running holds back waits however many workers there are."""
    asked = demand(waiting=1000, running=2, most_running=most)
    advice = advise(asked, Goal(wait_s=10.0))
    assert (advice.replicas, advice.for_backlog) == (expected, 25)
    assert advice.because == ("backlog" if expected == 25 else "max_running")
    # It was lowered: those that run have their slots.
    assert replicas(Goal(wait_s=1.0), waiting=1000, running=40, most_running=4) == 10
    assert advise(asked, Goal(wait_s=10.0, minimum=30)).replicas == 30


@given(goals, st.floats(0, 60) | st.none(), st.integers(0, 50))
def test_nothing_to_do_is_the_minimum(goal: Goal, service_s: float | None, live: int) -> None:
    """Scale to zero where that is 0, whatever is there now."""
    idle = Demand(
        waiting=0,
        running=0,
        arrivals_per_s=0.0,
        service_s=service_s,
        concurrency=4,
        replicas=live,
    )
    assert advise(idle, goal).replicas == goal.minimum


def test_backlog_by_hand() -> None:
    """100 jobs of 1 s in 4 slots, the last one to begin within 5 s: 100 / (4 * 5) = 5."""
    assert replicas(Goal(wait_s=5)) == 5
    assert replicas(Goal(wait_s=5), waiting=101) == 6
    assert replicas(Goal(wait_s=5), service_s=0.5) == 3
    assert replicas(Goal(wait_s=5, maximum=3)) == 3
    assert replicas(Goal(wait_s=5, minimum=7, maximum=9)) == 7


def test_what_decides_is_said() -> None:
    """One word for it."""

    def because(goal: Goal, **changes: object) -> str:
        return advise(demand(**changes), goal).because

    assert because(Goal(wait_s=5)) == "backlog"
    assert because(Goal(wait_s=5), waiting=0, arrivals_per_s=40.0) == "arrivals"
    assert because(Goal(wait_s=5), waiting=0) == "running"
    assert because(Goal(wait_s=5), waiting=0, running=0) == "idle"
    assert because(Goal(wait_s=5), service_s=None) == "service_time_unknown"
    assert because(Goal(wait_s=5, minimum=9)) == "min"
    assert because(Goal(wait_s=5, maximum=2)) == "max"


def test_no_slot_is_planned_to_be_busier_than_nine_tenths() -> None:
    """36 jobs a second of 1 s: 36 slots are busy, 40 are needed however long the target."""
    assert replicas(Goal(wait_s=3600), waiting=0, arrivals_per_s=36.0) == 10
    assert replicas(Goal(wait_s=3600), waiting=0, arrivals_per_s=36.1) == 11


def test_without_a_service_time_what_is_there_stays() -> None:
    """At least one worker, so that there will be one; none for nothing."""
    assert replicas(Goal(wait_s=5), service_s=None, replicas=3) == 3
    assert replicas(Goal(wait_s=5), service_s=None, replicas=0) == 1
    assert replicas(Goal(wait_s=5), service_s=None, replicas=3, waiting=0, running=0) == 0


def _late(rate: float, service_s: float, servers: int, wait_s: float) -> float:
    """The share of jobs that wait longer in an M/M/c queue, by drawing 60,000 of them."""
    draw = random.Random(7)
    free = [0.0] * servers
    now, late, count = 0.0, 0, 60_000
    for _ in range(count):
        now += draw.expovariate(rate)
        first = min(range(servers), key=free.__getitem__)
        begins = max(now, free[first])
        late += begins - now > wait_s
        free[first] = begins + draw.expovariate(1 / service_s)
    return late / count


@pytest.mark.parametrize(
    ("rate", "service_s", "slots", "wait_s"),
    [(3.0, 1.0, 1, 0.2), (2.0, 2.0, 2, 1.0), (0.5, 1.0, 1, 0.1), (5.0, 1.0, 4, 0.05)],
)
def test_target_is_held_in_a_drawn_queue(
    rate: float, service_s: float, slots: int, wait_s: float
) -> None:
    """With the advised replicas few wait longer than the target; with one fewer, more do."""
    advice: Advice = advise(
        demand(waiting=0, running=0, arrivals_per_s=rate, service_s=service_s, concurrency=slots),
        Goal(wait_s=wait_s),
    )
    share = _late(rate, service_s, advice.replicas * slots, wait_s)
    assert share <= LATE_SHARE * 1.2
    fewer = (advice.replicas - 1) * slots
    stable = math.floor(rate * service_s) < fewer
    assert not stable or _late(rate, service_s, fewer, wait_s) > LATE_SHARE
