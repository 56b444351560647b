"""What a look at a rollout comes to, as plain functions of what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from templates.rollouts.judge import verdict
from templates.rollouts.rollout import Finding, Outcome, Phase, Rollout
from worker.rollouts.warmth import Warmth

# A canary with jobs may be without workers for this long, or a tenth of the time to bake.
UNSERVED_S = 60.0
_SHOWN_CHARS = 900  # of findings in a journal's entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, with the findings to keep and the reason for the journal."""

    act: Literal["note", "advance", "promote", "abort"]
    findings: tuple[Finding, ...]
    phase: Phase | None = None  # of `advance`
    step: int = -1
    why: str = ""


def after_gates(rollout: Rollout, findings: Sequence[Finding]) -> Decision:
    """What is not known yet is tried again; a version that fails never gets a job."""
    match verdict(findings):
        case Outcome.FAIL:
            return _abort(findings)
        case Outcome.PASS:
            return _advance(rollout, Phase.WARMING, findings, why="the gates passed")
        case Outcome.INCONCLUSIVE:
            return _note(findings)


def while_warming(
    rollout: Rollout,
    warmth: Warmth,
    judged: Sequence[Finding],
    *,
    stable: Sequence[Finding] = (),
) -> Decision:
    """The next step, once enough workers hold the prefix and what there is to say of the stable
    version, if anything, passes. A step's jobs go on being watched.
    """
    share = rollout.plan.warm_workers
    findings = (warmth.finding(share), *stable, *judged)
    if rollout.paused:
        return _note(findings)
    if verdict(judged) is Outcome.FAIL:
        return _abort(findings)
    if verdict((findings[0], *stable)) is not Outcome.PASS:
        return _note(findings)
    why = findings[0].message
    return _advance(rollout, Phase.BAKING, findings, step=rollout.step + 1, why=why)


def while_baking(rollout: Rollout, judged: Sequence[Finding], *, now: float) -> Decision:
    """A fail ends it at any time, and only passes of all gates at the end of the step go on.

    `now` is Redis server time.
    """
    result = verdict(judged)
    if rollout.paused:
        return _note(judged)
    if result is Outcome.FAIL:
        return _abort(judged)
    if result is not Outcome.PASS or now < rollout.since + rollout.plan.bake_s:
        return _note(judged)
    if rollout.last_step:
        return Decision(act="promote", findings=tuple(judged), why=_in_words(judged))
    return _advance(rollout, Phase.WARMING, judged, why=_in_words(judged))


def while_unserved(
    rollout: Rollout, judged: Sequence[Finding], told: Finding, *, unserved_s: float
) -> Decision:
    """What workers that cannot serve the canary make of a rollout whose canary nobody serves.

    `told` says so. With a share of the jobs it fails once that has lasted: those jobs only wait,
    and would end as nothing that the gates see.
    """
    if rollout.weight == 0:
        # What was found before stays beside it.
        before = (item for item in rollout.findings if item.gate != told.gate)
        return _note((told, *before))
    longest = max(UNSERVED_S, rollout.plan.bake_s / 10)
    if unserved_s > longest:
        message = f"nobody serves it: {told.message}, for over {longest:.0f} s"
        told = replace(told, outcome=Outcome.FAIL, message=message)
    findings = (told, *judged)
    if verdict(findings) is Outcome.FAIL and not rollout.paused:
        return _abort(findings)
    return _note(findings)


def _note(findings: Sequence[Finding]) -> Decision:
    return Decision(act="note", findings=tuple(findings))


def _abort(findings: Sequence[Finding]) -> Decision:
    failed = [finding for finding in findings if finding.outcome is Outcome.FAIL]
    return Decision(act="abort", findings=tuple(findings), why=_in_words(failed))


def _advance(
    rollout: Rollout,
    phase: Phase,
    findings: Sequence[Finding],
    *,
    why: str,
    step: int | None = None,
) -> Decision:
    return Decision(
        act="advance",
        findings=tuple(findings),
        phase=phase,
        step=rollout.step if step is None else step,
        why=why,
    )


def _in_words(findings: Sequence[Finding]) -> str:
    return "; ".join(f"{item.gate}: {item.message}" for item in findings)[:_SHOWN_CHARS]
