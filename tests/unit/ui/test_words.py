"""Numbers as a page shows them, also such as only a hostile record has."""

from __future__ import annotations

import math

import pytest

from contract.types import Timings
from ui.waterfall import WIDTH, bars
from ui.words import (
    NONE,
    amount,
    clock,
    iso,
    moment,
    percent,
    plain_text,
    seconds,
    share,
    short_id,
    size,
    span,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, NONE),
        (0.0, "0 s"),
        (0.00034, "340 µs"),
        (0.00314, "3.14 ms"),
        (0.6851, "685 ms"),
        (0.99951, "1.00 s"),
        (12.34, "12.3 s"),
        (99.96, "1 min 40 s"),
        (-3.0, "0 s"),
        (math.nan, "0 s"),
    ],
    ids=str,
)
def test_seconds(value: float | None, shown: str) -> None:
    """Three digits that say something."""
    assert seconds(value) == shown


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e99, -1e99], ids=str)
def test_numbers_of_any_length(value: float) -> None:
    """A producer may write any time into its records; none breaks a page."""
    for function in (seconds, span, clock, moment, iso):
        assert len(function(value)) < 40
    assert len(amount(value)) < 150


def test_other_words() -> None:
    """Spans, sizes, shares and ids."""
    assert [span(59.6), span(3_725), span(90_000)] == ["1 min 0 s", "1 h 2 min", "1 d 1 h"]
    assert [size(512), size(1536), size(2**31)] == ["512 B", "1.50 KiB", "2.00 GiB"]
    assert [percent(0.5), percent(0.0001), percent(None)] == ["50 %", "0.01 %", NONE]
    assert [share(0.0004), share(0.0), share(0.6318)] == ["< 0.1 %", "0.0 %", "63.2 %"]
    assert short_id("acme.01a22ce0d927994a2739a3ce141e14ff") == "d927…14ff"


def test_long_text_is_cut() -> None:
    """A page is no place for a megabyte."""
    shown = plain_text("x" * 30_000)
    assert len(shown) < 20_100
    assert shown.endswith("10,000 more characters")


def test_bars_follow_each_other() -> None:
    """Each stage begins where the one before ended; what is left of the total is said."""
    found = bars(Timings(queue_s=1.0, prefill_s=2.0, decode_s=0.5, total_s=4.0))
    assert [bar.key for bar in found] == ["queue", "prefill", "decode", "other"]
    assert [bar.x for bar in found] == [0.0, 250.0, 750.0, 875.0]
    assert [bar.width for bar in found] == [250.0, 500.0, 125.0, 125.0]
    assert sum(bar.share for bar in found) == pytest.approx(1.0)


def test_bars_of_a_batch() -> None:
    """Stages that are more than the total fill the width all the same; the least can be seen."""
    found = bars(Timings(queue_s=3.0, fork_s=1e-6, decode_s=3.0, total_s=4.0))
    assert [bar.key for bar in found] == ["queue", "fork", "decode"]
    assert found[1].width == 2.0
    assert all(bar.x >= 0 and bar.x + bar.width <= WIDTH for bar in found)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 1e300], ids=str)
def test_bars_of_strange_timings(bad: float) -> None:
    """What is no length of time is left out."""
    assert bars(Timings(queue_s=bad, total_s=bad)) == []
    [bar] = bars(Timings(queue_s=bad, decode_s=1.0, total_s=1.0))
    assert (bar.key, bar.width) == ("decode", WIDTH)
