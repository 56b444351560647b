"""`prefillq demo`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import click

from contract.console import emit_json, emit_table, json_option, note, one_line
from contract.logs import configure_logs

if TYPE_CHECKING:
    from rich.console import Console

    from local.canary import CanaryOutcome
    from local.demo import Advance, DemoOutcome


@contextmanager
def _progress(talk: Console) -> Iterator[Advance]:
    """A bar on a terminal, nothing elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = ("jobs     ", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=talk, disable=not talk.is_terminal) as bar:
        task = bar.add_task("jobs", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """SIGTERM leaves the block like any error, so that what it started is stopped."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.command()
@json_option
@click.pass_context
def demo(ctx: click.Context, *, as_json: bool) -> None:
    """Start Redis and a worker here, publish the examples, run jobs, show results, stop."""
    from rich.console import Console

    from local.demo import run_demo

    configure_logs(level="WARNING")
    talk = Console(stderr=True, highlight=False)
    with _sigterm_unwinds(), _progress(talk) as advance:
        outcome = run_demo(ctx.obj, say=talk.print, advance=advance)
    if as_json:
        emit_json(outcome.to_dict())
    else:
        _show(outcome)
    if problem := outcome.problem:
        # Not raised: with --json the outcome is all that stdout may hold.
        note(f"prefillq: {problem}")
        ctx.exit(1)


def _show_canary(outcome: CanaryOutcome) -> None:
    passed = sum(finding.outcome == "pass" for finding in outcome.findings)
    canary = sum(version == outcome.canary for version in outcome.during.values())
    back = sum(version == outcome.stable for version in outcome.after.values())
    click.echo(
        f"\n{outcome.template}@{outcome.canary} passed {passed} gates and as a canary of "
        f"{outcome.weight / 100:g} % answered {canary} of {len(outcome.during)} customers; after "
        f"the rollback {back} of {len(outcome.after)} had version {outcome.stable} again:"
    )
    for line in outcome.journal:
        click.echo(f"  {line}")


def _show(outcome: DemoOutcome) -> None:
    from local.demo import compute_s

    rows = [
        (
            result.ref,
            one_line(result.choice or result.text, limit=48),
            result.cache.state,
            f"{result.usage.cached_tokens}/{result.usage.prompt_tokens}",
            f"{result.timings.suffix_prefill_s:.2f}",
            f"{result.timings.decode_s:.2f}",
            f"{compute_s(result):.2f}",
        )
        for result in outcome.results
    ]
    emit_table(
        ("template", "answer", "cache", "cached/prompt", "suffix s", "decode s", "all s"), rows
    )
    slowdown = outcome.slowdown
    click.echo(
        f"\n{outcome.identical} of {len(outcome.uncached)} jobs that also ran without the cache "
        "gave the same tokens"
        + ("" if slowdown is None else f" and took {slowdown:.1f}x the time (median)")
        + ".\n"
        f"{len(outcome.results)} jobs of {len(outcome.versions)} template versions; first result "
        f"after {outcome.first_result_s:.0f} s, all done after {outcome.elapsed_s:.0f} s."
    )
    _show_canary(outcome.canary)
