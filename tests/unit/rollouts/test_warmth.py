"""Which workers hold a version's prefix, by what they report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from templates.compiled import CompiledTemplate
from templates.rollouts.rollout import Outcome
from tests.support.published import MODEL, make_version
from worker.rollouts.warmth import Warmth, warmth_of

VERSION = make_version()
HOLDS = {
    "version": "acme/triage@1",
    "digest": VERSION.ref.digest,
    "cached": True,
    "parity": "identical",
}


def report(*versions: Any, **changes: Any) -> dict[str, Any]:
    return {
        "id": "w1",
        "model_digest": MODEL.model_digest,
        "templates": ["acme/letters", "acme/triage"],
        "draining": False,
        "engine": "shared",
        "versions": list(versions),
        **changes,
    }


def counts(*reports: dict[str, Any]) -> tuple[int, int]:
    warmth = warmth_of(reports, VERSION)
    return warmth.workers, warmth.warm


def test_workers_that_serve_the_version_are_counted() -> None:
    """Warm is who holds exactly this digest, now."""
    other = {**HOLDS, "digest": "f" * 64}
    gone = {**HOLDS, "cached": False}
    unequal = {**HOLDS, "parity": "differs"}
    reports = [report(HOLDS), report(other), report(gone), report(unequal), report(other, HOLDS)]
    assert counts(*reports) == (5, 2)


@pytest.mark.parametrize(
    "changes",
    [{"model_digest": "f" * 64}, {"templates": ["acme/letters"]}, {"draining": True}],
)
def test_other_workers_are_not(changes: dict[str, Any]) -> None:
    """Of other weights, for other templates, or about to end."""
    assert counts(report(HOLDS, **changes)) == (0, 0)


def test_nothing_to_hold_is_held() -> None:
    """By a model that keeps no prefix, and of a version that has none."""
    assert counts(report(engine="uncached")) == (1, 1)
    bare = CompiledTemplate(segments=VERSION.compiled.segments, prefix_ids=())
    assert warmth_of([report()], replace(VERSION, compiled=bare)) == Warmth(workers=1, warm=1)


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"model_digest": MODEL.model_digest},
        report(templates="acme/triage"),
        report(templates=None),
        report(templates=[None, 3]),
    ],
)
def test_odd_reports_count_for_nothing(odd: dict[str, Any]) -> None:
    """Of another release, or of somebody else."""
    assert counts(odd) == (0, 0)
    assert counts(report(None, 3, {}, {"digest": VERSION.ref.digest}, versions=7)) == (1, 0)
    assert counts(report(None, 3, {}, {**HOLDS, "cached": "yes"})) == (1, 0)


@pytest.mark.parametrize(
    ("workers", "share", "needed"),
    [(1, 0.0, 1), (0, 1.0, 1), (3, 1.0, 3), (3, 0.5, 2), (10, 0.3, 3), (4, 0.25, 1), (5, 0.01, 1)],
)
def test_how_many_are_needed(workers: int, share: float, needed: int) -> None:
    """The share, rounded up, and one at least."""
    assert Warmth(workers=workers, warm=needed).enough(share)
    assert not Warmth(workers=workers, warm=needed - 1).enough(share)
    finding = Warmth(workers=workers, warm=needed - 1).finding(share)
    assert finding.outcome is Outcome.INCONCLUSIVE
    assert finding.message.endswith(f"{needed} are needed")
