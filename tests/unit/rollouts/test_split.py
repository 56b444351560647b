"""Which jobs a canary takes: its share, always the same, and one rollout's are not another's."""

from __future__ import annotations

from collections import Counter

import pytest

from templates.rollouts import moves
from templates.rollouts.moves import TemplateState
from templates.rollouts.rollout import Phase, Rollout
from templates.rollouts.split import WHOLE, bucket, takes
from tests.support.rollouts import ID, make_plan, make_rollout

KEYS = [f"customer-{number}" for number in range(100_000)]
SALT = "9f3c51de07ab4426"


def taken(weight: int, *, salt: str = SALT, tenant: str = "acme") -> set[str]:
    return {key for key in KEYS if takes(weight, salt=salt, tenant=tenant, key=key)}


@pytest.mark.parametrize("weight", [1, 100, 1000, 2500, 5000, 9000, 9999])
def test_a_weight_is_the_share_that_is_taken(weight: int) -> None:
    """Within 0.2 points of a hundred thousand keys."""
    assert abs(100 * len(taken(weight)) / len(KEYS) - weight / 100) < 0.2


def test_none_and_all_are_exact() -> None:
    """No key falls outside, whatever its hash."""
    assert taken(0) == set()
    assert taken(WHOLE) == set(KEYS)


def test_widening_moves_nobody_back() -> None:
    """Who has the new version at 1 % has it at 10 % and at 50 %."""
    one, ten, half = (taken(weight) for weight in (100, 1000, 5000))
    assert one < ten < half


def chi_square(salts: tuple[str, str]) -> float:
    """Of the deciles that two salts put the keys in; about 81 when they have nothing in common."""
    cells = Counter(
        (bucket(salts[0], "acme", key) // 1000, bucket(salts[1], "acme", key) // 1000)
        for key in KEYS
    )
    expected = len(KEYS) / 100
    return sum(
        (cells[row, column] - expected) ** 2 / expected for row in range(10) for column in range(10)
    )


def test_two_salts_are_independent() -> None:
    """Chi-square with 81 degrees of freedom: over 137 in one of ten thousand; alike it is vast."""
    for other in ("0" * 16, "9f3c51de07ab4427", f"{SALT}:shadow"):
        assert chi_square((SALT, other)) < 137
    assert chi_square((SALT, SALT)) > 100_000


def test_buckets_are_even() -> None:
    """Chi-square over a hundred groups, 99 degrees of freedom: over 161 in one of ten thousand."""
    groups = Counter(bucket(SALT, "acme", key) // 100 for key in KEYS)
    expected = len(KEYS) / 100
    assert sum((groups[n] - expected) ** 2 / expected for n in range(100)) < 161


def test_a_key_of_another_tenant_is_another_key() -> None:
    """Tenants do not share their unlucky customers."""
    both = taken(1000) & taken(1000, tenant="globex")
    assert 0.8 < len(both) / 1000 < 1.2


def test_the_parts_of_a_key_do_not_run_together() -> None:
    """A tenant that ends as a key begins is not hashed as that pair."""
    assert bucket("s", "ab", "c") != bucket("s", "a", "bc")


def test_any_text_is_a_key() -> None:
    """Empty, long, and with a lone surrogate."""
    for key in ("", "x" * 100_000, "\ud800", "\0", "Ünïcode 🎫"):
        assert 0 <= bucket(SALT, "acme", key) < WHOLE


def test_pausing_and_resuming_reshuffles_nobody() -> None:
    """Each key has one version before, during and after a pause, and as the phase changes."""
    keys = KEYS[:5000]

    def versions(rollout: Rollout | None) -> list[int]:
        assert rollout is not None
        return [rollout.version_for("acme", key) for key in keys]

    state = TemplateState(
        revision=3, versions=frozenset({1, 2}), labels={"production": 1}, rollout=make_rollout()
    )
    before = versions(state.rollout)
    assert len(set(before)) == 2
    paused = moves.pause(state)
    assert paused is not None
    resumed = moves.resume(paused.state)
    assert resumed is not None
    going = resumed.state.rollout
    assert going is not None
    warming = moves.advance(
        resumed.state, expect=going, phase=Phase.WARMING, step=1, findings=(), now=1.0
    )
    for after in (paused, resumed, warming):
        assert versions(after.state.rollout) == before


def test_what_decides_is_the_variable_or_nothing() -> None:
    """Text as it is, all else as JSON that does not depend on the order of fields."""
    rollout = make_rollout(plan=make_plan(sticky_key="customer"))
    assert rollout.key_of({"customer": "a b"}) == "a b"
    assert rollout.key_of({"customer": 7}) == "7"
    assert rollout.key_of({"customer": None}) == "null"
    assert rollout.key_of({"customer": {"b": 1, "a": 2}}) == '{"a":2,"b":1}'
    assert rollout.key_of({"other": "x"}) is None
    assert make_rollout().key_of({"customer": "a"}) is None


def test_the_shadow_is_split_apart_from_the_canary() -> None:
    """By another salt: it sees jobs of all kinds, not the next ones in line."""
    rollout = make_rollout(plan=make_plan(shadow=1000))
    shadowed = {key for key in KEYS if rollout.shadows("acme", key)}
    canaries = {key for key in KEYS if rollout.version_for("acme", key) == 2}
    assert abs(len(shadowed) - 10_000) < 200
    assert abs(len(canaries) - 10_000) < 200
    assert 0.8 < len(shadowed & canaries) / 1000 < 1.2
    assert rollout.id == ID
