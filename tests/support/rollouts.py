"""Rollouts and journals made by hand, as Redis would have them."""

from __future__ import annotations

import json
from typing import Any

from contract.canonical import canonical_json
from templates.rollouts.journal import Entry, change_between, read_entry
from templates.rollouts.moves import Move, TemplateState
from templates.rollouts.plain import to_plain
from templates.rollouts.rollout import Finding, Limits, Outcome, Phase, Plan, Rollout

ID = "0123456789abcdef"
FINDING = Finding(gate="failures", outcome=Outcome.INCONCLUSIVE, message="3 of 20 jobs")


def make_plan(**changes: Any) -> Plan:
    """From version 1 to 2, in four steps."""
    given: dict[str, Any] = {
        "label": "production",
        "stable": 1,
        "canary": 2,
        "steps": (100, 1000, 5000, 10_000),
        "bake_s": 600.0,
        "limits": Limits(scores={"quality": 0.05}),
    }
    return Plan(**{**given, **changes})


def make_rollout(**changes: Any) -> Rollout:
    """Baking at its second step, 10 %."""
    given: dict[str, Any] = {
        "id": ID,
        "plan": make_plan(),
        "phase": Phase.BAKING,
        "step": 1,
        "started_at": 1_790_000_000.125,
        "since": 1_790_000_600.25,
        "findings": (FINDING,),
    }
    return Rollout(**{**given, **changes})


def entry_of(before: TemplateState, move: Move, *, at_ms: int = 1_790_000_000_000) -> Entry:
    """What the script would write of a move, read back."""
    change = change_between(before, move.state)
    if move.state.rollout != before.rollout:
        rollout = move.state.rollout
        change["rollout"] = None if rollout is None else to_plain(rollout)
    fields = {
        "revision": str(move.state.revision),
        "who": "tester@here",
        "action": str(move.action),
        "from": move.was,
        "to": move.now,
        "why": "",
        "change": canonical_json(json.loads(canonical_json(change))),
        "token": "t",
    }
    raw = {name.encode(): value.encode() for name, value in fields.items()}
    return read_entry(f"{at_ms}-0", raw)
