"""`prefillq demo`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING

import click

from contract.console import emit_json, json_option, note
from contract.logs import configure_logs

if TYPE_CHECKING:
    from rich.console import Console

    from local.demo import Advance, DemoOutcome


@contextmanager
def _progress(talk: Console) -> Iterator[Advance]:
    """A bar on a terminal, nothing elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = ("jobs     ", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=talk, disable=not talk.is_terminal) as bar:
        task = bar.add_task("jobs", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@click.command()
@json_option
@click.pass_context
def demo(ctx: click.Context, *, as_json: bool) -> None:
    """Start Redis and a worker here, publish the examples, run jobs, show results, stop."""
    from rich.console import Console

    from local.demo import run_demo

    configure_logs(level="WARNING")
    talk = Console(stderr=True, highlight=False)
    with _progress(talk) as advance:
        outcome = run_demo(ctx.obj, say=talk.print, advance=advance)
    if as_json:
        emit_json(outcome.to_dict())
    else:
        _show(outcome)
    if problem := outcome.problem:
        # Not raised: with --json the outcome is all that stdout may hold.
        note(f"prefillq: {problem}")
        ctx.exit(1)


def _show(outcome: DemoOutcome) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("template", "answer", "cache", "cached/prompt", "ttft s", "compute s"):
        table.add_column(name, justify="left" if name in ("template", "answer") else "right")
    for result in outcome.results:
        timings, usage = result.timings, result.usage
        table.add_row(
            str(result.ref),
            " ".join((result.choice or result.text).split())[:44],
            str(result.cache.state),
            f"{usage.cached_tokens}/{usage.prompt_tokens}",
            f"{timings.ttft_s:.2f}",
            f"{timings.total_s - timings.queue_s:.2f}",
        )
    console = Console(highlight=False)
    console.print(table)
    by_id = {result.job_id: result for result in outcome.results}
    ratios = [
        (twin.timings.total_s - twin.timings.queue_s)
        / (by_id[job_id].timings.total_s - by_id[job_id].timings.queue_s)
        for job_id, twin in outcome.uncached.items()
    ]
    console.print(
        f"\n{outcome.identical} of {len(outcome.uncached)} jobs that also ran without the cache "
        f"gave the same tokens; uncached took {median(ratios):.1f}x the compute time (median)."
    )
    console.print(f"{len(outcome.results)} jobs, {outcome.elapsed_s:.0f} s in all.")
