"""Spans of time: bounded in number whatever the times, and nothing lost when they widen."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from report.timeline import MAX_BUCKETS, WIDTHS_S, Timeline

MOMENTS = st.lists(st.floats(min_value=0, max_value=4.1e9), min_size=1, max_size=60)


def test_a_minute_has_spans_of_a_second() -> None:
    """And those between without a job are there too."""
    line = Timeline()
    for moment in (100.2, 103.9, 103.1):
        line.at(moment).jobs += 1
    assert line.width_s == 1
    assert [(begin, bucket.jobs) for begin, bucket in line] == [
        (100.0, 1),
        (101.0, 0),
        (102.0, 0),
        (103.0, 2),
    ]


def test_ten_minutes_have_wider_ones() -> None:
    """600 seconds do not fit in 120 spans of one or exactly of five."""
    line = Timeline()
    for second in range(601):
        line.at(1000.0 + second).jobs += 1
    assert line.width_s == 15
    assert sum(bucket.jobs for _, bucket in line) == 601
    assert next(iter(line))[0] == 990.0


@given(MOMENTS)
def test_any_moments_fit(moments: list[float]) -> None:
    """From 1970 to 2100, in any order."""
    line = Timeline()
    for moment in moments:
        bucket = line.at(moment)
        bucket.jobs += 1
        bucket.total_s.add(1.0)
    spans = list(line)
    assert len(spans) <= MAX_BUCKETS
    assert sum(bucket.jobs for _, bucket in spans) == len(moments)
    assert sum(bucket.total_s.count for _, bucket in spans) == len(moments)
    assert spans[0][0] <= min(moments)
    assert max(moments) < spans[-1][0] + line.width_s


def test_each_width_holds_the_one_before() -> None:
    """Else a bucket would have to be cut when they widen."""
    assert not any(wide % narrow for narrow, wide in pairwise(WIDTHS_S))
