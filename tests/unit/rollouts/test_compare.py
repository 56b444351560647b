"""Two versions' answers to the same jobs: what is kept of them, and what they come to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.settings import Settings
from templates.rollouts.compare import (
    MAX_PAIRS,
    MAX_TEXT_CHARS,
    Answered,
    Pair,
    compare,
    equal_answers,
    fields_of,
    read_pairs,
)

JOB = "acme." + "0" * 32
ROLLOUT = "ab" * 8


def _answer(text: str = "yes", *, version: int = 1, **more: Any) -> Answered:
    given: dict[str, Any] = {"choice": None, "tokens": 2, "seconds": 0.5, **more}
    return Answered(version=version, text=text, **given)


def _pair(stable: Answered, canary: Answered) -> Pair:
    equal = equal_answers(stable, canary)
    return Pair(job_id=JOB, at=1.0, stable=stable, canary=canary, equal=equal)


class Stream:
    """A stream of these entries, newest first, as a client reads it."""

    def __init__(self, *entries: dict[str, Any]) -> None:
        self.entries = [
            (f"{1000 - n}-0".encode(), {k.encode(): str(v).encode() for k, v in fields.items()})
            for n, fields in enumerate(entries)
        ]
        self.asked: list[str] = []

    def xrevrange(self, key: str, *, max: str, count: int) -> list[Any]:  # noqa: A002
        assert key == f"pq:acme:shadowed:{ROLLOUT}"
        self.asked.append(max)
        ids = [entry_id.decode() for entry_id, _ in self.entries]
        start = 0 if max == "+" else ids.index(max.removeprefix("(")) + max.startswith("(")
        return self.entries[start : start + count]


def _read(*entries: dict[str, Any]) -> Any:
    stream: Any = Stream(*entries)
    return read_pairs(stream, Settings(), "acme", ROLLOUT)


@pytest.mark.parametrize(
    ("stable", "canary", "equal"),
    [
        (_answer("a"), _answer("a"), True),
        (_answer("a"), _answer("b"), False),
        (_answer("a", choice="x"), _answer("b", choice="x"), True),
        (_answer("a", choice="x"), _answer("a", choice="y"), False),
        (_answer("x"), _answer("x", choice="x"), True),
        (_answer(""), _answer("", error="internal_error"), False),
    ],
)
def test_answers_are_equal_by_choice_or_else_by_text(
    stable: Answered, canary: Answered, equal: bool
) -> None:
    """A canary without an answer agrees with nothing."""
    assert equal_answers(stable, canary) is equal


def test_what_is_written_is_read_again() -> None:
    """Whatever is in the texts; the time is the entry's."""
    stable = _answer("ä\ud800\x1b[0m\n", choice="pay")
    canary = _answer("", version=2, error="prefix_not_verified", tokens=0)
    [pair] = _read(fields_of(JOB, stable, canary)).pairs
    assert pair == Pair(job_id=JOB, at=1.0, stable=stable, canary=canary, equal=False)


def test_long_answers_are_cut_and_compared_whole() -> None:
    """A thousand answers of megabytes would not fit beside the rest of Redis."""
    long = "x" * MAX_TEXT_CHARS
    fields = fields_of(JOB, _answer(long + "a"), _answer(long + "b", version=2))
    assert json.loads(fields["stable"])["text"] == json.loads(fields["canary"])["text"] == long
    [pair] = _read(fields).pairs
    assert not pair.equal


def test_counts_agreement_and_means() -> None:
    """Means are over the jobs that the canary answered, so that both have the same ones."""
    pairs = [
        _pair(_answer(choice="a", tokens=1, seconds=1.0), _answer(choice="a", tokens=3)),
        _pair(_answer(choice="a", tokens=3, seconds=2.0), _answer(choice="b", tokens=4)),
        _pair(_answer(choice="b", tokens=2, seconds=3.0), _answer(choice="a", tokens=5)),
        _pair(_answer(choice="a", tokens=2, seconds=4.0), _answer(choice="b", tokens=4)),
        _pair(_answer(tokens=99, seconds=99.0), _answer(error="internal_error")),
    ]
    found = compare(pairs)
    assert (found.answered, found.equal, found.failed, found.agreement) == (4, 1, 1, 0.25)
    assert (found.stable.tokens, found.stable.seconds) == (2.0, 2.5)
    assert (found.canary.tokens, found.canary.seconds) == (4.0, 0.5)
    assert found.changes == {("a", "b"): 2, ("b", "a"): 1}
    assert found.to_dict()["changes"][0] == {"stable": "a", "canary": "b", "jobs": 2}


@pytest.mark.parametrize("pairs", [[], [_pair(_answer(), _answer(error="x"))]])
def test_without_answers_nothing_is_divided(pairs: list[Pair]) -> None:
    """No jobs, or none that the canary answered."""
    found = compare(pairs)
    assert (found.agreement, found.canary.tokens, found.stable.seconds) == (None, None, None)
    assert found.failed == len(pairs)


GOOD = fields_of(JOB, _answer("a"), _answer("b", version=2))


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {**GOOD, "job": "acme.x"},
        {**GOOD, "job": JOB.replace("acme", "globex")},
        {**GOOD, "equal": "2"},
        {**GOOD, "canary": "["},
        {**GOOD, "canary": "[" * 100_000},
        {**GOOD, "canary": "[]"},
        {**GOOD, "canary": GOOD["canary"].replace("0.5", "NaN")},
        {**GOOD, "canary": GOOD["canary"].replace("0.5", "-1")},
        {**GOOD, "canary": GOOD["canary"].replace("0.5", "9" * 400)},
        {**GOOD, "canary": GOOD["canary"].replace('"tokens": 2', '"tokens": 1' + "0" * 400)},
        {**GOOD, "canary": GOOD["canary"].replace('"tokens": 2', '"tokens": "2"')},
        {**GOOD, "canary": GOOD["canary"].replace('"text": "b"', '"text": 5')},
    ],
)
def test_what_is_no_pair_is_counted_and_left_out(broken: dict[str, Any]) -> None:
    """One damaged entry hides no other."""
    found = _read(GOOD, broken, GOOD)
    assert (len(found.pairs), found.unreadable) == (2, 1)


def test_all_pages_are_read_and_no_more_than_are_kept() -> None:
    """In pages; a stream that is longer than it should be has an end."""
    assert len(_read(*[GOOD] * 250).pairs) == 250
    stream: Any = Stream(*[GOOD] * (MAX_PAIRS + 1000))
    assert len(read_pairs(stream, Settings(), "acme", ROLLOUT).pairs) == MAX_PAIRS
    assert len(stream.asked) == MAX_PAIRS / 100
