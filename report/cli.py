"""`prefillq report`."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from contract.console import emit_json, json_option, note, option
from contract.errors import InvalidInput
from contract.files import write_text

STDIN = "-"
_AGO = re.compile(r"(\d{1,9})([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NEVER_S = 4_102_444_800  # the year 2100


class Moment(click.ParamType[float]):
    """A time in ISO format, UTC unless it says otherwise, or so long ago; seconds since 1970."""

    name = "time"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002
        return "TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            return _seconds_of(value)
        except (ValueError, OverflowError):
            shown = f"{value!r:.40}"
            self.fail(f"{shown} is no time such as 2026-11-30T01:59, 30m, 2h or 1d", param, ctx)


def _seconds_of(text: str) -> float:
    """Raises ValueError and OverflowError for what is no time from 1970 to 2100."""
    if ago := _AGO.fullmatch(text):
        moment = datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _UNIT_S[ago[2]])
    else:
        moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    at = moment.timestamp()
    if not 0 <= at < _NEVER_S:
        raise ValueError("not in this century")
    return at


class Price(click.FloatRange):
    """0 or more, and neither NaN nor infinite."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        price: float = super().convert(value, param, ctx)
        if not math.isfinite(price):
            self.fail(f"{value!r:.40} is no price", param, ctx)
        return price


@click.command()
@click.argument(
    "files",
    metavar="[FILE]...",
    nargs=-1,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
)
@option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the page here; default: stdout, unless that is a terminal.",
)
@option("--since", type=Moment(), help="Jobs that ended then or later: 2026-11-30T01:59, 30m, 2h.")
@option("--until", type=Moment(), help="Jobs that ended before.")
@option("--template", metavar="PATTERN", help="Such as 'acme/*' or 'acme/triage@2'.")
@option("--tenant", metavar="NAME", help="One tenant's jobs.")
@option(
    "--price-per-hour",
    type=Price(min=0, max=1e9),
    metavar="X",
    help="What one device costs an hour, in any currency.",
)
@json_option
def report(
    *,
    files: Sequence[str],
    output: Path | None,
    since: float | None,
    until: float | None,
    template: str | None,
    tenant: str | None,
    price_per_hour: float | None,
    as_json: bool,
) -> None:
    """Make one HTML page of what workers logged: latency, cache, tokens, cost.

    Reads the log of one worker or several, plain or gzip, or stdin; other lines among those of jobs
    are passed over. With --json the same numbers are printed as data, and a page is made only
    with -o. A FILE that is damaged or cut short is used as far as it goes.
    """
    from report.charts import check_plots
    from report.collect import collect
    from report.page import make_page
    from report.remarks import remarks
    from report.summary import summarise
    from report.totals import Wanted

    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since must be before --until.")
    if output == Path("-"):
        output = None
    wants_page = output is not None or not as_json
    if wants_page:
        check_plots()
        if output is None and sys.stdout.isatty():
            raise click.UsageError(
                "A page on a terminal helps nobody: write it to a file with -o report.html."
            )
    if not files and sys.stdin.isatty():
        raise click.UsageError("Name the log files, or pipe a log in.")
    wanted = Wanted(since=since, until=until, template=template, tenant=tenant)
    with _progress(files) as advance:
        totals, reading = collect(files or (STDIN,), wanted, advance=advance)
    data = summarise(totals, reading, price_per_hour=price_per_hour)
    page = make_page(data) if wants_page else ""
    for words in remarks(data):
        note(f"prefillq: {words}")
    if output is not None:
        _write(page, output)
        note(f"prefillq: {output} has the page, of {data['summary']['jobs']:,} jobs")
    if as_json:
        emit_json(data)
    elif output is None:
        click.echo(page, nl=False)


def _write(page: str, output: Path) -> None:
    try:
        write_text(output, page)
    except OSError as error:
        raise InvalidInput(
            "the page cannot be written",
            given=f"{output}: {error.strerror}",
            remedy="Give --output a path that this user may write to.",
        ) from error


@contextmanager
def _progress(files: Sequence[str]) -> Iterator[Callable[[int], None]]:
    """A bar of bytes on a terminal, nothing elsewhere and for what has no size."""
    total = 0
    with suppress(OSError):
        total = sum(Path(file).stat().st_size for file in files if file != STDIN)
    if not (total and sys.stderr.isatty()):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = ("reading  ", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=total)
        yield lambda done: bar.update(task, completed=done)
