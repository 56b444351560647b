"""Rollouts in a real Redis: each move is one compare-and-set with its entry in the journal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from contract import keys
from contract.errors import CodecError, Conflict, InvalidInput, NotFound, RedisRefused
from contract.ids import parse_address
from contract.redis_client import Client
from contract.settings import Settings
from templates import moving
from templates.moving import somebody
from templates.reading import Sight
from templates.registry import Registry
from templates.rollouts import moves
from templates.rollouts.control import Rollouts
from templates.rollouts.journal import replay
from templates.rollouts.moves import Move
from templates.rollouts.rollout import Phase, Rollout
from tests.support.published import COMPILED, MODEL, make_spec
from tests.support.redis_state import out_of_memory
from tests.support.rollouts import FINDING, make_plan

HERE = ("acme", "triage")
LABELS, JOURNAL = keys.labels(*HERE), keys.journal(*HERE)
ROLLOUT, REVISION = keys.rollout(*HERE), keys.revision(*HERE)


@pytest.fixture(autouse=True)
def published(registry: Registry) -> Registry:
    """acme/triage with three versions; production is the first."""
    for text in ("One: ", "Two: ", "Three: "):
        registry.publish(make_spec(text=text), COMPILED, MODEL, who="ann", why="first words")
    return registry


@pytest.fixture
def rollouts(registry: Registry) -> Rollouts:
    """A tenant's admin's."""
    return Rollouts(registry)


@pytest.fixture
def conducted(worker_client: Client, worker_settings: Settings) -> Rollouts:
    """A worker's."""
    return Rollouts(Registry(worker_client, worker_settings))


def start(rollouts: Rollouts, **plan: Any) -> Rollout:
    return rollouts.start(*HERE, make_plan(**plan), who="ann")


def baking(conducted: Rollouts, rollout: Rollout, step: int = 0) -> Rollout:
    """The rollout at one of its steps, led there by a worker."""
    for number in range(-1, step):
        for phase, place in ((Phase.WARMING, number), (Phase.BAKING, number + 1)):
            rollout = conducted.advance(
                *HERE, expect=rollout, phase=phase, step=place, findings=[FINDING], who="w1"
            )
    return rollout


def state_is_replayed(registry: Registry) -> bool:
    return replay(registry.journal(*HERE)) == registry.sight(*HERE).state


def snapshot(client: Any) -> dict[bytes, Any]:
    """All that is in Redis."""
    return {key: client.dump(key) for key in client.keys("pq:acme:*")}


# --- a rollout's life


def test_from_start_to_promotion(rollouts: Rollouts, conducted: Rollouts, client: Any) -> None:
    """An admin starts, a worker leads it through all steps and promotes; the journal says so."""
    begun = start(rollouts)
    assert rollouts.get(*HERE) == begun
    assert conducted.active("acme") == {"triage": begun}
    last = baking(conducted, begun, step=3)
    assert (last.weight, last.findings) == (10_000, (FINDING,))
    assert conducted.promote(*HERE, expect=last, who="w1", why="all gates pass") == last
    assert (rollouts.get(*HERE), rollouts.active("acme")) == (None, {})
    assert rollouts.registry.labels(*HERE) == {"production": 2}
    entries = rollouts.journal(*HERE)
    assert [(e.action, e.who) for e in entries[:4]] == [
        *[("publish", "ann")] * 3,
        ("start", "ann"),
    ]
    assert [(e.action, e.was, e.now) for e in entries[4:7]] == [
        ("phase", "gates", "warming"),
        ("step", "0 %", "1 %"),
        ("phase", "baking", "warming"),
    ]
    assert (entries[-1].action, entries[-1].who, entries[-1].why) == (
        "promote",
        "w1",
        "all gates pass",
    )
    assert [entry.revision for entry in entries] == list(range(1, len(entries) + 1))
    assert int(client.get(REVISION)) == len(entries)
    assert state_is_replayed(rollouts.registry)


def test_times_are_the_servers_when_the_move_is_made(
    rollouts: Rollouts, conducted: Rollouts
) -> None:
    """A phase begins with its entry, not when somebody decided on it; the start stays."""
    begun = start(rollouts)
    [entry] = rollouts.registry.history(*HERE, 1)
    assert begun.started_at == begun.since
    assert 0 <= begun.since - entry.at < 0.05
    now = baking(conducted, begun)
    [entry] = rollouts.registry.history(*HERE, 1)
    assert now.started_at == begun.started_at
    assert 0 <= now.since - entry.at < 0.05
    assert rollouts.get(*HERE) == now


