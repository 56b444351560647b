"""What may change of a template, as plain functions: a state and a wish, and the state after.

Whoever moves a label, retires a version or goes on with a rollout decides here, on one sight of
everything that such a change depends on. `templates.registry` makes it happen, if the state is
still that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Final, Literal

from contract.errors import Conflict, InvalidInput, NotFound
from contract.ids import DEFAULT_LABEL, check_name
from templates.rollouts.plain import check_plan, phase_fits, tidy
from templates.rollouts.rollout import Finding, Phase, Plan, Rollout


class Anything(Enum):
    """The default of `expect`: the label may point anywhere."""

    ANYTHING = "*"


ANYTHING: Final = Anything.ANYTHING
Expected = int | None | Literal[Anything.ANYTHING]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateState:
    """All of a template that moves. Versions themselves never change."""

    revision: int = 0  # how many moves there were
    versions: frozenset[int] = frozenset()
    labels: Mapping[str, int] = field(default_factory=dict)
    retired: frozenset[int] = frozenset()
    rollout: Rollout | None = None
    name: str = field(default="", compare=False)  # tenant/name, for messages


class Action(StrEnum):
    """What a move does; the journal's word for it."""

    PUBLISH = "publish"
    LABEL = "label"
    UNLABEL = "unlabel"
    RETIRE = "retire"
    UNRETIRE = "unretire"
    START = "start"
    PHASE = "phase"  # the rollout goes on and its weight stays
    STEP = "step"  # the canary takes the next step's weight
    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change that may be made, and how it reads in the journal."""

    action: Action
    was: str
    now: str
    state: TemplateState  # after it


def publish(state: TemplateState) -> Move:
    """A new version. A template's first one gets the label `production`."""
    number = max(state.versions, default=0) + 1
    labels = {**state.labels, **({} if state.versions else {DEFAULT_LABEL: number})}
    after = replace(state, versions=state.versions | {number}, labels=labels)
    return _move(Action.PUBLISH, "", str(number), after)


def set_label(
    state: TemplateState, label: str, version: int, *, expect: Expected = ANYTHING
) -> Move | None:
    """Point a label to a version; None when it points there.

    Raises InvalidInput, NotFound, and Conflict when it is not where it is expected, the version is
    retired, or a rollout is about the label.
    """
    check_label(label)
    _check_expected(state, label, expect)
    _check_version(state, version)
    now = state.labels.get(label)
    if now == version:
        return None
    if version in state.retired:
        raise Conflict(
            f"{state.name}@{version} is retired",
            given=f"the label {label} for it",
            expected="a version that takes jobs",
            remedy="'prefillq templates retire --undo' brings it back.",
        )
    _check_free(state, label, f"moving it to {version}")
    after = replace(state, labels={**state.labels, label: version})
    return _move(Action.LABEL, _pointing(label, now), _pointing(label, version), after)


def remove_label(state: TemplateState, label: str, *, expect: Expected = ANYTHING) -> Move:
    """Remove a label. Raises as `set_label` does, and NotFound when there is none."""
    check_label(label)
    _check_expected(state, label, expect)
    if label not in state.labels:
        raise NotFound(
            "no such label",
            given=f"{state.name}@{label}",
            expected=f"labels: {_labels(state)}",
            remedy=f"See 'prefillq templates show {state.name}'.",
        )
    _check_free(state, label, "removing it")
    labels = {name: number for name, number in state.labels.items() if name != label}
    was = _pointing(label, state.labels[label])
    return _move(Action.UNLABEL, was, "", replace(state, labels=labels))


def retire(state: TemplateState, version: int, *, undo: bool = False) -> Move | None:
    """Take no new jobs for a version, or take them again; None when that is so.

    Raises NotFound, and Conflict while a label points to it or a rollout is about it.
    """
    _check_version(state, version)
    if undo:
        if version not in state.retired:
            return None
        after = replace(state, retired=state.retired - {version})
        return _move(Action.UNRETIRE, str(version), "", after)
    rollout = state.rollout
    if rollout is not None and version in (rollout.plan.stable, rollout.plan.canary):
        raise Conflict(
            f"a rollout of {state.name} is about version {version}",
            given=f"retiring it while the rollout goes from {_plan_text(rollout.plan)}",
            remedy=f"End it first: 'prefillq templates rollout promote {state.name}' or 'abort'.",
        )
    for label, number in sorted(state.labels.items()):
        if number == version:
            raise Conflict(
                f"the label {label} points to {state.name}@{version}",
                expected="a version without labels",
                remedy=f"Move it first: 'prefillq templates label {state.name}@N {label}'.",
            )
    if version in state.retired:
        return None
    after = replace(state, retired=state.retired | {version})
    return _move(Action.RETIRE, "", str(version), after)


