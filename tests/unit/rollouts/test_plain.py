"""A rollout as JSON: what is written reads back equal, and nothing else reads."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from contract.errors import CodecError, InvalidInput
from templates.rollouts.plain import (
    MAX_FINDINGS,
    MAX_TEXT_BYTES,
    check_plan,
    from_plain,
    parse_text,
    tidy,
    to_plain,
    to_text,
)
from templates.rollouts.rollout import Finding, Limits, Outcome, Phase, Rollout
from tests.support.rollouts import FINDING, make_plan, make_rollout

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    steps = tuple(sorted(draw(st.sets(st.integers(1, 10_000), min_size=1, max_size=8))))
    plan = make_plan(
        steps=steps,
        bake_s=draw(st.floats(0, 1e6)),
        sticky_key=draw(st.none() | _TEXTS.filter(bool)),
        shadow=draw(st.integers(0, 10_000)),
        warm_workers=draw(st.floats(0, 1)),
        limits=Limits(
            min_samples=draw(st.integers(1, 1000)),
            failures=draw(st.floats(0, 1)),
            scores=draw(
                st.dictionaries(
                    st.sampled_from(["quality", "tone", "x-1"]), st.floats(0, 100), max_size=3
                )
            ),
        ),
    )
    places = [(Phase.GATES, -1), *((Phase.BAKING, n) for n in range(len(steps)))]
    places += [(Phase.WARMING, n) for n in range(-1, len(steps) - 1)]
    phase, step = draw(st.sampled_from(places))
    findings = draw(
        st.lists(
            st.builds(
                Finding,
                gate=_TEXTS,
                outcome=st.sampled_from(list(Outcome)),
                message=_TEXTS,
            ),
            max_size=3,
        )
    )
    return make_rollout(
        plan=plan,
        phase=phase,
        step=step,
        started_at=draw(st.floats(0, 2e9)),
        since=draw(st.floats(0, 2e9)),
        paused=draw(st.booleans()),
        findings=tuple(findings),
    )


@given(rollouts())
def test_what_is_written_reads_back_equal(rollout: Rollout) -> None:
    """As text, as bytes, and as plain data."""
    assert parse_text(to_text(rollout)) == rollout
    assert parse_text(to_text(rollout).encode("utf-8")) == rollout
    assert from_plain(json.loads(json.dumps(to_plain(rollout)))) == rollout


def test_the_order_of_fields_does_not_matter() -> None:
    """The script that writes a rollout puts its times last."""
    plain = to_plain(make_rollout())
    times = {name: plain.pop(name) for name in ("started_at", "since")}
    assert parse_text(json.dumps({**plain, **times})) == make_rollout()


def _changed(path: str, value: object) -> Any:
    plain = json.loads(to_text(make_rollout()))
    *parents, last = path.split(".")
    place = plain
    for name in parents:
        place = place[int(name) if name.isdigit() else name]
    place[last] = value
    return plain


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("id", "../../x"),
        ("id", 5),
        ("phase", "planted"),
        ("phase", "gates"),
        ("step", 4),
        ("step", -2),
        ("step", 1.0),
        ("step", True),
        ("started_at", -1),
        ("started_at", 1e300),
        ("since", "now"),
        ("paused", 1),
        ("findings", {}),
        ("findings", [FINDING.message]),
        ("findings.0.outcome", "perhaps"),
        ("findings.0.message", "x" * 5000),
        ("findings.0.message", "\ud800"),
        ("findings.0.more", 1),
        ("plan.label", "A"),
        ("plan.label", "7"),
        ("plan.stable", 0),
        ("plan.stable", 2),
        ("plan.canary", 10**12),
        ("plan.steps", []),
        ("plan.steps", [10, 10]),
        ("plan.steps", [10, 5]),
        ("plan.steps", [0, 5]),
        ("plan.steps", [5, 10_001]),
        ("plan.steps", [1.5, 2.5]),
        ("plan.steps", list(range(1, 100))),
        ("plan.bake_s", float("nan")),
        ("plan.bake_s", -1),
        ("plan.sticky_key", ""),
        ("plan.sticky_key", "\ud800"),
        ("plan.shadow", 10_001),
        ("plan.warm_workers", 1.5),
        ("plan.limits.min_samples", 0),
        ("plan.limits.failures", float("inf")),
        ("plan.limits.scores", {"quality": -1}),
        ("plan.limits.scores", {"../x": 1}),
        ("plan.limits.scores", {f"s{n}": 1 for n in range(17)}),
        ("plan.more", 1),
        ("more", 1),
    ],
)
def test_anything_else_is_an_error_that_quotes_nothing(path: str, value: object) -> None:
    """One field is wrong, and the whole is refused."""
    with pytest.raises(CodecError) as caught:
        parse_text(json.dumps(_changed(path, value)))
    assert "planted" not in str(caught.value)
    assert "\ud800" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"null", b"[]", b"\xff", b"[" * 100_000, b" " * (MAX_TEXT_BYTES + 1), b"{}"],
    ids=lambda text: repr(text[:8]),
)
def test_text_that_is_no_rollout(text: bytes) -> None:
    """Neither JSON nor an object of the right fields."""
    with pytest.raises(CodecError):
        parse_text(text)


@pytest.mark.parametrize("name", sorted(to_plain(make_rollout())))
def test_no_field_may_be_missing(name: str) -> None:
    """There are no defaults: a release that adds a field is not half understood."""
    plain = to_plain(make_rollout())
    del plain[name]
    with pytest.raises(CodecError):
        from_plain(plain)


def test_findings_are_made_to_fit() -> None:
    """What a gate says of a model's failure may be long, many, or no text at all."""
    long = replace(FINDING, message="\ud800" + "x" * 10_000, gate="g" * 500)
    fitting = tidy([long] * (MAX_FINDINGS + 5))
    assert len(fitting) == MAX_FINDINGS
    rollout = make_rollout(findings=fitting)
    assert parse_text(to_text(rollout)) == rollout
    assert len(to_text(rollout).encode()) < MAX_TEXT_BYTES
    assert tidy([FINDING]) == (FINDING,)


def test_a_plan_that_nobody_can_follow_is_refused_in_words() -> None:
    """Before anything is written; the message has what was given."""
    with pytest.raises(InvalidInput, match=r"50 %, 10 %.*rising weights"):
        check_plan(make_plan(steps=(5000, 1000)))
    with pytest.raises(InvalidInput, match="from 2 to 2"):
        check_plan(make_plan(stable=2))
