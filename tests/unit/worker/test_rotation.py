"""Turns of tenants and of their templates, whatever the number of queues."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from worker.rotation import OUT_OF_TURN, OUT_OF_TURN_S, TenantRotation


def serve(rotation: TenantRotation, backlog: Counter[str], turns: int) -> list[str]:
    """Take `turns` messages as Redis would: each from the first queue that has one."""
    taken = []
    for _ in range(turns):
        for queue in rotation.consume(10**6):
            if backlog[queue]:
                backlog[queue] -= 1
                taken.append(rotation.rotate(queue))
                break
    return taken


def rotation_of(*queues: str) -> TenantRotation:
    rotation = TenantRotation()
    rotation.update(queues)
    return rotation


def test_tenant_with_many_templates_has_one_turn_for_anothers_one() -> None:
    """A hundred queues of one tenant against one: every other turn is the other's."""
    many = [f"acme/t{n}/d" for n in range(100)]
    rotation = rotation_of(*many, "globex/only/d")
    backlog = Counter(dict.fromkeys(many, 50) | {"globex/only/d": 50})
    taken = serve(rotation, backlog, 100)
    assert Counter(queue.split("/")[0] for queue in taken) == {"acme": 50, "globex": 50}
    # And its own turns go round its templates.
    assert max(Counter(q for q in taken if q.startswith("acme")).values()) == 1


def test_deep_queue_lets_a_single_job_in_at_the_next_turn() -> None:
    """Case Q13: one tenant 10,000 deep; another's one job is the next to be taken."""
    rotation = rotation_of("acme/a/d", "globex/b/d")
    backlog = Counter({"acme/a/d": 10_000})
    serve(rotation, backlog, 500)
    backlog["globex/b/d"] = 1
    assert "globex/b/d" in serve(rotation, backlog, 1)


def test_new_queue_is_served_next_and_the_others_keep_their_place() -> None:
    """A template published now does not send those back that waited longest."""
    rotation = rotation_of("a/1/d", "a/2/d", "b/1/d")
    rotation.rotate("a/1/d")
    assert rotation.consume(9) == ["b/1/d", "a/2/d", "a/1/d"]
    rotation.update(["a/1/d", "a/2/d", "a/3/d", "b/1/d", "c/1/d"])
    assert rotation.consume(9) == ["c/1/d", "b/1/d", "a/3/d", "a/2/d", "a/1/d"]
    rotation.update(["a/1/d", "c/1/d"])
    assert rotation.consume(9) == ["c/1/d", "a/1/d"]


def test_queue_that_is_gone_changes_nothing() -> None:
    """Its last message may arrive after its template was dropped."""
    rotation = rotation_of("a/1/d")
    assert rotation.rotate("a/9/d") == "a/9/d"
    assert rotation.rotate("z/9/d") == "z/9/d"
    assert rotation.consume(9) == ["a/1/d"]


@given(
    st.lists(
        st.one_of(
            st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 4))),
            st.tuples(st.sampled_from("abc"), st.integers(0, 4)),
        ),
        max_size=30,
    )
)
def test_every_queue_is_there_once_whatever_happened(moves: list[object]) -> None:
    """Updates and turns in any order: nothing is lost and nothing doubled."""
    rotation, wanted = TenantRotation(), set()
    for move in moves:
        if isinstance(move, set):
            wanted = {f"{tenant}/{n}/d" for tenant, n in move}
            rotation.update(sorted(wanted))
        elif isinstance(move, tuple):
            rotation.rotate(f"{move[0]}/{move[1]}/d")
        order = rotation.consume(10**6)
        assert len(order) == len(set(order))
        assert set(order) == wanted


@pytest.mark.parametrize("tenants", [2, 7])
def test_no_tenant_waits_for_more_than_one_round(tenants: int) -> None:
    """With every queue full, each tenant is served once in as many turns as there are tenants."""
    queues = [f"t{t}/q{q}/d" for t in range(tenants) for q in range(t + 1)]
    rotation = rotation_of(*queues)
    taken = serve(rotation, Counter(dict.fromkeys(queues, 100)), 10 * tenants)
    for start in range(0, len(taken), tenants):
        round_ = {queue.split("/")[0] for queue in taken[start : start + tenants]}
        assert len(round_) == tenants


# --- warm queues first


class Clock:
    """Time that passes when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def first_with_messages(order: list[str], backlog: Counter[str]) -> str | None:
    """Where Redis takes a message from."""
    return next((queue for queue in order if backlog[queue]), None)


def test_warm_queues_of_a_tenant_come_first() -> None:
    """In their own order, and the others after them in theirs; other tenants keep their places."""
    rotation = rotation_of("a/1/d", "a/2/d", "a/3/d", "a/4/d", "b/1/d")
    rotation.prefer({"a/4/d", "a/2/d"})
    assert rotation.consume(9) == ["a/2/d", "a/4/d", "a/1/d", "a/3/d", "b/1/d"]
    assert rotation.consume(2) == ["a/2/d", "a/4/d"]
    rotation.prefer(frozenset())
    assert rotation.consume(9) == ["a/1/d", "a/2/d", "a/3/d", "a/4/d", "b/1/d"]


def test_a_warm_queue_is_preferred_up_to_the_bound() -> None:
    """With two full queues: OUT_OF_TURN warm jobs, then the cold queue's turn. After it the warm
    queue's own turn comes first, which costs it nothing."""
    rotation = rotation_of("a/cold/d", "a/warm/d")
    rotation.prefer({"a/warm/d"})
    backlog = Counter({"a/cold/d": 99, "a/warm/d": 999})
    out_of_turn = ["a/warm/d"] * OUT_OF_TURN
    assert serve(rotation, backlog, OUT_OF_TURN + 1) == [*out_of_turn, "a/cold/d"]
    for _ in range(3):
        taken = serve(rotation, backlog, OUT_OF_TURN + 2)
        assert taken == ["a/warm/d", *out_of_turn, "a/cold/d"]