def test_aborting_takes_all_jobs_back(rollouts: Rollouts, conducted: Rollouts) -> None:
    """The label is where it was, and another rollout may begin."""
    first = baking(conducted, start(rollouts), step=2)
    assert rollouts.abort(*HERE, who="ann", why="too dear") == first
    target = rollouts.registry.target(parse_address("acme/triage"))
    assert (target.stable.version, target.canary, target.rollout) == (1, None, None)
    second = start(rollouts, canary=3)
    assert second.id != first.id
    assert state_is_replayed(rollouts.registry)


def test_pause_and_resume(rollouts: Rollouts, conducted: Rollouts) -> None:
    """Twice is once; a worker that meant to go on is refused."""
    going = baking(conducted, start(rollouts))
    paused = rollouts.pause(*HERE, who="ann", why="a look")
    assert paused == replace(going, paused=True)
    before = len(rollouts.journal(*HERE))
    assert rollouts.pause(*HERE) == paused
    assert len(rollouts.journal(*HERE)) == before
    for expect in (going, paused):
        with pytest.raises(Conflict):
            conducted.advance(
                *HERE, expect=expect, phase=Phase.WARMING, step=0, findings=(), who="w1"
            )
    assert rollouts.resume(*HERE) == going


def test_people_sign_with_their_name(registry: Registry) -> None:
    """user@host unless they say otherwise; what cannot be written is refused."""
    registry.set_label(*HERE, "next", 2)
    [entry] = registry.history(*HERE, 1)
    assert (entry.who, entry.why) == (somebody(), "")
    assert "@" in entry.who
    for who, why in (("", ""), ("x" * 500, ""), ("ann", "\ud800"), ("ann", "x" * 5000)):
        with pytest.raises(InvalidInput, match="journal"):
            registry.set_label(*HERE, "next", 1, who=who, why=why)


# --- what a rollout holds


def test_the_label_and_both_versions_are_held(rollouts: Rollouts, registry: Registry) -> None:
    """Conflicts that name the way out; nothing is written."""
    start(rollouts)
    before = registry.journal(*HERE)
    for act in (
        lambda: registry.set_label(*HERE, "production", 3),
        lambda: registry.set_label(*HERE, "production", 2, expect=1),
        lambda: registry.remove_label(*HERE, "production"),
        lambda: registry.retire(*HERE, 2),
        lambda: registry.retire(*HERE, 1),
    ):
        with pytest.raises(Conflict, match="'abort'"):
            act()
    with pytest.raises(Conflict, match="has a rollout already"):
        start(rollouts, canary=3)
    assert registry.journal(*HERE) == before
    registry.set_label(*HERE, "next", 3)
    rollouts.abort(*HERE)
    registry.set_label(*HERE, "production", 3)


def test_a_rollout_of_another_label(rollouts: Rollouts, registry: Registry) -> None:
    """Only jobs by that label are split; production goes its own way."""
    registry.set_label(*HERE, "beta", 2)
    begun = start(rollouts, label="beta", stable=2, canary=3)
    assert registry.target(parse_address("acme/triage@beta")).rollout == begun
    assert registry.target(parse_address("acme/triage")).rollout is None
    registry.set_label(*HERE, "production", 3)
    assert rollouts.promote(*HERE) == begun
    assert registry.labels(*HERE) == {"beta": 3, "production": 3}


def test_a_sticky_key_that_no_job_can_have_is_refused(rollouts: Rollouts) -> None:
    """The schema says which variables there are."""
    with pytest.raises(InvalidInput, match=r"customer.*one of ticket"):
        start(rollouts, sticky_key="customer")
    start(rollouts, sticky_key="ticket")


def test_what_is_not_there_is_not_found(rollouts: Rollouts) -> None:
    """A template, a version, a rollout."""
    for act in (
        lambda: rollouts.start("acme", "triag", make_plan()),
        lambda: rollouts.start(*HERE, make_plan(canary=9)),
        lambda: rollouts.promote(*HERE),
        lambda: rollouts.abort(*HERE),
        lambda: rollouts.abort("acme", "triag"),
    ):
        with pytest.raises(NotFound):
            act()


# --- compare and set


def _racing(registry: Registry, other: Callable[[], object]) -> Callable[[Sight], Move | None]:
    """Decides to point `next` to 3, while somebody else is faster the first time."""
    sights: list[Sight] = []

    def decide(sight: Sight) -> Move | None:
        sights.append(sight)
        if len(sights) == 1:
            other()
        return moves.set_label(sight.state, "next", 3, expect=None)

    return decide


def test_a_lost_race_is_decided_anew(registry: Registry) -> None:
    """When what it depends on still holds it is made; else the error is of the state as it is."""
    registry.move(
        *HERE, _racing(registry, lambda: registry.set_label(*HERE, "other", 2)), who="ann"
    )
    assert registry.labels(*HERE) == {"next": 3, "other": 2, "production": 1}
    registry.remove_label(*HERE, "next")
    with pytest.raises(Conflict, match="points to 2"):
        registry.move(*HERE, _racing(registry, lambda: registry.set_label(*HERE, "next", 2)))
    assert registry.labels(*HERE)["next"] == 2
    assert state_is_replayed(registry)


