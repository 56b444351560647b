"""Looking: from what was asked for to rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contract.load import LoadReader
from contract.redis_client import Client
from contract.settings import Settings
from scale.formula import Goal
from scale.names import Names
from scale.rows import Assumed, Row, rows_of
from templates.reading import RegistryReader

WINDOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What `prefillq scale --json` prints."""

    now: float  # Redis server time, seconds since the epoch
    goal: Goal
    rows: tuple[Row, ...]  # per template and model
    models: tuple[Row, ...]  # per model
    unacked: int  # messages that workers have taken, of all queues
    unreadable: dict[str, str]  # tenants that are left out, and why

    def to_dict(self) -> dict[str, Any]:
        return {
            "now": round(self.now, 3),
            "target_wait_s": self.goal.wait_s,
            "min": self.goal.minimum,
            "max": self.goal.maximum,
            "templates": [row.to_dict() for row in self.rows],
            "models": [row.to_dict() for row in self.models],
            "unacked": self.unacked,
            "unreadable": self.unreadable,
        }


class Watcher:
    """Looks at Redis each time it is asked. Safe to share between threads."""

    def __init__(self, client: Client, settings: Settings, *, assumed: Assumed) -> None:
        self._names = Names(RegistryReader(client, settings))
        self._reader = LoadReader(client, settings)
        self._assumed = assumed

    def look(self, targets: Sequence[str], goal: Goal, *, window_s: float = WINDOW_S) -> Seen:
        """Raises what `Names.named` raises, RedisUnreachable and RedisRefused."""
        found = self._names.named(targets)
        sight = self._reader.look((one.asked for one in found), window_s=window_s)
        rows = rows_of(sight, found, goal, self._assumed)
        return Seen(
            now=sight.now,
            goal=goal,
            rows=rows.templates,
            models=rows.models,
            unacked=sight.unacked,
            unreadable=dict(sight.unreadable),
        )
