"""From a sight to rows: which workers count, what is warm, and reports of other releases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from contract.load import Flow, Sight
from scale.fleet import Fleet
from scale.formula import Goal
from scale.names import Named
from scale.rows import Assumed, Row, rows_of
from scale.shown import _cells
from tests.unit.scale.test_agreement import AGREED

DIGEST, OTHER = "a" * 64, "b" * 64
GOAL = Goal(wait_s=10.0)
NAMED = Named(
    tenant="acme",
    template="notes",
    models={"a" * 12: "tiny"},
    labelled={"a" * 12: {1: ("d1", True), 2: ("d2", True), 3: ("d3", False)}},
)


def report(**changes: Any) -> dict[str, Any]:
    told = {
        "id": "w1",
        "model_digest": DIGEST,
        "batch_size": 4,
        "draining": False,
        "engine": "shared",
        "templates": ["acme/notes"],
        "versions": [
            {"digest": "d1", "cached": True, "parity": "identical"},
            {"digest": "d2", "cached": False, "parity": "identical"},
        ],
    }
    return told | changes


def row(*reports: dict[str, Any], assumed: Assumed | None = None, **changes: Any) -> Row:
    load = replace(AGREED, **changes)
    sight = Sight(now=0.0, loads=(load,), workers=reports, unacked=0)
    [made] = rows_of(sight, [NAMED], GOAL, assumed).templates
    return made


def test_workers_of_the_template_and_model_count() -> None:
    """Those that end are counted apart; those of other models or templates not at all."""
    made = row(
        report(),
        report(batch_size=8),
        report(draining=True),
        report(model_digest=OTHER),
        report(templates=["acme/mail"]),
    )
    assert (made.workers, made.draining, made.concurrency) == (2, 1, 6.0)
    assert made.concurrency_known


def test_limits_of_tenants_are_of_all_their_templates() -> None:
    """A model's row has the sum of its tenants', if all have one, and none twice."""

    def loads(globex: int | None) -> tuple[Any, ...]:
        flow = Flow(seconds=60.0, ended=60, busy_s=60.0)
        usual = replace(AGREED, waiting=1000, max_running=8, recent=flow)
        return (
            usual,
            replace(usual, template="mail"),
            replace(usual, tenant="globex", max_running=globex),
        )

    named = [
        replace(NAMED, tenant=tenant, template=template)
        for tenant, template in (("acme", "notes"), ("acme", "mail"), ("globex", "notes"))
    ]
    for globex, model, single in ((16, 6, 4), (None, 75, 25)):
        sight = Sight(now=0.0, loads=loads(globex), workers=(report(),), unacked=0)
        rows = rows_of(sight, named, GOAL, Assumed(concurrency=4))
        assert [made.desired for made in rows.templates] == [2, 2, single]
        assert [made.desired for made in rows.models] == [model]


def test_a_model_without_a_version_in_use_is_said_to_be_retired() -> None:
    """By name, in its row and in its model's, and no worker is wanted where nothing waits."""
    idle = replace(AGREED, waiting=0, running=0, recent=Flow(seconds=60.0), kept=Flow(seconds=60.0))
    gone = replace(NAMED, models={}, retired={"a" * 12: "tiny"})
    sight = Sight(now=0.0, loads=(idle,), workers=(), unacked=0)
    for goal, desired in ((GOAL, 0), (replace(GOAL, minimum=2), 2)):
        made = rows_of(sight, [gone], goal)
        for rows in (made.templates, made.models):
            assert [(r.model, r.retired, r.desired) for r in rows] == [("tiny", True, desired)]
            assert {_cells(r)[-1] for r in rows} == {f"{'min' if desired else 'idle'}, retired"}
    assert not row().retired
    [whole] = rows_of(sight, [gone, replace(NAMED, template="mail")], GOAL).models
    assert not whole.retired, "one template still has a version for the model"


def test_warm_is_per_labelled_version() -> None:
    """In memory now; a version without a prefix, or an engine that keeps none, is always warm."""
    assert row(report(), report(versions=[])).warm == {"1": 1, "2": 0, "3": 2}
    assert row(report(engine="uncached", versions=[])).warm == {"1": 1, "2": 1, "3": 1}
    assert row(report(draining=True)).warm == {"1": 0, "2": 0, "3": 0}
    uncached = {"digest": "d1", "cached": True, "parity": "different"}
    close = {**uncached, "parity": "within_tolerance"}
    assert row(report(versions=[uncached]), report(versions=[close])).warm["1"] == 1


def test_service_time_of_the_window_or_of_longer_ago() -> None:
    """The caller's word is before both."""
    recent = Flow(seconds=60.0, arrived=6, ended=3, busy_s=6.0)
    kept = Flow(seconds=300.0, arrived=6, ended=5, busy_s=20.0)
    assert row(report(), recent=recent, kept=kept).service_s == 2.0
    assert row(report(), kept=kept).service_s == 4.0
    assert row(report()).service_s is None
    assert row(report(), recent=recent, assumed=Assumed(service_s=9.0)).service_s == 9.0
    assert row(report(), recent=recent).arrivals_per_s == 0.1


def test_concurrency_is_assumed_without_workers() -> None:
    """One slot, or what the caller says."""
    assert (row().concurrency, row().concurrency_known) == (1.0, False)
    made = row(report(), assumed=Assumed(concurrency=16))
    assert (made.concurrency, made.concurrency_known) == (16.0, True)


def test_strange_reports_hide_no_other() -> None:
    """Of another release, or written by hand."""
    strange = [
        {},
        report(model_digest=7),
        report(batch_size="4"),
        report(batch_size=-1),
        report(templates=None, versions={"a": 1}),
        report(versions=[3, {"digest": ["x"], "cached": True}], templates=[["acme/notes"]]),
    ]
    assert len(Fleet(strange).of_model("a" * 12)) == 2
    assert row(*strange, report()).workers == 1


def test_one_row_for_all_of_a_model() -> None:
    """Sums of what waits, and one number of workers for it."""
    loads = (AGREED, replace(AGREED, template="mail", waiting=5, oldest_s=9.0))
    sight = Sight(now=0.0, loads=loads, workers=(report(), report(templates=[])), unacked=0)
    [made] = rows_of(sight, [NAMED, replace(NAMED, template="mail")], GOAL).models
    assert (made.template, made.waiting, made.oldest_s, made.workers) == ("", 8, 9.0, 2)
