"""Values of options that are none."""

from __future__ import annotations

import click
import pytest

from scale.options import MOST_WORKERS, Counts


@pytest.mark.parametrize(
    "text",
    ["0", "1,", "-1", "x", "1e3", "100001", "00000000100001", "000000001" + "0" * 5000, "²"],
    ids=range(9),
)
def test_numbers_of_workers_have_a_bound(text: str) -> None:
    """However they are written."""
    with pytest.raises(click.BadParameter, match="no number from 1"):
        Counts().convert(text, None, None)


def test_numbers_of_workers_are_taken_once_each() -> None:
    """In their order."""
    assert Counts().convert(f"4, 1,4,{MOST_WORKERS}", None, None) == (4, 1, MOST_WORKERS)
