"""Pages as HTML: what tenants write stays text, whatever page it is on."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from unittest.mock import Mock

import pytest

from contract.errors import PrefillqError
from contract.job_store import JobView, TenantLimits
from contract.settings import Settings
from contract.types import CacheInfo, CacheState, Job, JobError, JobState, Result, VersionRef
from templates.rollouts.journal import Entry
from templates.rollouts.moves import TemplateState
from templates.rollouts.outcomes import Summary, VersionOutcomes
from templates.rollouts.rollout import Finding, Outcome
from tests.support.page_data import PageData, worker_report
from tests.support.rollouts import make_plan, make_rollout
from ui.app import PLACES, Pages
from ui.look import (
    JobRow,
    JobSight,
    Look,
    QueueRow,
    RolloutRow,
    TemplateSight,
    TenantRow,
)
from ui.scope import Scope
from ui.views import STATES, Shown, not_found
from ui.waterfall import WIDTH, bars

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>\" onfocus='alert(2)"
ID = "acme." + "0" * 32
AT = 1_790_000_000.0
REF = VersionRef(tenant=HOSTILE, template=HOSTILE, version=1, digest="0" * 64)


def _row(**more: Any) -> JobRow:
    given: dict[str, Any] = {
        "id": HOSTILE,
        "tenant": HOSTILE,
        "template": HOSTILE,
        "version": 1,
        "state": JobState.FAILED,
        "attempt": 1,
        "worker": HOSTILE,
        "created_at": AT - 5,
        "ended_at": AT,
        "dead": False,
    }
    return JobRow(**{**given, **more})


def _look() -> Look:
    report = worker_report(HOSTILE)
    version = {**report["versions"][0], "version": HOSTILE, "parity": HOSTILE}
    names = ("id", "model", "device", "dtype", "engine")
    rollout = make_rollout(plan=make_plan(label=HOSTILE))
    return Look(
        at=AT,
        tenants=(
            TenantRow(
                name=HOSTILE, templates=1, waiting=1, running=1, dead=1, limits=TenantLimits()
            ),
        ),
        queues=(
            QueueRow(tenant=HOSTILE, template=HOSTILE, waiting=1, oldest_at=AT - 60, running=1),
        ),
        workers=(
            {
                **report,
                **dict.fromkeys(names, HOSTILE),
                "versions": [version],
                "admission": {
                    **report["admission"],
                    "refused": [{"way": HOSTILE, "reason": HOSTILE}],
                },
            },
        ),
        strange_workers=(HOSTILE,),
        running=(_row(state=JobState.RUNNING, ended_at=None),),
        waiting=(_row(state=JobState.QUEUED, ended_at=None),),
        dead=(_row(dead=True),),
        ended=(_row(),),
        rollouts=(RolloutRow(tenant=HOSTILE, template=HOSTILE, rollout=rollout),),
        left_out=(HOSTILE,),
    )


def _job(*, with_text: bool) -> Shown:
    job = Job(
        id=ID,
        ref=REF,
        variables={HOSTILE: HOSTILE, "list": [HOSTILE]},
        created_at=AT - 5,
        deadline_at=AT + 5,
        attempt=1,
        rollout=HOSTILE,
    )
    data = PageData(Mock(), Settings())
    result = data.result(job, error=JobError(code=HOSTILE, message=HOSTILE, remedy=HOSTILE))
    result = _with_text(result)
    view = JobView(
        job=job,
        state=JobState.FAILED,
        worker=HOSTILE,
        finished_at=AT,
        result=result,
        cancel_requested=False,
    )
    return Shown(
        template="job.html",
        title=HOSTILE,
        words={
            "at": AT,
            "sight": JobSight(at=AT, view=view, with_text=with_text),
            "job": job,
            "view": view,
            "result": result,
            "bars": bars(result.timings),
            "bar_width": WIDTH,
        },
    )


def _with_text(result: Result) -> Result:
    plain = {name: getattr(result, name) for name in Result.__slots__}
    cache = CacheInfo(state=CacheState.MISS, reason=HOSTILE)
    return Result(**{**plain, "text": HOSTILE, "model": HOSTILE, "device": HOSTILE, "cache": cache})


def _template() -> Shown:
    finding = Finding(gate=HOSTILE, outcome=Outcome.FAIL, message=HOSTILE)
    rollout = make_rollout(findings=(finding,), plan=make_plan(label=HOSTILE))
    summary = Summary(
        jobs=1,
        failed=0,
        failure_rate=0.0,
        fallback_rate=0.5,
        p50_s=1.0,
        p95_s=2.0,
        mean_tokens=4.0,
        scores={HOSTILE: (1, 0.5)},
    )
    outcomes = VersionOutcomes(role="stable", version=1, digest="0" * 64, summary=summary)
    entry = Entry(
        id=HOSTILE,
        at=AT,
        revision=1,
        who=HOSTILE,
        action=HOSTILE,
        was=HOSTILE,
        now=HOSTILE,
        why=HOSTILE,
        change={},
    )
    state = TemplateState(
        versions=frozenset({1, 2}), labels={HOSTILE: 1}, retired=frozenset({1}), rollout=rollout
    )
    sight = TemplateSight(
        at=AT,
        tenant=HOSTILE,
        name=HOSTILE,
        state=state,
        damage=HOSTILE,
        outcomes=(outcomes,),
        journal=(entry,),
    )
    words = {"at": AT, "sight": sight, "rollout": rollout}
    return Shown(template="template.html", title=HOSTILE, words=words)


def _all() -> dict[str, Shown]:
    look = _look()
    base = {"at": AT, "look": look}
    filters = {"tenant": HOSTILE, "template": HOSTILE, "state": HOSTILE, "templates": [HOSTILE]}
    lists = dict(zip(("running", "waiting", "ended", "dead"), [[_row()]] * 4, strict=True))
    error = PrefillqError(HOSTILE, given=HOSTILE, remedy=HOSTILE)
    return {
        "overview": Shown(
            template="overview.html",
            title="",
            words={**base, "busy": look.queues, "busy_left": 1, "latest": look.ended},
        ),
        **{
            name: Shown(template=f"{name}.html", title=HOSTILE, words=base)
            for name in ("queues", "rollouts", "tenants")
        },
        "workers": Shown(
            template="workers.html",
            title=HOSTILE,
            words={**base, "held": [worker["versions"] for worker in look.workers or ()]},
        ),
        "jobs": Shown(
            template="jobs.html",
            title="",
            words={**base, **filters, "lists": lists, "limit": 200, "states": STATES},
        ),
        "job": _job(with_text=True),
        "template": _template(),
        "trouble": Shown(template="trouble.html", title=HOSTILE, words={"error": error}),
        "not_found": not_found(),
    }


PAGES = _all()


def _render(shown: Shown, *, path: str = "/", show_text: bool = True) -> str:
    pages = Pages(Mock(scope=Scope()), show_text=show_text)
    return pages.render(shown, path=path, query="", live=True)


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def _elements(html: str) -> _Elements:
    parser = _Elements()
    parser.feed(html)
    return parser


@pytest.mark.parametrize("name", sorted(PAGES))
def test_hostile_text_stays_text(name: str) -> None:
    """No element and no attribute comes out of what a tenant wrote, wherever it is shown."""
    found = _elements(_render(PAGES[name]))
    assert found.tags.count("script") == 1  # our own, by its address
    assert "img" not in found.tags
    assert [a for a, _ in found.attributes if a.startswith("on") or a == "style"] == []


@pytest.mark.parametrize("name", sorted(set(PAGES) - {"not_found"}))
def test_hostile_text_is_really_there(name: str) -> None:
    """So that the test above is about something."""
    assert "&lt;script&gt;alert(" in _render(PAGES[name])


@pytest.mark.parametrize("name", sorted(PAGES))
def test_everything_is_from_here(name: str) -> None:
    """Links and files alike: no page asks another origin for anything."""
    for attribute, value in _elements(_render(PAGES[name])).attributes:
        if attribute in ("href", "src", "action", "data-live"):
            assert value.startswith(("/", "#")), value
            assert not value.startswith("//")


def test_an_address_cannot_break_out() -> None:
    """The path of the request stands in an attribute."""
    html = _render(not_found(), path='/"><script>alert(1)</script>')
    assert _elements(html).tags.count("script") == 1


def test_text_only_on_request() -> None:
    """Variables and answers of a job are on its page with --show-text and else nowhere."""
    planted = "&lt;script&gt;alert(&#39;x&#39;)"
    with_text = _render(_job(with_text=True))
    without = _render(_job(with_text=False), show_text=False)
    assert "Variables</h2>" in with_text
    assert with_text.count(planted) > without.count(planted)
    assert "Variables</h2>" not in without
    assert "Answer</h2>" not in without


@pytest.mark.parametrize("name", sorted(PAGES))
def test_structure(name: str) -> None:
    """Landmarks, a skip link that leads somewhere, headings, headers of tables, distinct ids."""
    html = _render(PAGES[name])
    found = _elements(html)
    for tag in ("header", "nav", "main", "footer", "h1"):
        assert found.tags.count(tag) == 1, tag
    assert '<a class="skip" href="#main">' in html
    ids = [value for attribute, value in found.attributes if attribute == "id"]
    assert len(ids) == len(set(ids))
    labels = [v for attribute, v in found.attributes if attribute == "aria-labelledby"]
    assert set(labels) <= set(ids)
    assert found.tags.count("table") == found.tags.count("caption")
    for row in re.findall(r"<tr data-key.*?</tr>", html, re.DOTALL):
        assert 'scope="row"' in row
    assert 'aria-live="polite"' in html


@pytest.mark.parametrize("place", [address for address, _ in PLACES])
def test_the_menu_says_where_one_is(place: str) -> None:
    """For eyes and for ears."""
    html = _render(PAGES["queues"], path=place)
    assert html.count('aria-current="page"') == 1
    assert f'href="{place}" aria-current="page"' in html
