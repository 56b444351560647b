"""Times and shares on the command line."""

from __future__ import annotations

from typing import Any

import click
import pytest

from templates.rollouts.options import Drop, Duration, Share, Weight, Weights

GOOD: list[tuple[Any, str, Any]] = [
    (Duration(), "90", 90.0),
    (Duration(), "90s", 90.0),
    (Duration(), "10m", 600.0),
    (Duration(), "1.5h", 5400.0),
    (Duration(), "2d", 172_800.0),
    (Share(), "2%", 0.02),
    (Share(), "0.5 %", 0.005),
    (Share(), "100%", 1.0),
    (Weight(), "5%", 500),
    (Weight(), "0.01", 1),
    (Weight(), "100", 10_000),
    (Weights(), "1,10,50,100", (100, 1000, 5000, 10_000)),
    (Weights(), "0.01%, 33.33 %", (1, 3333)),
    (Drop(), "quality=0.05", ("quality", 0.05)),
]
BAD: list[tuple[Any, str]] = [
    (Duration(), ""),
    (Duration(), "-1"),
    (Duration(), "1w"),
    (Duration(), "nan"),
    (Duration(), "\u0661s"),
    (Share(), "0.02"),  # 2 % or 0.02 %?
    (Share(), "two%"),
    (Weight(), "0.001"),
    (Weight(), "101"),
    (Weight(), "-1"),
    (Weight(), "1e1"),
    (Weights(), "1,,2"),
    (Weights(), ""),
    (Drop(), "quality"),
    (Drop(), "=1"),
    (Drop(), "quality=-1"),
    (Drop(), "quality=x"),
]


@pytest.mark.parametrize(("kind", "text", "value"), GOOD)
def test_is_read(kind: Any, text: str, value: Any) -> None:
    """And a value that was read already stays as it is."""
    assert kind.convert(text, None, None) == value
    assert kind.convert(value, None, None) == value


@pytest.mark.parametrize(("kind", "text"), BAD)
def test_is_wrong_use(kind: Any, text: str) -> None:
    """Said with what was given and what would do."""
    with pytest.raises(click.BadParameter, match="is not "):
        kind.convert(text, None, None)
