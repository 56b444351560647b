"""Records against messages: what differs is said, and why that may be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from contract.load import Flow, Load
from scale.agreement import disagreements

AGREED = Load(
    tenant="acme",
    template="notes",
    model="a" * 12,
    waiting=3,
    estimated=False,
    delayed=0,
    oldest_s=1.0,
    running=2,
    late=0,
    messages=3,
    unacked=2,
    held=0,
    recent=Flow(seconds=60.0),
    kept=Flow(seconds=60.0),
)


def test_nothing_is_said_where_all_agree() -> None:
    """As many messages as records, waiting and taken."""
    assert disagreements(AGREED) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"messages": 5}, ["2 more messages than waiting", "cancelled"]),
        ({"messages": 1}, ["2 fewer messages than waiting", "a janitor rings again"]),
        ({"messages": 1, "delayed": 2}, ["2 wait for another attempt"]),
        ({"messages": 1, "held": 4}, ["4 of the tenant's are held back by its max_running"]),
        ({"unacked": 4}, ["2 more messages taken", "not claimed yet"]),
        ({"messages": 2, "unacked": 3}, ["1 are taken and not claimed yet"]),
        ({"unacked": 0}, ["2 fewer messages taken"]),
        ({"unacked": None}, ["too many to be told apart"]),
        ({"late": 1}, ["1 running records have a lease that ended"]),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_each_difference_has_words(changes: dict[str, Any], words: list[str]) -> None:
    """With its number first."""
    said = "\n".join(disagreements(replace(AGREED, **changes)))
    for some in words:
        assert some in said