@pytest.mark.unrestricted("Redis holds the functions as they are; this breaks one")
def test_without_the_compare_and_set_the_journal_lies(
    client: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the script takes what was decided on an old sight."""
    source = moving.script_source("move")
    broken = source.replace("if not as_decided() then", "if false then")
    assert broken != source
    for script, labels in ((source, {"next": 2}), (broken, {"next": 3})):
        monkeypatch.setattr(
            moving, "script_source", lambda name, s=script: s if name == "move" else ""
        )
        registry = Registry(client, settings)
        decide = _racing(registry, lambda r=registry: r.set_label(*HERE, "next", 2))
        if script == source:
            with pytest.raises(Conflict):
                registry.move(*HERE, decide)
        else:
            registry.move(*HERE, decide)
        assert {"production": 1, **labels} == registry.labels(*HERE)
        if script == source:
            assert state_is_replayed(registry)
            registry.remove_label(*HERE, "next")
    with pytest.raises(CodecError, match="gap"):
        replay(registry.journal(*HERE))


def test_a_repeated_call_moves_once(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client repeats what it lost the reply of: it is told what it did the first time."""
    run, calls = registry._scripts.run, []

    def twice(script: str, **given: Any) -> Any:
        first = run(script, **given)
        again = run(script, **given)
        calls.append((first, again))
        return again

    monkeypatch.setattr(registry._scripts, "run", twice)
    begun = start(Rollouts(registry))
    registry.set_label(*HERE, "next", 2, expect=None)
    assert len(calls) == 2
    assert all(first == again and first[0] == b"done" for first, again in calls)
    assert begun == registry.rollout(*HERE)
    assert [entry.action for entry in registry.journal(*HERE)[3:]] == ["start", "label"]


def test_a_repeated_call_finds_its_move_below_others(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else moved between the call and its repetition."""
    run, between = registry._scripts.run, [True]

    def interrupted(script: str, **given: Any) -> Any:
        first = run(script, **given)
        if between.pop() if between else False:
            registry.set_label(*HERE, "other", 3)
            return run(script, **given)
        return first

    monkeypatch.setattr(registry._scripts, "run", interrupted)
    registry.set_label(*HERE, "next", 2, expect=None)
    assert registry.labels(*HERE) == {"next": 2, "other": 3, "production": 1}
    assert state_is_replayed(registry)


def test_findings_are_noted_without_a_move(rollouts: Rollouts, conducted: Rollouts) -> None:
    """No entry, no revision; refused when the rollout is another by then."""
    begun = start(rollouts)
    before = rollouts.registry.sight(*HERE).state
    noted = conducted.note(*HERE, expect=begun, findings=[FINDING])
    assert noted == replace(begun, findings=(FINDING,)) == rollouts.get(*HERE)
    after = rollouts.registry.sight(*HERE).state
    assert after == replace(before, rollout=noted)
    assert conducted.note(*HERE, expect=begun, findings=[]) is None
    with pytest.raises(Conflict):
        conducted.promote(*HERE, expect=begun, who="w1")
    assert rollouts.get(*HERE) == noted
    rollouts.abort(*HERE)
    assert conducted.note(*HERE, expect=noted, findings=[]) is None
    assert rollouts.get(*HERE) is None


def test_a_note_that_comes_too_late_brings_nothing_back(
    rollouts: Rollouts, conducted: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollout ends after it was looked at and before the note is written."""
    begun = start(rollouts)
    look = conducted.registry.sight

    def and_then_it_ends(tenant: str, name: str) -> Sight:
        sight = look(tenant, name)
        rollouts.abort(*HERE)
        return sight

    monkeypatch.setattr(conducted.registry, "sight", and_then_it_ends)
    assert conducted.note(*HERE, expect=begun, findings=[FINDING]) is None
    assert rollouts.get(*HERE) is None


def test_a_note_between_sight_and_move_is_not_lost(rollouts: Rollouts, conducted: Rollouts) -> None:
    """It has no revision, and yet the move is decided anew."""
    begun = start(rollouts)
    expected: list[Rollout | None] = []

    def decide(sight: Sight) -> Move | None:
        if not expected:
            conducted.note(*HERE, expect=begun, findings=[FINDING])
        expected.append(sight.state.rollout)
        return moves.pause(sight.state)

    rollouts.registry.move(*HERE, decide)
    assert expected == [begun, replace(begun, findings=(FINDING,))]
    assert rollouts.get(*HERE) == replace(begun, findings=(FINDING,), paused=True)


# --- what is odd in Redis


def test_a_template_that_is_older_than_its_journal(registry: Registry, client: Any) -> None:
    """The first entry tells all there was, and moves count from there."""
    registry.set_label(*HERE, "old", 2)
    registry.retire(*HERE, 3)
    client.delete(REVISION, JOURNAL)
    registry.set_label(*HERE, "old", 1)
    assert state_is_replayed(registry)
    [entry] = registry.journal(*HERE)
    assert entry.change["versions"] == [1, 2, 3]


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff", b"x" * 300_000, b'{"id": "planted"}'])
def test_a_rollout_that_cannot_be_read(
    rollouts: Rollouts, registry: Registry, client: Any, text: bytes
) -> None:
    """It is named and not quoted, hides no other, and can be ended."""
    registry.publish(make_spec(name="tags"), COMPILED, MODEL)
    registry.publish(make_spec(name="tags", text="Two: "), COMPILED, MODEL)
    other = rollouts.start("acme", "tags", make_plan())
    start(rollouts)
    client.set(ROLLOUT, text)
    assert rollouts.active("acme") == {"tags": other}
    for act in (
        lambda: rollouts.get(*HERE),
        lambda: registry.set_label(*HERE, "next", 2),
        lambda: rollouts.promote(*HERE),
        lambda: registry.target(parse_address("acme/triage")),
    ):
        with pytest.raises(CodecError, match="rollout abort") as caught:
            act()
        assert "planted" not in str(caught.value)
    assert registry.target(parse_address("acme/triage@2")).stable.version == 2
    assert rollouts.abort(*HERE, who="ann") is None
    assert rollouts.get(*HERE) is None
    assert state_is_replayed(registry)
    start(rollouts)


def test_an_entry_that_cannot_be_read_is_left_out(registry: Registry, client: Any) -> None:
    """The others are shown; to play them would be to guess."""
    client.xadd(JOURNAL, {"revision": "x"})
    registry.set_label(*HERE, "next", 2)
    assert [e.action for e in registry.journal(*HERE)] == [*["publish"] * 3, "label"]
    assert [e.action for e in registry.history(*HERE, 2)] == ["label"]


def test_a_long_journal_is_read_in_pages(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left out or read twice."""
    monkeypatch.setattr("templates.reading._ENTRIES_AT_ONCE", 2)
    for number in (2, 1, 3, 2):
        registry.set_label(*HERE, "next", number)
    assert [entry.revision for entry in registry.journal(*HERE)] == [1, 2, 3, 4, 5, 6, 7]


def test_a_full_redis_moves_nothing(rollouts: Rollouts, registry: Registry, client: Any) -> None:
    """No half of a move is written."""
    start(rollouts)
    registry.retire(*HERE, 3)
    before = snapshot(client)
    with out_of_memory(client):
        for act in (
            lambda: registry.set_label(*HERE, "next", 2),
            lambda: registry.retire(*HERE, 3, undo=True),
            lambda: rollouts.promote(*HERE),
            lambda: rollouts.pause(*HERE),
        ):
            with pytest.raises(RedisRefused, match="maxmemory"):
                act()
    assert snapshot(client) == before


def test_a_journal_that_takes_no_more_stops_all_moves(
    rollouts: Rollouts, registry: Registry, client: Any
) -> None:
    """Nothing is moved that cannot be told."""
    start(rollouts)
    client.xadd(JOURNAL, {"end": "1"}, id="18446744073709551615-18446744073709551615")
    before = snapshot(client)
    for act in (
        lambda: registry.set_label(*HERE, "next", 2),
        lambda: rollouts.promote(*HERE),
        lambda: registry.retire(*HERE, 3),
        lambda: registry.publish(make_spec(text="Four: "), COMPILED, MODEL),
    ):
        with pytest.raises(RedisRefused):
            act()
    assert snapshot(client) == before


def test_the_set_of_rollouts_follows(rollouts: Rollouts, client: Any) -> None:
    """A name that is none, or has no rollout, is nobody's."""
    start(rollouts)
    assert client.smembers(keys.rollouts("acme")) == {b"triage"}
    client.sadd(keys.rollouts("acme"), b"\xff", b"../x", b"nothing")
    assert list(rollouts.active("acme")) == ["triage"]
    rollouts.promote(*HERE)
    assert b"triage" not in client.smembers(keys.rollouts("acme"))


def test_what_is_stored_is_json(rollouts: Rollouts, client: Any) -> None:
    """Whole and with its times, as other tools may read it."""
    begun = start(rollouts)
    stored = json.loads(client.get(ROLLOUT))
    assert (stored["id"], stored["phase"], stored["plan"]["canary"]) == (begun.id, "gates", 2)
    assert stored["since"] == begun.since
