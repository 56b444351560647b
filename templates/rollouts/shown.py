"""What the commands of rollouts print."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from contract.console import emit_json, emit_table, note, one_line
from contract.ids import TemplateAddress

if TYPE_CHECKING:
    from templates.rollouts.journal import Entry
    from templates.rollouts.outcomes import VersionOutcomes
    from templates.rollouts.rollout import Rollout


def facts(rollout: Rollout) -> dict[str, Any]:
    """What `status --json` says of an active rollout."""
    from templates.rollouts.plain import to_plain

    return {**to_plain(rollout), "weight": rollout.weight}


def show_moved(
    template: TemplateAddress, rollout: Rollout | None, what: str, *, as_json: bool
) -> None:
    """What a command did: talk, or the rollout as JSON."""
    if as_json:
        shown = None if rollout is None else facts(rollout)
        emit_json({"template": str(template), "action": what, "rollout": shown})
    elif rollout is None:
        note(f"{template}: a rollout that could not be read is {what}")
    else:
        note(f"{template}: {_plan(rollout)} is {what} ({place_of(rollout)})")


def show_end(template: TemplateAddress, end: Entry, *, as_json: bool) -> None:
    """How a rollout ended."""
    ended = "promoted" if end.action == "promote" else "aborted"
    if as_json:
        emit_json({"template": str(template), "ended": ended, "entry": end.to_dict()})
    else:
        why = f": {one_line(end.why)}" if end.why else ""
        click.echo(f"{ended} {when(end.at)} by {one_line(end.who)}{why}")


def show(template: TemplateAddress, rollout: Rollout, versions: Sequence[VersionOutcomes]) -> None:
    """An active rollout in lines, and its versions' jobs in a table."""
    rows: list[tuple[str, object]] = [
        ("template", template),
        ("rollout", f"{_plan(rollout)}, label {rollout.plan.label}"),
        ("id", rollout.id),
        ("place", place_of(rollout)),
        ("steps", ", ".join(f"{step / 100:g} %" for step in rollout.plan.steps)),
        ("since", when(rollout.since)),
        ("started", when(rollout.started_at)),
    ]
    rows += [(f"gate {item.gate}", f"{item.outcome}: {item.message}") for item in rollout.findings]
    for name, value in rows:
        click.echo(f"{one_line(name)}: {one_line(str(value))}")
    emit_table(
        ("version", "jobs", "failed", "not cached", "p50 s", "p95 s", "tokens", "scores"),
        [_row(version) for version in versions],
    )


def _row(version: VersionOutcomes) -> Sequence[object]:
    found = version.summary
    scores = ", ".join(f"{name} {mean:.4g} ({n})" for name, (n, mean) in found.scores.items())
    share = "-" if found.fallback_rate is None else f"{100 * found.fallback_rate:.1f} %"
    numbers = (found.p50_s, found.p95_s, found.mean_tokens)
    return (
        f"{version.version} {version.role}",
        found.jobs,
        found.failed,
        share,
        *("-" if number is None else f"{number:.3g}" for number in numbers),
        scores or "-",
    )


def _plan(rollout: Rollout) -> str:
    return f"version {rollout.plan.stable} to {rollout.plan.canary}"


def place_of(rollout: Rollout) -> str:
    """`baking, step 2 of 4, 10 % of the jobs`."""
    paused = ", paused" if rollout.paused else ""
    step = f"step {rollout.step + 1} of {len(rollout.plan.steps)}, " if rollout.step >= 0 else ""
    return f"{rollout.phase}, {step}{rollout.weight / 100:g} % of the jobs{paused}"


def when(at: float) -> str:
    """A time of the server's in UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).isoformat(sep=" ", timespec="seconds")