def start(state: TemplateState, plan: Plan, *, rollout_id: str, now: float) -> Move:
    """Begin a rollout, with its gates.

    Raises InvalidInput for a plan that cannot be followed, NotFound for versions that are not
    there, and Conflict while another is active, the label points elsewhere, or one is retired.
    """
    check_plan(plan)
    if state.rollout is not None:
        raise Conflict(
            f"{state.name} has a rollout already",
            given=f"from {_plan_text(plan)}",
            expected=f"the end of the one from {_plan_text(state.rollout.plan)}",
            remedy=f"See 'prefillq templates rollout status {state.name}'; 'promote' or 'abort' "
            "ends it.",
        )
    for version in (plan.stable, plan.canary):
        _check_version(state, version)
    points_to = state.labels.get(plan.label)
    if points_to != plan.stable:
        raise Conflict(
            f"the label {plan.label} of {state.name} points to {points_to or 'nothing'}",
            given=f"a rollout from version {plan.stable}",
            expected="one from the version that the label points to",
            remedy="Look at the labels again and decide anew.",
        )
    for version in (plan.stable, plan.canary):
        if version in state.retired:
            raise Conflict(
                f"{state.name}@{version} is retired",
                given=f"a rollout from {_plan_text(plan)}",
                expected="versions that take jobs",
                remedy="'prefillq templates retire --undo' brings it back.",
            )
    rollout = Rollout(
        id=rollout_id, plan=plan, phase=Phase.GATES, step=-1, started_at=now, since=now
    )
    return _move(Action.START, str(plan.stable), str(plan.canary), replace(state, rollout=rollout))


def advance(
    state: TemplateState,
    *,
    expect: Rollout,
    phase: Phase,
    step: int,
    findings: Iterable[Finding],
    now: float,
) -> Move:
    """The rollout's next phase: gates, then warming and baking for each step.

    Raises NotFound and Conflict as `pause` does, Conflict for a paused one, and InvalidInput for
    a phase that does not come next.
    """
    rollout = _active(state, expect)
    if rollout.paused:
        raise Conflict(
            f"the rollout of {state.name} is paused",
            given=f"the phase {phase}",
            remedy="People decide how it goes on.",
        )
    after = replace(rollout, phase=phase, step=step, findings=tidy(findings), since=now)
    follows = (phase, step) in {
        Phase.GATES: {(Phase.WARMING, rollout.step)},
        Phase.WARMING: {(Phase.BAKING, rollout.step + 1)},
        Phase.BAKING: {(Phase.WARMING, rollout.step)},
    }[rollout.phase]
    if not follows or not phase_fits(phase, step, rollout.plan):
        raise InvalidInput(
            f"a rollout of {state.name} cannot go on so",
            given=f"from {rollout.phase} at step {rollout.step} to {phase} at step {step}",
            expected="gates, then warming and baking for each step",
        )
    moved = replace(state, rollout=after)
    if after.step == rollout.step:
        return _move(Action.PHASE, str(rollout.phase), str(phase), moved)
    return _move(Action.STEP, _percent(rollout.weight), _percent(after.weight), moved)


def pause(state: TemplateState, *, expect: Rollout | None = None) -> Move | None:
    """Hold the weights until `resume`; None when it is paused.

    Raises NotFound without a rollout, Conflict when it is not `expect` any more.
    """
    return _set_paused(state, expect, paused=True)


def resume(state: TemplateState, *, expect: Rollout | None = None) -> Move | None:
    """Go on from where it was paused; None when it is not. Raises as `pause` does."""
    return _set_paused(state, expect, paused=False)


