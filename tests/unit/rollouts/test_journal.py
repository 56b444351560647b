"""Entries of a journal: read strictly, and played again to exactly the state there was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from contract.errors import CodecError, Conflict, InvalidInput, NotFound
from templates.rollouts import moves
from templates.rollouts.journal import Entry, end_of_rollout, read_entry, replay, stable_since
from templates.rollouts.moves import Move, TemplateState
from templates.rollouts.plain import to_text
from templates.rollouts.rollout import Phase
from tests.support.rollouts import entry_of, make_plan, make_rollout

FIELDS = {
    b"revision": b"7",
    b"who": b"ann@desk",
    b"action": b"label",
    b"from": b"production=1",
    b"to": b"production=2",
    b"why": b"better",
    b"change": b'{"labels":{"production":2}}',
    b"token": b"0",
}


def _wish(number: int, state: TemplateState) -> Move | None:
    """One of many things that somebody may want, allowed or not."""
    version, rollout = number % 4 + 1, state.rollout
    plan = make_plan(stable=state.labels.get("production", 1), canary=version)
    wishes: list[Any] = [
        lambda: moves.publish(state),
        lambda: moves.set_label(state, ("production", "next")[number % 2], version),
        lambda: moves.remove_label(state, ("production", "next")[number % 2]),
        lambda: moves.retire(state, version),
        lambda: moves.retire(state, version, undo=True),
        lambda: moves.start(state, plan, rollout_id=f"{number:016x}", now=number / 8),
        lambda: moves.pause(state),
        lambda: moves.resume(state),
        lambda: moves.promote(state),
        lambda: moves.abort(state),
        lambda: (
            rollout
            and moves.advance(
                state,
                expect=rollout,
                phase=Phase.BAKING if rollout.phase is Phase.WARMING else Phase.WARMING,
                step=rollout.step + (rollout.phase is Phase.WARMING),
                findings=(),
                now=number / 8,
            )
        ),
    ]
    made: Move | None = wishes[number % len(wishes)]()
    return made


@given(st.lists(st.integers(0, 10_000), max_size=60))
def test_a_journal_replays_to_exactly_the_state(numbers: list[int]) -> None:
    """After any moves that were allowed, and after each of them."""
    state, entries = TemplateState(), []
    for number in numbers:
        try:
            move = _wish(number, state)
        except (Conflict, NotFound, InvalidInput):
            continue
        if move is not None:
            entries.append(entry_of(state, move))
            state = move.state
            assert replay(entries) == state


def test_a_template_older_than_its_journal_is_told_whole_in_the_first_entry() -> None:
    """Labels and versions of a release that kept no journal."""
    old = TemplateState(
        versions=frozenset({1, 2, 3}),
        labels={"production": 2, "old": 1},
        retired=frozenset({3}),
    )
    move = moves.set_label(old, "old", 2)
    assert move is not None
    assert replay([entry_of(old, move)]) == move.state


def test_a_gap_is_no_journal() -> None:
    """One entry less would be another state: said, not guessed."""
    state, entries = TemplateState(), []
    for _ in range(3):
        move = moves.publish(state)
        entries.append(entry_of(state, move))
        state = move.state
    assert replay(entries) == state
    for missing in (entries[1:], [entries[0], entries[2]], [*entries, entries[2]]):
        with pytest.raises(CodecError, match="gap"):
            replay(missing)


def test_an_entry_tells_when_and_who() -> None:
    """Its id is the time; `to_dict` has the names of the fields."""
    entry = read_entry(b"1790000000125-3", FIELDS)
    assert entry.at == 1_790_000_000.125
    assert entry.to_dict() == {
        "id": "1790000000125-3",
        "at": 1_790_000_000.125,
        "revision": 7,
        "who": "ann@desk",
        "action": "label",
        "from": "production=1",
        "to": "production=2",
        "why": "better",
        "change": {"labels": {"production": 2}},
    }


@pytest.mark.parametrize(
    "change",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"labels": []}',
        b'{"labels": {"A": 1}}',
        b'{"labels": {"planted-\\u0000": 1}}',
        b'{"labels": {"x": "1"}}',
        b'{"labels": {"x": 0}}',
        b'{"labels": {"x": true}}',
        b'{"retired": {"0": true}}',
        b'{"retired": {"x": true}}',
        b'{"retired": {"1": 1}}',
        b'{"versions": {}}',
        b'{"versions": [0]}',
        b'{"versions": ["1"]}',
        b'{"rollout": 1}',
        b'{"rollout": {"id": "planted"}}',
        b'{"labels": {"x": 1}, "rollout": []}',
    ],
)
def test_a_change_that_cannot_be_played_is_refused(change: bytes) -> None:
    """As an error of ours, which quotes nothing."""
    with pytest.raises(CodecError) as caught:
        read_entry(b"1-0", {**FIELDS, b"change": change})
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry_id", "fields"),
    [
        (b"x", FIELDS),
        (b"1", FIELDS),
        (b"99999999999999999999-0", FIELDS),
        (b"1-0", {**FIELDS, b"revision": b"0"}),
        (b"1-0", {**FIELDS, b"revision": b"-1"}),
        (b"1-0", {**FIELDS, b"revision": b"\xff"}),
        (b"1-0", {**FIELDS, b"revision": b"9" * 5000}),
        (b"1-0", {name: value for name, value in FIELDS.items() if name != b"who"}),
        (b"1-0", {}),
    ],
)
def test_an_entry_that_is_none_is_refused(entry_id: bytes, fields: dict[bytes, bytes]) -> None:
    """Fields are missing or are no numbers."""
    with pytest.raises(CodecError):
        read_entry(entry_id, fields)


def test_the_end_of_a_rollout_is_found_among_others() -> None:
    """By its id; without one it is that of the last."""
    state = TemplateState(versions=frozenset({1, 2}), labels={"production": 1})
    entries: list[Entry] = []

    def do(move: Move | None) -> None:
        nonlocal state
        assert move is not None
        entries.append(entry_of(state, move))
        state = move.state

    assert end_of_rollout(entries, None) is None
    do(moves.start(state, make_plan(), rollout_id="a" * 16, now=1.0))
    assert end_of_rollout(entries, "a" * 16) is None
    do(moves.pause(state))
    do(moves.abort(state))
    do(moves.set_label(state, "next", 2))
    do(moves.start(state, make_plan(), rollout_id="b" * 16, now=2.0))
    do(moves.promote(state))
    aborted, promoted = end_of_rollout(entries, "a" * 16), end_of_rollout(entries, "b" * 16)
    assert aborted is not None
    assert promoted is not None
    assert (aborted.action, promoted.action) == ("abort", "promote")
    assert end_of_rollout(entries, None) == promoted
    assert end_of_rollout(entries, "c" * 16) is None


@pytest.mark.parametrize(("steps", "since"), [((5000, 10_000), 7.0), ((10_000,), 6.0)])
def test_a_stable_version_counts_since_the_first_step_or_since_it_waits_for_it(
    steps: tuple[int, ...], since: float
) -> None:
    """Of this rollout, whatever was moved before, between and later."""
    entries: list[Entry] = []
    state = TemplateState(revision=3, versions=frozenset({1, 2}), labels={"production": 1})
    plan = make_plan(steps=steps)

    def do(move: Move | None) -> None:
        nonlocal state
        assert move is not None
        entries.append(entry_of(state, move))
        state = move.state

    def lead(rollout_id: str, at: float) -> None:
        do(moves.start(state, plan, rollout_id=rollout_id, now=at))
        for number, (phase, step) in enumerate(
            [(Phase.WARMING, -1), (Phase.BAKING, 0), (Phase.WARMING, 0)][: 1 + len(steps)], 1
        ):
            rollout = state.rollout
            assert rollout is not None
            do(
                moves.advance(
                    state, expect=rollout, phase=phase, step=step, findings=(), now=at + number
                )
            )
            do(moves.pause(state))
            do(moves.resume(state))

    lead("a" * 16, 1.0)
    do(moves.abort(state))
    do(moves.start(state, plan, rollout_id="b" * 16, now=4.0))
    begun = state.rollout
    assert begun is not None
    assert stable_since(entries, begun) is None
    do(moves.abort(state))
    lead("c" * 16, 5.0)
    assert state.rollout is not None
    assert stable_since(entries, state.rollout) == since


def test_an_entry_holds_the_longest_rollout() -> None:
    """A change is not refused for being as long as a rollout may be."""
    rollout = make_rollout()
    state = TemplateState(versions=frozenset({1, 2}), labels={"production": 1}, rollout=rollout)
    long = replace(rollout, findings=rollout.findings * 100)
    move = replace(moves.abort(state), state=replace(state, rollout=long, revision=1))
    assert len(to_text(long)) > 5000
    assert replay([entry_of(TemplateState(), move)]).rollout == long
