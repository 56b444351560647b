"""Every border, with input for it and the call that takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`run` takes one input and says how it ended; it raises for an end that is no design."""

    name: str
    about: str
    inputs: SearchStrategy[Any]
    run: Callable[[Any], str]
    short: int  # inputs in the suite's short run


@cache
def targets() -> dict[str, Target]:
    """All targets by name. Late imports: some load torch, and listing them must not."""
    from tests.fuzz import target_cli, target_files, target_models, target_redis

    found = (
        *target_files.targets(),
        *target_redis.targets(),
        *target_models.targets(),
        *target_cli.targets(),
    )
    return {target.name: target for target in found}
