"""What a look at a rollout comes to, for each phase."""

from __future__ import annotations

from dataclasses import replace

import pytest

from templates.rollouts.rollout import Finding, Outcome, Phase, Plan, Rollout
from worker.rollouts.decide import Decision, after_gates, while_baking, while_warming
from worker.rollouts.warmth import Warmth

PLAN = Plan(label="production", stable=1, canary=2, steps=(100, 5000, 10_000), bake_s=60)
GATES = Rollout(id="0" * 16, plan=PLAN, phase=Phase.GATES, step=-1, started_at=0, since=1000)
WARMING = replace(GATES, phase=Phase.WARMING)
BAKING = replace(GATES, phase=Phase.BAKING, step=0)
LAST = replace(BAKING, step=2)
WARM, COLD = Warmth(workers=2, warm=2), Warmth(workers=2, warm=1)
NO_WORKER = Warmth(workers=0, warm=0)


def found(*outcomes: str) -> tuple[Finding, ...]:
    return tuple(
        Finding(gate=f"gate-{i}", outcome=Outcome(outcome), message=f"message {i}")
        for i, outcome in enumerate(outcomes)
    )


PASS, FAIL, UNKNOWN = found("pass", "pass"), found("pass", "fail"), found("pass", "inconclusive")


def place(decision: Decision) -> tuple[str, Phase | None, int]:
    return decision.act, decision.phase, decision.step


def test_gates_that_pass_lead_to_warming_without_a_job() -> None:
    """No step is taken: the weight is still none."""
    assert place(after_gates(GATES, PASS)) == ("advance", Phase.WARMING, -1)


def test_gates_that_fail_abort_with_their_reason() -> None:
    """The journal has the gate and its message, and not those that passed."""
    decision = after_gates(GATES, FAIL)
    assert (decision.act, decision.why) == ("abort", "gate-1: message 1")


@pytest.mark.parametrize("findings", [UNKNOWN, ()])
def test_gates_that_know_nothing_wait(findings: tuple[Finding, ...]) -> None:
    """With their findings."""
    decision = after_gates(GATES, findings)
    assert (decision.act, decision.findings) == ("note", findings)


def test_the_next_step_waits_for_warm_workers() -> None:
    """All of them, half of them, and one at least: none at all is not enough."""
    assert while_warming(WARMING, COLD, ()).act == "note"
    assert place(while_warming(WARMING, WARM, ())) == ("advance", Phase.BAKING, 0)
    half = replace(WARMING, plan=replace(PLAN, warm_workers=0.5))
    assert while_warming(half, COLD, ()).act == "advance"
    nothing = replace(WARMING, plan=replace(PLAN, warm_workers=0.0))
    assert while_warming(nothing, NO_WORKER, ()).act == "note"
    assert while_warming(nothing, Warmth(workers=3, warm=0), ()).act == "note"


@pytest.mark.parametrize(("outcome", "act"), [("inconclusive", "note"), ("pass", "advance")])
def test_a_step_waits_for_what_the_stable_version_lacks(outcome: str, act: str) -> None:
    """Its findings are told with the others."""
    [lacks] = found(outcome)
    decision = while_warming(WARMING, WARM, (), stable=(lacks,))
    assert decision.act == act
    assert decision.findings == (WARM.finding(1.0), lacks)
    assert while_warming(WARMING, COLD, (), stable=(lacks,)).act == "note"


def test_a_later_step_is_the_next_one() -> None:
    """From step 0 to step 1."""
    decision = while_warming(replace(WARMING, step=0), WARM, UNKNOWN)
    assert place(decision) == ("advance", Phase.BAKING, 1)


def test_jobs_that_fail_while_workers_warm_abort() -> None:
    """The canary has its share all the while."""
    assert while_warming(replace(WARMING, step=0), COLD, FAIL).act == "abort"


@pytest.mark.parametrize(
    ("judged", "now", "act"),
    [
        (PASS, 1059.9, "note"),
        (PASS, 1060.0, "advance"),
        (UNKNOWN, 1060.0, "note"),
        (UNKNOWN, 10**9, "note"),
        ((), 10**9, "note"),
        (FAIL, 1000.1, "abort"),
        (FAIL, 10**9, "abort"),
    ],
)
def test_a_step_ends_when_it_has_baked_and_every_gate_passes(
    judged: tuple[Finding, ...], now: float, act: str
) -> None:
    """A fail ends it at any time; what is not known waits, however long."""
    decision = while_baking(BAKING, judged, now=now)
    assert decision.act == act
    if act == "advance":
        assert place(decision) == ("advance", Phase.WARMING, 0)


def test_the_last_step_ends_in_promotion() -> None:
    """With the numbers that it was decided on."""
    decision = while_baking(LAST, PASS, now=2000)
    assert (decision.act, decision.why) == ("promote", "gate-0: message 0; gate-1: message 1")
    assert while_baking(LAST, PASS, now=1001).act == "note"
    assert while_baking(LAST, UNKNOWN, now=2000).act == "note"
    assert while_baking(LAST, FAIL, now=2000).act == "abort"


def test_a_paused_rollout_only_learns() -> None:
    """People decide; what the gates say is kept for them."""
    for judged in (PASS, FAIL, UNKNOWN):
        decision = while_baking(replace(LAST, paused=True), judged, now=2000)
        assert (decision.act, decision.findings) == ("note", judged)
        warming = replace(WARMING, step=0, paused=True)
        assert while_warming(warming, WARM, judged).act == "note"


def test_a_reason_has_a_bound() -> None:
    """A journal's entry does."""
    many = found(*["fail"] * 100)
    assert len(after_gates(GATES, many).why) == 900
