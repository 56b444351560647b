"""From log files to totals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from contract.errors import PrefillqError
from report.lines import Unreadable, read_line
from report.sources import Reading, read_sources
from report.totals import Totals, Wanted


class NoJobs(PrefillqError):
    """A log without one line of a job that ended, or without one that was asked for."""

    code = "no_jobs"


def collect(
    names: Sequence[str], wanted: Wanted, *, advance: Callable[[int], None] = lambda _: None
) -> tuple[Totals, Reading]:
    """Read all of these files, "-" for stdin. Raises InvalidInput and NoJobs."""
    totals, reading = Totals(wanted), Reading()
    for raw in read_sources(names, reading, advance=advance):
        try:
            line = read_line(raw)
        except Unreadable:
            reading.unreadable += 1
            continue
        if line is not None:
            totals.add(line)
    if not totals.jobs:
        raise _no_jobs(totals, reading)
    return totals, reading


def _no_jobs(totals: Totals, reading: Reading) -> NoJobs:
    if totals.not_wanted:
        return NoJobs(
            "the log has no job that was asked for",
            given=f"{totals.not_wanted:,} jobs, all of them left out by the options",
            remedy="Ask for more with --since, --until, --template and --tenant.",
        )
    if reading.unreadable or reading.too_long:
        return NoJobs(
            "the log has no job that can be read",
            given=f"{reading.lines:,} lines, {reading.unreadable:,} that speak of jobs and are no "
            f"JSON lines of ours, {reading.too_long:,} too long",
            remedy="Workers log JSON where stderr is a file: prefillq worker start 2> worker.log",
        )
    broken = f", and then {reading.broken[0]}" if reading.broken else ""
    return NoJobs(
        "the log has no line of a job that ended",
        given=f"{reading.lines:,} lines{broken}",
        expected="job_finished lines, as workers log them on stderr",
        remedy="Keep a worker's log: prefillq worker start 2> worker.log",
    )
