"""The page: well-formed, alone in the world, and deaf to what names say."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from report.charts import PlotsMissing, check_plots, draw_all
from report.page import amount, make_page, money, seconds, span
from tests.support.job_lines import at, job_line
from tests.unit.report.conftest import Report

VOID = {"meta", "br", "link", "img", "hr", "input"}
EVIL = "<script>alert(1)</script>&\"'{{ 7*7 }}$x_1$"
CHARTS = {"latency", "stages", "tokens", "cost", "batch_sizes", "throughput", "p95"}


class _Checker(HTMLParser):
    """Every element is closed in order; what could load or run something is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []
        self.ids: Counter[str] = Counter()
        self.references: set[str] = set()
        self.tags: Counter[str] = Counter()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids[value or ""] += 1
            self.references |= set(re.findall(r"url\(#([^)]*)\)", value or ""))
            if name in ("href", "xlink:href"):
                self.references.add((value or "").removeprefix("#"))
            if name.startswith("on") or name in ("src", "srcset", "action", "formaction"):
                self.faults.append(f"{tag} {name}")
            if name.endswith("href") and not (value or "").startswith("#"):
                self.faults.append(f"{tag} {name}={value}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _checked(page: str) -> _Checker:
    checker = _Checker()
    checker.feed(page)
    checker.close()
    assert not checker.open
    assert checker.faults == []
    assert max(checker.ids.values(), default=1) == 1, checker.ids.most_common(3)
    assert checker.references <= set(checker.ids)
    assert not {"script", "iframe", "object", "embed", "img", "link", "base"} & set(checker.tags)
    return checker


@pytest.fixture
def data(report_of: Report) -> dict[str, Any]:
    lines = [
        job_line(timestamp=at(n), template=f"t{n % 3}", total_s=1.0 + n, batch_size=n % 5 + 1)
        for n in range(30)
    ]
    failed = job_line(status="failed", error="nan", attempt=3)
    return report_of(*lines, failed, price=2.5)


def test_page_is_whole_and_alone(data: dict[str, Any]) -> None:
    """Closed elements, single ids, no scripts, nothing from elsewhere; and it tells browsers so."""
    page = make_page(data)
    checker = _checked(page)
    assert page.isascii()
    assert checker.tags["svg"] == len(CHARTS)
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_page_shows_the_numbers(data: dict[str, Any]) -> None:
    """Those of `--json`, with their units."""
    text = " ".join("".join(_checked(make_page(data)).text).split())
    assert "jobs31 succeeded30 failed1" in text
    assert "acme/t2@1total1016.5 s" in text  # 10 jobs, of 3, 6, 9 ... 30 s
    assert f"Estimate, {data['saved']['formula']}" in text
    assert "nan1" in text
    assert "per 1,000 jobs" in text


@pytest.mark.parametrize(
    "field", ["tenant", "template", "model", "worker", "device", "error", "cache_reason"]
)
def test_names_are_text(report_of: Report, field: str) -> None:
    """HTML, Jinja and mathematics in a name are letters, in tables and in pictures."""
    lines = [
        job_line(**{"timestamp": at(n), "status": status, "cache_state": "miss", field: EVIL})
        for n, status in enumerate(["succeeded", "failed"])
    ]
    page = make_page(report_of(*lines))
    checker = _checked(page)
    text = "".join(checker.text)
    assert "<script" not in page
    assert "{{ 7*7 }}" in text
    assert "$x_1$" in text


def test_names_of_files_and_filters_are_text(data: dict[str, Any]) -> None:
    """Also what the caller gave."""
    data["input"] |= {"files": [EVIL], "template": EVIL, "tenant": EVIL, "broken": [EVIL]}
    page = make_page(data)
    assert "<script" not in page
    assert "".join(_checked(page).text).count("alert(1)") >= 4


@pytest.mark.parametrize(
    "lines",
    [
        [job_line()],
        [job_line(leave_out=["timestamp"])],
        [b'{"event":"job_finished","tenant":"a","template":"b","version":1,"status":"failed"}'],
        [job_line(**dict.fromkeys(("total_s", "ttft_s", "decode_s"), 0.0), prompt_tokens=0)],
        [job_line(total_s=3e7, decode_s=3e7), job_line(total_s=1e-6, timestamp=at(-3e8))],
        [job_line(template="数据" * 30), job_line(template="x" * 80)],
        [job_line(batch_size=n + 1, version=n, template="many") for n in range(300)],
    ],
    ids=["one", "no time", "nothing", "zeros", "extremes", "long names", "many"],
)
def test_odd_logs_have_pages(report_of: Report, lines: list[bytes]) -> None:
    """Whatever is missing or too large; matplotlib warns of nothing (warnings are errors)."""
    _checked(make_page(report_of(*lines)))


def test_pictures_follow_the_page(data: dict[str, Any]) -> None:
    """Their colours are the page's variables, their text is text, they scale."""
    charts = draw_all(data)
    assert set(charts) == CHARTS
    for name, svg in charts.items():
        root = ET.fromstring(svg)  # noqa: S314 - our own
        assert "width" not in root.attrib
        assert root.get("aria-labelledby") == f"{name}-title"
        assert "var(--ink)" in svg
        assert "var(--c0)" in svg
        assert not re.search(r"#0[0-3]0[0-3][0-9a-f]{2}\b", svg)
        assert "<metadata" not in svg
        assert "<style" not in svg
    assert "acme/t0@1" in charts["latency"]


def test_page_is_the_same_each_time(data: dict[str, Any]) -> None:
    """So that two reports can be compared."""
    assert make_page(data) == make_page(data)


def test_own_style_is_left_alone(data: dict[str, Any]) -> None:
    """Matplotlib's settings of whoever calls are as before."""
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 33}):
        before = make_page(data)
        assert mpl.rcParams["font.size"] == 33
    assert make_page(data) == before


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a million lines are read."""
    monkeypatch.setattr("report.charts.find_spec", lambda _name: None)
    with pytest.raises(PlotsMissing, match=r"pip install 'prefillq\[report\]'"):
        check_plots()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.000114, "0.11 ms"),
        (0.0995, "99.5 ms"),
        (0.547112, "547 ms"),
        (0.9996, "1.00 s"),
        (9.996, "10.0 s"),
        (99.96, "100 s"),
        (4210.4, "4,210 s"),
        (-0.25, "-250 ms"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    """Three digits that say something."""
    assert seconds(value) == text


def test_other_formats() -> None:
    """Spans, amounts and money."""
    assert [span(s) for s in (48.2, 59.7, 723.0, 7530.0, 273_600.0)] == [
        "48.2 s",
        "1 min 0 s",
        "12 min 3 s",
        "2 h 5 min",
        "3 d 4 h",
    ]
    assert [amount(a) for a in (None, 1234, 0.351, 12.34, 2.0, 1234.5)] == [
        "-",
        "1,234",
        "0.351",
        "12.3",
        "2",
        "1,234",
    ]
    assert [money(m) for m in (None, 0.0, 1234.5, 0.1, 0.01234, 0.0000123)] == [
        "-",
        "0.00",
        "1,234.50",
        "0.10",
        "0.0123",
        "0.000012",
    ]
