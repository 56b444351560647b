"""Turns of tenants and of their templates, whatever the number of queues."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from worker.rotation import TenantRotation


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
