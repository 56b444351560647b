"""The numbers of `report.summary` and the pictures of `report.charts` as one HTML page."""

from __future__ import annotations

from datetime import datetime
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from report.charts import STAGE_NAMES, draw_all
from report.lines import STAGES
from report.remarks import remarks

_NONE = "-"


def make_page(data: dict[str, Any]) -> str:
    """ASCII, whatever is in the names, so that no encoding on its way can harm it."""
    environment = Environment(
        autoescape=True,  # names come out of a log, and whoever writes there wants a script to run
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "amount": amount,
        "money": money,
        "moment": moment,
        "percent": percent,
        "seconds": seconds,
        "span": span,
    }
    template = environment.from_string((resources.files("report") / "page.html").read_text("utf-8"))
    text = template.render(
        **data,
        remarks=remarks(data),
        charts={name: Markup(svg) for name, svg in draw_all(data).items()},  # noqa: S704 - escaped by its XML writer
        stage_columns=list(zip((*STAGES, "other_s"), STAGE_NAMES, strict=True)),
    )
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def seconds(value: float | None) -> str:
    """`3.14 ms`, `685 ms`, `2.70 s`, `12.3 s`, `4,210 s`."""
    if value is None:
        return _NONE
    if abs(value) < 0.9995:
        return f"{_three(value * 1000)} ms" if value else "0"
    return f"{_three(value)} s"


def _three(value: float) -> str:
    """Three digits that say something, and no exponent."""
    digits = next((n for n, limit in ((2, 9.995), (1, 99.95)) if abs(value) < limit), 0)
    return f"{value:,.{digits}f}"


def span(value: float) -> str:
    """`48 s`, `12 min 3 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = round(value)
    for unit, size, smaller, part in (
        ("d", 86_400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= size:
            return f"{whole // size:,} {unit} {whole % size // part} {smaller}"
    return seconds(value)


def amount(value: float | None) -> str:
    """`1,234`, `0.35`, `12.3`."""
    if value is None:
        return _NONE
    if isinstance(value, int) or value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def money(value: float | None) -> str:
    """At least two digits after the point, and three that say something."""
    if value is None:
        return _NONE
    if abs(value) >= 0.1 or value == 0:
        return f"{value:,.2f}"
    return f"{value:.3g}" if abs(value) >= 0.0001 else f"{value:.6f}"


def percent(value: float | None) -> str:
    """`85.3 %`."""
    return _NONE if value is None else f"{value * 100:.1f} %"


def moment(value: str | None) -> str:
    """`2026-11-30 01:59:58` UTC."""
    if value is None:
        return _NONE
    return datetime.fromisoformat(value).strftime("%Y-%m-%d %H:%M:%S")