def promote(state: TemplateState, *, expect: Rollout | None = None) -> Move:
    """The label moves to the canary, and the rollout is over. Raises as `pause` does."""
    plan = _active(state, expect).plan
    after = replace(state, labels={**state.labels, plan.label: plan.canary}, rollout=None)
    return _move(
        Action.PROMOTE,
        _pointing(plan.label, state.labels.get(plan.label)),
        _pointing(plan.label, plan.canary),
        after,
    )


def abort(state: TemplateState, *, expect: Rollout | None = None) -> Move:
    """The label stays, and the rollout is over. Raises as `pause` does."""
    rollout = _active(state, expect)
    after = replace(state, rollout=None)
    return _move(Action.ABORT, _percent(rollout.weight), _percent(0), after)


def clear(state: TemplateState) -> Move:
    """A rollout that cannot be read is over; the label stays."""
    return _move(Action.ABORT, "unreadable", _percent(0), state)


def _set_paused(state: TemplateState, expect: Rollout | None, *, paused: bool) -> Move | None:
    rollout = _active(state, expect)
    if rollout.paused == paused:
        return None
    was, now = ("running", "paused") if paused else ("paused", "running")
    after = replace(state, rollout=replace(rollout, paused=paused))
    return _move(Action.PAUSE if paused else Action.RESUME, was, now, after)


def _active(state: TemplateState, expect: Rollout | None) -> Rollout:
    rollout = state.rollout
    if rollout is None and expect is None:
        raise NotFound(
            f"{state.name} has no rollout",
            remedy=f"Start one with 'prefillq templates rollout start {state.name} --to N'; "
            f"'prefillq templates history {state.name}' tells of earlier ones.",
        )
    if rollout is None or (expect is not None and rollout != expect):
        raise Conflict(
            f"the rollout of {state.name} has moved",
            given="it is over" if rollout is None else _place(rollout),
            expected=None if expect is None else _place(expect),
            remedy="Look at it again and decide anew.",
        )
    return rollout


def _move(action: Action, was: str, now: str, after: TemplateState) -> Move:
    return Move(action=action, was=was, now=now, state=replace(after, revision=after.revision + 1))


def check_label(label: str) -> None:
    """Raise InvalidInput for what is no label."""
    check_name("label", label)
    if label.isdecimal():
        raise InvalidInput(
            "a label cannot be a number",
            given=label,
            expected="a name, since tenant/template@3 means version 3",
        )


def _check_version(state: TemplateState, version: int) -> None:
    if version not in state.versions:
        raise NotFound(
            "no such version",
            given=f"{state.name}@{version}",
            expected=f"versions 1 to {max(state.versions, default=0)}, labels: {_labels(state)}",
            remedy=f"See 'prefillq templates show {state.name}'.",
        )


def _check_expected(state: TemplateState, label: str, expect: Expected) -> None:
    now = state.labels.get(label)
    if expect is not ANYTHING and now != expect:
        raise Conflict(
            f"the label {label} of {state.name} has moved",
            given=f"it points to {now or 'nothing'}",
            expected=f"{expect or 'nothing'}",
            remedy="Look at the labels again and decide anew.",
        )


def _check_free(state: TemplateState, label: str, wish: str) -> None:
    rollout = state.rollout
    if rollout is not None and rollout.plan.label == label:
        raise Conflict(
            f"a rollout of {state.name} is about the label {label}",
            given=f"{wish} while the rollout goes from {_plan_text(rollout.plan)}",
            remedy=f"End it first: 'prefillq templates rollout promote {state.name}' or 'abort'.",
        )


def _labels(state: TemplateState) -> str:
    return ", ".join(f"{label} ({n})" for label, n in sorted(state.labels.items())) or "none"


def _pointing(label: str, version: int | None) -> str:
    return "" if version is None else f"{label}={version}"


def _plan_text(plan: Plan) -> str:
    return f"{plan.stable} to {plan.canary}"


def _place(rollout: Rollout) -> str:
    paused = ", paused" if rollout.paused else ""
    return f"{_plan_text(rollout.plan)}, {rollout.phase} at {_percent(rollout.weight)}{paused}"


def _percent(weight: int) -> str:
    return f"{weight / 100:g} %"
