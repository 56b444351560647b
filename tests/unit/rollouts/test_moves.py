"""What may be moved in which state, and what is said when it may not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from contract.errors import Conflict, InvalidInput, NotFound
from templates.rollouts import moves
from templates.rollouts.moves import Action, Move, TemplateState
from templates.rollouts.rollout import Finding, Phase, Rollout
from tests.support.rollouts import FINDING, ID, make_plan, make_rollout

IDLE = TemplateState(
    revision=5,
    versions=frozenset({1, 2, 3}),
    labels={"production": 1, "next": 3},
    name="acme/triage",
)
ROLLOUT = make_rollout()
ACTIVE = replace(IDLE, rollout=ROLLOUT)


def advance(state: TemplateState, phase: Phase, step: int, **changes: Any) -> Move:
    assert state.rollout is not None
    given: dict[str, Any] = {"expect": state.rollout, "findings": (FINDING,), "now": 99.0}
    return moves.advance(state, phase=phase, step=step, **{**given, **changes})


def test_every_move_is_one_revision() -> None:
    """Whatever it changes."""
    made = [
        moves.publish(IDLE),
        moves.set_label(IDLE, "next", 2),
        moves.remove_label(IDLE, "next"),
        moves.retire(IDLE, 2),
        moves.start(IDLE, make_plan(), rollout_id=ID, now=1.0),
        moves.pause(ACTIVE),
        moves.promote(ACTIVE),
        moves.abort(ACTIVE),
        advance(ACTIVE, Phase.WARMING, 1),
    ]
    assert [move and move.state.revision for move in made] == [6] * len(made)


def test_what_is_so_already_is_no_move() -> None:
    """No entry says that nothing changed."""
    assert moves.set_label(IDLE, "production", 1) is None
    assert moves.retire(IDLE, 2, undo=True) is None
    assert moves.retire(replace(IDLE, retired=frozenset({2})), 2) is None
    assert moves.resume(ACTIVE) is None
    paused = moves.pause(ACTIVE)
    assert paused is not None
    assert moves.pause(paused.state) is None


def test_publishing_labels_the_first_version_alone() -> None:
    """Numbers go on from the highest, also over a gap that somebody made by hand."""
    first = moves.publish(TemplateState())
    assert first.state.labels == {"production": 1}
    second = moves.publish(first.state)
    assert (second.state.versions, second.state.labels) == (frozenset({1, 2}), {"production": 1})
    gap = moves.publish(replace(IDLE, versions=frozenset({1, 7})))
    assert gap.now == "8"


def test_an_active_rollout_holds_its_label() -> None:
    """Moving and removing it are conflicts that say what to do; other labels are free."""
    for act in (
        lambda: moves.set_label(ACTIVE, "production", 3),
        lambda: moves.remove_label(ACTIVE, "production"),
        lambda: moves.set_label(ACTIVE, "production", 2, expect=1),
    ):
        with pytest.raises(Conflict, match=r"rollout promote acme/triage' or 'abort'"):
            act()
    move = moves.set_label(ACTIVE, "next", 1)
    assert move is not None
    assert move.state.rollout == ROLLOUT
    moves.remove_label(ACTIVE, "next")


def test_an_active_rollout_holds_its_versions() -> None:
    """Neither is retired; a third one may be."""
    for version in (1, 2):
        with pytest.raises(Conflict, match="'abort'"):
            moves.retire(ACTIVE, version)
    assert moves.retire(replace(ACTIVE, labels={"production": 1}), 3) is not None


def test_a_second_rollout_is_a_conflict() -> None:
    """Also of the same plan."""
    with pytest.raises(Conflict, match="the end of the one from 1 to 2") as caught:
        moves.start(ACTIVE, make_plan(canary=3), rollout_id=ID, now=1.0)
    assert caught.value.exit_code == 7


@pytest.mark.parametrize(
    ("state", "plan", "error", "words"),
    [
        (IDLE, {"stable": 3, "canary": 2}, Conflict, "points to 1"),
        (IDLE, {"label": "canary"}, Conflict, "points to nothing"),
        (IDLE, {"canary": 9}, NotFound, "versions 1 to 3"),
        (IDLE, {"canary": 1}, InvalidInput, "from 1 to 1"),
        (IDLE, {"steps": ()}, InvalidInput, "none"),
        (replace(IDLE, retired=frozenset({2})), {}, Conflict, "retire --undo"),
    ],
)
def test_a_rollout_begins_where_the_label_points(
    state: TemplateState, plan: dict[str, Any], error: type[Exception], words: str
) -> None:
    """To a version that is there and takes jobs."""
    with pytest.raises(error, match=words):
        moves.start(state, make_plan(**plan), rollout_id=ID, now=1.0)


def test_a_rollout_begins_with_its_gates_and_no_jobs() -> None:
    """The label stays until it is promoted."""
    move = moves.start(IDLE, make_plan(), rollout_id=ID, now=7.0)
    rollout = move.state.rollout
    assert rollout == Rollout(
        id=ID, plan=make_plan(), phase=Phase.GATES, step=-1, started_at=7.0, since=7.0
    )
    assert rollout.weight == 0
    assert move.state.labels == IDLE.labels
    assert (move.action, move.was, move.now) == (Action.START, "1", "2")


def test_a_rollout_goes_through_all_of_its_steps() -> None:
    """Warming holds the weight, baking takes the next; the findings and the time are new."""
    state = moves.start(IDLE, make_plan(), rollout_id=ID, now=1.0).state
    places = [(Phase.WARMING, -1), (Phase.BAKING, 0)]
    for step in range(1, 4):
        places += [(Phase.WARMING, step - 1), (Phase.BAKING, step)]
    seen = []
    for now, (phase, step) in enumerate(places, 10):
        move = advance(state, phase, step, now=float(now))
        state = move.state
        assert state.rollout is not None
        assert (state.rollout.since, state.rollout.started_at) == (now, 1.0)
        assert state.rollout.findings == (FINDING,)
        seen.append((move.action, move.was, move.now))
    assert seen[:3] == [
        (Action.PHASE, "gates", "warming"),
        (Action.STEP, "0 %", "1 %"),
        (Action.PHASE, "baking", "warming"),
    ]
    assert state.rollout is not None
    assert state.rollout.last_step
    promoted = moves.promote(state)
    assert promoted.state.labels == {"production": 2, "next": 3}
    assert promoted.state.rollout is None
    assert (promoted.was, promoted.now) == ("production=1", "production=2")


@pytest.mark.parametrize(
    ("phase", "step"),
    [
        (Phase.GATES, -1),
        (Phase.WARMING, 0),
        (Phase.WARMING, 2),
        (Phase.BAKING, 1),
        (Phase.BAKING, 2),
        (Phase.BAKING, 3),
    ],
)
def test_no_step_is_left_out(phase: Phase, step: int) -> None:
    """From baking at the second step only to warming for the third."""
    with pytest.raises(InvalidInput, match="gates, then warming and baking"):
        advance(ACTIVE, phase, step)


def test_after_the_last_step_is_no_warming() -> None:
    """It is promoted or aborted."""
    last = replace(IDLE, rollout=make_rollout(step=3))
    with pytest.raises(InvalidInput):
        advance(last, Phase.WARMING, 3)


def test_a_paused_rollout_goes_on_by_nobody_but_people() -> None:
    """Its weight holds; promote and abort are open."""
    paused = moves.pause(ACTIVE)
    assert paused is not None
    with pytest.raises(Conflict, match="People decide"):
        advance(paused.state, Phase.WARMING, 1)
    rollout = paused.state.rollout
    assert rollout is not None
    assert (rollout.weight, rollout.since) == (ROLLOUT.weight, ROLLOUT.since)
    assert moves.promote(paused.state).state.labels["production"] == 2
    assert moves.abort(paused.state).state.labels["production"] == 1


def test_aborting_leaves_the_label() -> None:
    """And says what share it took back."""
    move = moves.abort(ACTIVE)
    assert move.state == replace(IDLE, revision=6)
    assert (move.was, move.now) == ("10 %", "0 %")


@pytest.mark.parametrize("act", [moves.pause, moves.resume, moves.promote, moves.abort])
def test_without_a_rollout_there_is_none_to_lead(act: Any) -> None:
    """Exit status 4, with what to do; for a worker, which expects one, it is a conflict."""
    with pytest.raises(NotFound, match="rollout start acme/triage") as caught:
        act(IDLE)
    assert caught.value.exit_code == 4
    with pytest.raises(Conflict, match="it is over"):
        act(IDLE, expect=ROLLOUT)


@pytest.mark.parametrize(
    "other",
    [
        replace(ROLLOUT, id="f" * 16),
        replace(ROLLOUT, step=0),
        replace(ROLLOUT, paused=True),
        replace(ROLLOUT, findings=()),
        replace(ROLLOUT, since=1.0),
    ],
)
@pytest.mark.parametrize("act", [moves.pause, moves.promote, moves.abort])
def test_whoever_decided_on_another_sight_is_refused(act: Any, other: Rollout) -> None:
    """Any difference counts, also in what the gates found."""
    with pytest.raises(Conflict, match="has moved"):
        act(ACTIVE, expect=other)
    with pytest.raises(Conflict, match="has moved"):
        advance(ACTIVE, Phase.WARMING, 1, expect=other)
    assert act(ACTIVE, expect=ROLLOUT) is not None


def test_findings_that_do_not_fit_are_cut() -> None:
    """A gate's words never keep a rollout from being written."""
    long = Finding(gate="g", outcome=FINDING.outcome, message="x" * 10_000)
    rollout = advance(ACTIVE, Phase.WARMING, 1, findings=[long]).state.rollout
    assert rollout is not None
    assert len(rollout.findings[0].message) < 1000
