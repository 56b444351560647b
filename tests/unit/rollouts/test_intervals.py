"""The bounds behind the gates, against published values and against chance itself."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, strategies as st

from templates.rollouts import intervals
from templates.rollouts.intervals import least_excess, least_rise, moments, percentile, wilson


@pytest.mark.parametrize(
    ("hits", "count", "base_hits", "base_count", "expected"),
    [
        (56, 70, 48, 80, 0.0524),
        (9, 10, 3, 10, 0.1705),
        (10, 10, 0, 20, 0.6791),
        (10, 10, 0, 10, 0.6075),
    ],
)
def test_newcombe_at_95_percent_is_as_published(
    monkeypatch: pytest.MonkeyPatch,
    hits: int,
    count: int,
    base_hits: int,
    base_count: int,
    expected: float,
) -> None:
    """The examples of his table II, method 10."""
    monkeypatch.setattr(intervals, "Z", 1.959964)
    assert least_rise(hits, count, base_hits, base_count) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("freedom", "expected"), [(3, 5.841), (5, 4.032), (9, 3.250), (19, 2.861), (199, 2.601)]
)
def test_student_is_as_tabled(freedom: int, expected: float) -> None:
    """To 4 %, and to 1 % where a rollout with the default limits is."""
    tolerance = 0.04 if freedom < 19 else 0.01
    assert intervals._student(freedom) == pytest.approx(expected, rel=tolerance)


def test_few_values_say_nothing_of_a_mean() -> None:
    """Three that agree may have done so by chance."""
    assert least_excess(moments([9.0] * 3), moments([1.0] * 90)) == -math.inf
    assert least_excess(moments([9.0] * 4), moments([1.0] * 90)) == 8


def test_chance_rarely_fails_an_equal_version() -> None:
    """Looked at every 10 jobs, with no rise allowed at all: under 5 of 100 rollouts."""
    rng, false_alarms = random.Random(7), 0
    for _ in range(200):
        hits, counts = [0, 0], [0, 0]
        for _ in range(60):
            for _ in range(10):
                side = rng.randrange(2)
                counts[side] += 1
                hits[side] += rng.random() < 0.05
            if min(counts) >= 20 and least_rise(hits[0], counts[0], hits[1], counts[1]) > 0:
                false_alarms += 1
                break
    assert false_alarms < 10


@given(st.integers(1, 500), st.data())
def test_wilson_holds_the_share(count: int, data: st.DataObject) -> None:
    """And stays between 0 and 1."""
    hits = data.draw(st.integers(0, count))
    low, high = wilson(hits, count)
    assert 0 <= low <= hits / count + 1e-12
    assert hits / count - 1e-12 <= high <= 1


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_a_percentile_is_one_of_the_values(values: list[float]) -> None:
    """At least 95 of 100 are no larger, and it is the smallest such."""
    ordered = sorted(values)
    p95 = percentile(ordered, 0.95)
    assert sum(value <= p95 for value in ordered) >= 0.95 * len(ordered)
    below = [value for value in ordered if value < p95]
    assert len(below) < 0.95 * len(ordered)
