"""Numbers, times and sizes as a page shows them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from contract.canonical import canonical_json
from contract.settings import GIB, KIB, MIB
from templates.rollouts.rollout import Rollout

NONE = "–"  # noqa: RUF001 - a dash, for what there is none of
_SHOWN_CHARS = 20_000
_LONG_S = 1e10  # whoever writes records may write any number
_END_OF_TIME = 253_402_300_800.0  # the year 10000


def amount(value: float | None) -> str:
    """`1,234`, `0.35`, `12.3`."""
    if value is None or not isfinite(value):
        return NONE
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def seconds(value: float | None) -> str:
    """`340 µs`, `3.14 ms`, `685 ms`, `2.70 s`, `12.3 s`, `2 min 5 s`."""
    if value is None:
        return NONE
    value = min(max(0.0, value), _LONG_S)
    if value == 0:
        return "0 s"
    if value < 0.0009995:
        return f"{value * 1e6:.0f} µs"
    if value < 0.9995:
        return f"{_three(value * 1000)} ms"
    return f"{_three(value)} s" if value < 99.95 else span(value)


def span(value: float | None) -> str:
    """`48 s`, `12 min 3 s`, `2 h 5 min`, `3 d 4 h`; whole seconds."""
    if value is None:
        return NONE
    whole = round(min(max(0.0, value), _LONG_S))
    for unit, size, smaller, part in (
        ("d", 86_400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= size:
            return f"{whole // size:,} {unit} {whole % size // part} {smaller}"
    return f"{whole} s"


def _three(value: float) -> str:
    digits = next((n for n, limit in ((2, 9.995), (1, 99.95)) if value < limit), 0)
    return f"{value:.{digits}f}"


def size(value: float | None) -> str:
    """`512 B`, `1.5 KiB`, `88.2 MiB`, `2.00 GiB`."""
    if value is None:
        return NONE
    for unit, of in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if value >= of:
            return f"{_three(value / of)} {unit}"
    return f"{value:.0f} B"


def percent(value: float | None) -> str:
    """`85.3 %`, `50 %`, of a share from 0 to 1."""
    return NONE if value is None else f"{100 * value:.3g} %"


def share(value: float) -> str:
    """As `percent`, with one digit after the point at most: of what is compared by eye."""
    return "< 0.1 %" if 0 < value < 0.001 else f"{100 * value:.1f} %"


def clock(at: float | None) -> str:
    """`14:03:22`, UTC."""
    return NONE if at is None else _time(at).strftime("%H:%M:%S")


def moment(at: float | None) -> str:
    """`2026-11-30 14:03:22`, UTC."""
    return NONE if at is None else _time(at).strftime("%Y-%m-%d %H:%M:%S")


def iso(at: float) -> str:
    """For `<time datetime>`."""
    return _time(at).isoformat(timespec="seconds")


def _time(at: float) -> datetime:
    # Times of records are written by producers, who may write any number.
    return datetime.fromtimestamp(min(max(0.0, at), _END_OF_TIME - 1), UTC)


def short_id(job_id: str) -> str:
    """The part of a job's id that tells it from others on one page."""
    return f"{job_id.rpartition('.')[2][8:12]}…{job_id[-4:]}"


def plain_text(value: str) -> str:
    """An answer, cut to what a page bears."""
    if len(value) <= _SHOWN_CHARS:
        return value
    return f"{value[:_SHOWN_CHARS]}\n… {len(value) - _SHOWN_CHARS:,} more characters"


def variable(value: Any) -> str:
    """A variable: text as it is, all else as JSON."""
    return plain_text(value if isinstance(value, str) else canonical_json(value))


def place_of(rollout: Rollout) -> str:
    """`step 2 of 4`, `before the first step`."""
    if rollout.step < 0:
        return "before the first step"
    return f"step {rollout.step + 1} of {len(rollout.plan.steps)}"


FILTERS: Mapping[str, Any] = {
    function.__name__: function
    for function in (
        *(amount, seconds, span, size, percent, share, clock, moment, iso, short_id),
        *(plain_text, variable, place_of),
    )
}