def test_a_warm_queue_is_preferred_for_so_many_seconds() -> None:
    """Where jobs are slow, the cold queue's turn comes after OUT_OF_TURN_S."""
    clock = Clock()
    rotation = TenantRotation(clock=clock)
    rotation.update(["a/cold/d", "a/warm/d"])
    rotation.prefer({"a/warm/d"})
    backlog = Counter({"a/cold/d": 9, "a/warm/d": 99})
    taken = []
    for _ in range(5):
        taken += serve(rotation, backlog, 1)
        clock.now += OUT_OF_TURN_S
    # The third is the warm queue's own turn.
    assert taken == ["a/warm/d", "a/cold/d", "a/warm/d", "a/warm/d", "a/cold/d"]


def test_jobs_in_turn_are_not_counted_against_warm_queues() -> None:
    """A warm queue that is served alone, the cold ones being looked into and empty, spends nothing
    of the preference once a cold one fills."""
    rotation = rotation_of("a/warm/d", "a/cold/d")
    rotation.prefer({"a/warm/d"})
    backlog = Counter({"a/warm/d": 100})
    serve(rotation, backlog, 1)  # first in turn: nothing was passed over
    backlog["a/cold/d"] = 1
    taken = serve(rotation, backlog, OUT_OF_TURN + 1)
    assert taken.index("a/cold/d") == OUT_OF_TURN


QUEUES = [f"{tenant}/{n}/d" for tenant in "abc" for n in range(4)]
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("fill"), st.sampled_from(QUEUES), st.integers(1, 20)),
        st.tuples(st.just("warm"), st.frozensets(st.sampled_from(QUEUES)), st.just(0)),
        st.tuples(st.just("take"), st.just(""), st.integers(1, 12)),
        st.tuples(st.just("wait"), st.just(""), st.integers(1, 6)),
    ),
    max_size=60,
)


@given(MOVES)
def test_preference_is_bounded_whatever_happens(moves: list[tuple[str, Any, int]]) -> None:
    """For any messages, warm sets and pauses: tenants take turns as if nothing were warm; of
    OUT_OF_TURN + 1 jobs of a tenant in a row one is taken in turn, and so is the next once
    OUT_OF_TURN_S have passed; no queue that holds a message waits for longer than both imply.
    """
    clock = Clock()
    rotation, plain = TenantRotation(clock=clock), TenantRotation()
    rotation.update(QUEUES)
    plain.update(QUEUES)
    backlog: Counter[str] = Counter()
    tenants: Counter[str] = Counter()  # jobs that wait, by tenant
    turns = list(QUEUES)  # served longest ago first: the model that "in turn" is judged by
    passed, since = Counter[str](), dict[str, float]()
    waits: Counter[str] = Counter()  # jobs of its tenant that a waiting queue saw go before it
    for move, value, number in moves:
        if move == "fill":
            backlog[value] += number
            tenants[value[0]] += number
        elif move == "warm":
            rotation.prefer(value)
        elif move == "wait":
            clock.now += number / 2
        for _ in range(number if move == "take" else 0):
            served = first_with_messages(rotation.consume(99), backlog)
            if served is None:
                break
            tenant = served[0]
            # Any queue of the next tenant in the plain rotation that has jobs.
            due = next(queue[0] for queue in plain.consume(99) if tenants[queue[0]])
            assert tenant == due
            plain.rotate(next(q for q in plain.consume(99) if q[0] == tenant))
            mine = [queue for queue in turns if queue[0] == tenant and backlog[queue]]
            if served == mine[0]:
                passed[tenant] = 0
            else:
                assert not passed[tenant] or clock.now - since[tenant] < OUT_OF_TURN_S
                passed[tenant] += 1
                since[tenant] = since[tenant] if passed[tenant] > 1 else clock.now
                assert passed[tenant] <= OUT_OF_TURN
            for queue in mine:
                waits[queue] += 1
                assert waits[queue] <= (OUT_OF_TURN + 1) * 4
            waits[served] = 0
            turns.remove(served)
            turns.append(served)
            backlog[served] -= 1
            tenants[tenant] -= 1
            rotation.rotate(served)


@given(MOVES, st.frozensets(st.sampled_from(QUEUES)))
def test_updates_keep_what_was_passed_over(moves: list[Any], warm: frozenset[str]) -> None:
    """A set of queues that is told again, as after each look at the registry, restarts nothing."""
    once, again = rotation_of(*QUEUES), rotation_of(*QUEUES)
    for rotation in (once, again):
        rotation.prefer(warm)
    for _, value, _ in moves:
        if value in QUEUES:
            assert once.consume(99) == again.consume(99)
            once.rotate(value)
            again.rotate(value)
            again.update(reversed(QUEUES))
    assert once.consume(99) == again.consume(99)
