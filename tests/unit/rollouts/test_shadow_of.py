"""Which jobs say in their record that the canary is to answer them too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.ids import new_job_id
from contract.types import VersionRef
from templates.rollouts.rollout import Phase, Plan, Rollout
from templates.target import Target

STABLE = VersionRef(tenant="acme", template="triage", version=1, digest="0" * 64)
CANARY = replace(STABLE, version=2, digest="1" * 64)
PLAN = Plan(label="production", stable=1, canary=2, steps=(100,), bake_s=1.0, shadow=10_000)
ROLLOUT = Rollout(id="ab" * 8, plan=PLAN, phase=Phase.BAKING, step=0, started_at=1.0, since=1.0)
IDS = [new_job_id("acme") for _ in range(2000)]


def _target(rollout: Rollout | None) -> Target:
    return Target(revision=1, stable=STABLE, canary=CANARY, rollout=rollout)


def test_a_share_of_the_stable_versions_jobs() -> None:
    """By their ids, and apart from the split itself."""
    half = _target(replace(ROLLOUT, plan=replace(PLAN, shadow=5000, steps=(5000,))))
    shadowed = [half.shadow_of(STABLE, job_id) for job_id in IDS]
    assert set(shadowed) == {0, 2}
    assert 800 < shadowed.count(2) < 1200
    both = [half.shadow_of(STABLE, i) == 2 for i in IDS if half.ref_for(i) == STABLE]
    assert 350 < sum(both) < 650  # of about a thousand: one tells nothing of the other


@pytest.mark.parametrize("job_id", IDS[:5])
def test_a_canarys_own_jobs_have_none(job_id: str) -> None:
    """It answers them already."""
    assert _target(ROLLOUT).shadow_of(STABLE, job_id) == 2
    assert _target(ROLLOUT).shadow_of(CANARY, job_id) == 0


@pytest.mark.parametrize(
    "rollout",
    [
        None,
        replace(ROLLOUT, plan=replace(PLAN, shadow=0)),
        replace(ROLLOUT, phase=Phase.GATES, step=-1),
    ],
    ids=["no rollout", "no shadow", "not tried yet"],
)
def test_nothing_is_shadowed_without_a_tried_canary(rollout: Rollout | None) -> None:
    """A version that nobody has tried meets no job, seen or unseen."""
    assert {_target(rollout).shadow_of(STABLE, job_id) for job_id in IDS} == {0}


def test_a_paused_rollout_goes_on_with_it() -> None:
    """The weights hold, and so does the shadow's: that is what people look at meanwhile."""
    assert _target(replace(ROLLOUT, paused=True)).shadow_of(STABLE, IDS[0]) == 2
