"""What a batch tells on the way and at its end: bad lines, a bar, a summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from contract.console import emit_json, json_wanted, note
from contract.errors import InvalidInput, PrefillqError
from producer.batch.files import place_of
from producer.batch.lines import BadLine
from producer.batch.results import Summary

_SHOWN = 20  # bad lines on a terminal
_KEPT = 10_000  # and with --json: a file can have more of them than memory has room


class Bad:
    """Lines that cannot become jobs: how many there are, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[BadLine] = []

    def add(self, line: BadLine) -> None:
        self.count += 1
        if self.count <= _KEPT:
            self._first.append(line)

    def refuse(self) -> None:
        """Say what is wrong with each, and raise InvalidInput."""
        ctx = click.get_current_context()
        error = InvalidInput(
            f"{self.count} line(s) of the batch cannot become jobs; nothing was enqueued",
            given=", ".join(f"line {line.index + 1}" for line in self._first[:_SHOWN]),
            remedy="Mend them, or leave them out with --skip-invalid.",
        )
        if json_wanted(ctx):
            emit_json({**error.to_dict(), "lines": [line.to_dict() for line in self._first]})
            ctx.exit(error.exit_code)
        for line in self._first[:_SHOWN]:
            note(str(line))
        if self.count > _SHOWN:
            note(f"... and {self.count - _SHOWN} more")
        raise error


class Waiting:
    """Says what a batch waits for, once for each reason."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, error: PrefillqError) -> None:
        if error.problem not in self._said:
            self._said.add(error.problem)
            note(f"waiting for room: {error.without_remedy}")


@contextmanager
def progress(what: str, total: int | None, done: int = 0) -> Iterator[Callable[[], None]]:
    """A bar with rate and time to go on stderr, on a terminal only; what to call at each step."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:.2f}/s"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=total is None,
    ) as bar:
        task = bar.add_task(what, total=total, completed=done, rate=0.0)
        started, finished = time.monotonic(), 0

        def step() -> None:
            nonlocal finished
            finished += 1
            rate = finished / max(time.monotonic() - started, 1e-6)
            bar.update(task, advance=1, rate=rate)

        yield step


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A batch that was run to its end."""

    out: Path
    summary: Summary
    before: int  # lines that an earlier run had done
    again: int  # jobs that were enqueued a second time
    seconds: float

    def tell(self) -> None:
        """One line on stderr, or with `--json` on stdout."""
        if json_wanted(click.get_current_context()):
            emit_json(self.to_dict())
            return
        summary = self.summary
        counts = ", ".join(f"{count} {name}" for name, count in sorted(summary.statuses.items()))
        earlier = f" ({self.before} from an earlier run)" if self.before else ""
        again = f"{self.again} enqueued again, their records had gone; " if self.again else ""
        note(
            f"{counts or 'no lines'}{earlier}; {again}{summary.prompt_tokens} prompt tokens, "
            f"{summary.cached_tokens} of them cached, {summary.completion_tokens} new; "
            f"{self.seconds:.1f} s, {self._rate:.2f} jobs/s; results {place_of(self.out)}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "output": str(self.out),
            "lines": self.summary.done,
            "already_done": self.before,
            "enqueued_again": self.again,
            "statuses": dict(self.summary.statuses),
            "prompt_tokens": self.summary.prompt_tokens,
            "cached_tokens": self.summary.cached_tokens,
            "completion_tokens": self.summary.completion_tokens,
            "seconds": round(self.seconds, 3),
            "jobs_per_s": round(self._rate, 3),
        }

    @property
    def _rate(self) -> float:  # of this run's
        return (self.summary.done - self.before) / max(self.seconds, 1e-6)
