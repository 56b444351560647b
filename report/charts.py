"""The pictures of a report, drawn by matplotlib as SVG that lives inside a page.

A page has its own fonts and two palettes, and a picture in it must follow: so colours are drawn as
stand-ins, which become CSS variables, text stays text, and no id occurs twice in a page.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from contract.console import one_line
from contract.errors import PrefillqError
from report.lines import STAGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN_VERSIONS = 12  # rows of a picture; tables have all
_WIDTH_IN = 4.4  # 317 points: about as wide as a phone, where one point is then one pixel
_ROW_IN = 0.3
_NAME_CHARS = 30
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"

# Stand-ins and what they become. Black would be left out as SVG's default.
_INK, _FAINT = "#010101", "#020202"
_SERIES = tuple(f"#0300{n:02x}" for n in range(9))
_VARIABLES = {
    _INK: "var(--ink)",
    _FAINT: "var(--line)",
    **{colour: f"var(--c{n})" for n, colour in enumerate(_SERIES)},
}
_STAND_IN = re.compile("|".join(_VARIABLES))
STAGE_NAMES = (*(name.removesuffix("_s").replace("_", " ") for name in STAGES), "other")


class PlotsMissing(PrefillqError):
    """The plotting library is not installed."""

    code = "missing_extra"


def check_plots() -> None:
    """Raises PlotsMissing where no picture can be drawn. Loads nothing."""
    if find_spec("matplotlib") is None:
        raise PlotsMissing(
            "the page needs a library that is not installed",
            given="no module named matplotlib",
            remedy="Run: pip install 'prefillq[report]'; --json needs no library.",
        )


def draw_all(data: dict[str, Any]) -> dict[str, str]:
    """SVG by name, of what there is data for."""
    drawings: dict[str, Callable[[dict[str, Any]], Figure | None]] = {
        "latency": _latency,
        "stages": _stages,
        "tokens": _tokens,
        "cost": _cost,
        "batch_sizes": _batch_sizes,
        "throughput": _throughput,
        "p95": _p95,
    }
    with _style(), warnings.catch_warnings():
        # Whoever opens the page has the letters that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
        figures = {name: draw(data) for name, draw in drawings.items()}
        return {
            name: _inline(figure, name) for name, figure in figures.items() if figure is not None
        }


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the user's own matplotlibrc says
        mpl.rcParams.update(
            {
                "axes.axisbelow": True,
                "axes.edgecolor": _FAINT,
                "axes.grid": True,
                "axes.labelcolor": _INK,
                "axes.prop_cycle": f"cycler(color={list(_SERIES)})",
                "axes.spines.right": False,
                "axes.spines.top": False,
                "figure.constrained_layout.use": True,
                "font.size": 9,
                "grid.color": _FAINT,
                "grid.linewidth": 0.6,
                "legend.fontsize": 8,
                "legend.frameon": False,
                "legend.labelcolor": _INK,
                "svg.fonttype": "none",
                "svg.hashsalt": "prefillq",
                "text.color": _INK,
                "text.parse_math": False,  # a dollar in a name is a dollar
                "xtick.color": _FAINT,
                "xtick.labelcolor": _INK,
                "ytick.color": _FAINT,
                "ytick.labelcolor": _INK,
            }
        )
        yield


def _figure(height_in: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, height_in))
    axes = figure.subplots()
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    return figure, axes


def _rows(names: Sequence[str], *, legend_rows: int = 0) -> tuple[Figure, Axes]:
    """A figure for horizontal bars, the first name on top."""
    figure, axes = _figure(0.7 + 0.2 * legend_rows + _ROW_IN * len(names))
    axes.set_yticks(range(len(names)), [one_line(name, limit=_NAME_CHARS) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    return figure, axes


def _latency(data: dict[str, Any]) -> Figure | None:
    rows = [{"version": "all", **data["latency"]["all"]}, *data["latency"]["versions"]]
    rows = [row for row in rows if row["total_s"]["p99"]][: SHOWN_VERSIONS + 1]
    if not rows:
        return None
    figure, axes = _rows([row["version"] for row in rows], legend_rows=1)
    places = range(len(rows))
    low, high = ([row["total_s"][name] for row in rows] for name in ("p50", "p99"))
    axes.hlines(places, low, high, color=_FAINT, linewidth=3)
    for name, colour in zip(("p50", "p90", "p95", "p99"), _SERIES, strict=False):
        values = [row["total_s"][name] for row in rows]
        axes.plot(values, places, "o", markersize=5, color=colour, label=name)
    if min(low) > 0 and max(high) > 20 * min(low):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_xlim(left=0)
    axes.set_xlabel("seconds from submit to end")
    figure.legend(loc="outside upper center", ncols=4)
    return figure


def _stages(data: dict[str, Any]) -> Figure | None:
    rows = [row for row in data["stages"]["versions"] if row["jobs"]][:SHOWN_VERSIONS]
    if not rows:
        return None
    names = [row["version"] for row in rows]
    stages = [*STAGES, "other_s"]
    layers = [[row[stage] for row in rows] for stage in stages]
    return _stacked(names, layers, STAGE_NAMES, label="mean seconds per job", legend_rows=3)


def _tokens(data: dict[str, Any]) -> Figure | None:
    rows = data["tokens"]["versions"][:SHOWN_VERSIONS]
    if not any(row["prompt_tokens"] + row["completion_tokens"] for row in rows):
        return None
    layers = [
        [row["cached_tokens"] for row in rows],
        [row["prompt_tokens"] - row["cached_tokens"] for row in rows],
        [row["completion_tokens"] for row in rows],
    ]
    kinds = ("prompt, from the cache", "prompt, computed", "completion")
    names = [row["version"] for row in rows]
    return _stacked(names, layers, kinds, label="tokens", legend_rows=2)


def _stacked(
    names: Sequence[str],
    layers: Sequence[Sequence[float]],
    kinds: Sequence[str],
    *,
    label: str,
    legend_rows: int,
) -> Figure:
    figure, axes = _rows(names, legend_rows=legend_rows)
    left = [0.0] * len(names)
    for kind, layer, colour in zip(kinds, layers, _SERIES, strict=False):
        axes.barh(range(len(names)), layer, left=left, height=0.7, color=colour, label=kind)
        left = [before + value for before, value in zip(left, layer, strict=True)]
    _plain_numbers(axes.xaxis)
    axes.set_xlabel(label)
    figure.legend(loc="outside upper center", ncols=2 if legend_rows == 2 else 3)
    return figure


def _cost(data: dict[str, Any]) -> Figure | None:
    rows = [row for row in data["cost"]["templates"] if row["device_s"]][:SHOWN_VERSIONS]
    if not rows:
        return None
    figure, axes = _rows([row["template"] for row in rows])
    axes.barh(range(len(rows)), [row["device_s"] for row in rows], height=0.7)
    _plain_numbers(axes.xaxis)
    axes.set_xlabel("device seconds (estimate)")
    return figure


def _batch_sizes(data: dict[str, Any]) -> Figure | None:
    sizes = [(int(size), n) for size, n in data["batch_sizes"].items() if size.isdecimal()]
    if not sizes:
        return None
    figure, axes = _figure(2.0)
    axes.bar(range(len(sizes)), [n for _, n in sizes], width=0.8)
    every = max(1, len(sizes) // 12)
    axes.set_xticks(range(0, len(sizes), every), [str(size) for size, _ in sizes[::every]])
    axes.grid(visible=False, axis="x")
    _plain_numbers(axes.yaxis)
    axes.set_xlabel("most jobs that shared a step")
    axes.set_ylabel("jobs")
    return figure


def _throughput(data: dict[str, Any]) -> Figure | None:
    return _timed(data, "jobs_per_s", "jobs per second", bars=True)


def _p95(data: dict[str, Any]) -> Figure | None:
    return _timed(data, "p95_total_s", "p95, seconds", bars=False)


def _timed(data: dict[str, Any], field: str, label: str, *, bars: bool) -> Figure | None:
    import matplotlib.dates

    dates: Any = matplotlib.dates  # its functions have no types
    spans = data["over_time"]["spans"]
    width_s = data["over_time"]["width_s"]
    points = [
        (datetime.fromisoformat(span["begin"]), span[field])
        for span in spans
        if span[field] is not None
    ]
    if not points:
        return None
    figure, axes = _figure(2.0)
    # As numbers, in days: what dates are inside matplotlib, without its converters' surprises.
    begins = dates.date2num([begin for begin, _ in points])
    values = [value for _, value in points]
    width = width_s / 86_400
    if bars:
        axes.bar(begins, values, width=width, align="edge")
    else:
        axes.plot(begins + width / 2, values, "o-", markersize=2.5, linewidth=1)
    first = dates.date2num(datetime.fromisoformat(spans[0]["begin"]))
    axes.set_xlim(first, first + width * len(spans))
    axes.set_ylim(bottom=0)
    locator = dates.AutoDateLocator(tz=UTC, minticks=3, maxticks=6)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC, show_offset=True))
    _plain_numbers(axes.yaxis)
    axes.set_ylabel(label)
    axes.set_xlabel(f"UTC, in spans of {width_s} s")
    return figure


def _plain_numbers(axis: Any) -> None:
    axis.set_major_formatter(lambda value, _: _short(value))
    axis.get_major_locator().set_params(nbins=6)


def _short(value: float) -> str:
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def _inline(figure: Figure, name: str) -> str:
    """The figure as one `<svg>` element for a page: no document type, own ids, our colours."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None}, transparent=True)
    root = ET.fromstring(drawn.getvalue())  # noqa: S314 - matplotlib wrote it just now
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style") or (
                child.tag == f"{{{_SVG}}}defs" and len(child) and child[0].tag == f"{{{_SVG}}}style"
            ):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
        for key, value in list(element.attrib.items()):
            del element.attrib[key]
            element.set(key.removeprefix(f"{{{_XLINK}}}"), _own(key, value, name))
    for size in ("width", "height"):
        root.attrib.pop(size, None)  # the page decides
    root.set("class", "chart")
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title")
    return ET.tostring(root, encoding="unicode")


def _own(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key.endswith("href"):
        return value.replace("#", f"#{name}-", 1)
    value = value.replace("url(#", f"url(#{name}-")
    return _STAND_IN.sub(lambda found: _VARIABLES[found.group()], value)
