"""Percentiles: exact for few values, within the stated error for many, the same in any order."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, strategies as st

from report.distribution import EXACT_UP_TO, RELATIVE_ERROR, Distribution

VALUES = st.floats(min_value=0, max_value=3e7, allow_nan=False)


def _of(values: list[float], **options: int) -> Distribution:
    made = Distribution(**options)
    for value in values:
        made.add(value)
    return made


def _exact(values: list[float], percent: float) -> float:
    return sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]


def test_few_values_are_exact() -> None:
    """1 to 100: the 95th percentile is 95, as counted by hand."""
    values = _of([float(n) for n in range(1, 101)])
    assert [values.percentile(p) for p in (50, 90, 95, 99, 100)] == [50, 90, 95, 99, 100]
    assert (values.count, values.mean, values.largest, values.exact) == (100, 50.5, 100, True)


def test_no_values_have_no_percentiles() -> None:
    """Not 0, which would be a very good latency."""
    assert Distribution().percentile(50) is None
    assert Distribution().mean is None


def test_one_value_is_all_percentiles() -> None:
    """Of one job."""
    assert {_of([0.7]).percentile(p) for p in (1, 50, 99, 100)} == {0.7}


@given(st.lists(VALUES, min_size=1), st.sampled_from([1, 50, 90, 95, 99, 100]))
def test_counted_values_are_within_the_error(values: list[float], percent: float) -> None:
    """Of any values, from 0 to a year."""
    found = _of(values, exact_up_to=0).percentile(percent)
    assert found == pytest.approx(_exact(values, percent), rel=RELATIVE_ERROR * 1.0001, abs=1e-9)


def test_many_values_of_a_run_are_within_the_error() -> None:
    """Where values are near each other an error would show."""
    rng = random.Random(1)
    values = [rng.lognormvariate(0, 1) for _ in range(20 * EXACT_UP_TO)]
    counted = _of(values)
    assert not counted.exact
    for percent in (50, 90, 95, 99):
        assert counted.percentile(percent) == pytest.approx(
            _exact(values, percent), rel=RELATIVE_ERROR
        )
    assert counted.percentile(100) == counted.largest == max(values)


@given(st.lists(VALUES, max_size=30), st.lists(VALUES, max_size=30), st.integers(0, 40))
def test_merged_is_as_counted_together(
    one: list[float], other: list[float], exact_up_to: int
) -> None:
    """Whichever of the two still has its values."""
    merged = _of(one, exact_up_to=exact_up_to)
    merged.merge(_of(other, exact_up_to=exact_up_to))
    together = _of(one + other, exact_up_to=exact_up_to)
    assert merged.count == together.count
    for percent in (1, 50, 95, 100):
        assert merged.percentile(percent) == together.percentile(percent)


def test_memory_is_bounded() -> None:
    """Values of all sizes take no more buckets than said."""
    values = Distribution()
    for n in range(100_000):
        values.add(3e7 * 0.9997**n)
    assert len(values._buckets) < 3_900
