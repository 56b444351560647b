"""The steps of a batch: it is named, all its lines are checked, and then run, or only counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import click

from contract.console import emit_json, json_wanted, note
from contract.errors import InvalidInput
from producer.batch.dry_run import DryRun
from producer.batch.files import InputChanged, Source, place_of
from producer.batch.flight import run_batch
from producer.batch.formats import Format
from producer.batch.jobs import Jobs
from producer.batch.lines import BadLine, BatchLine, bare, batch_name, read_lines
from producer.batch.results import Output
from producer.batch.seen import Indexes
from producer.batch.shown import Bad, Finished, Waiting, progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """An input and what was asked for it."""

    source: Source
    jobs: Jobs
    format_: Format
    template: str | None
    use_cache: bool
    run: str
    skip_invalid: bool
    max_bytes: int  # of a line

    def lines(self, *, but: Indexes | None = None) -> Iterator[BadLine | BatchLine]:
        return read_lines(
            self.source.lines(max_bytes=self.max_bytes),
            template=self.template,
            check=self.jobs.check,
            max_bytes=self.max_bytes,
            format_=self.format_,
            only_variable=self.jobs.only_variable,
            but=but,
        )

    def output(self, file: IO[bytes], *, max_bytes: int, begun: bool) -> Output:
        """What there is of the output. Raises Conflict when it is another batch's."""
        name = batch_name(
            self.source.chunks(),
            template=self.template,
            use_cache=self.use_cache,
            run=self.run,
            format_=self.format_,
        )
        return Output(file, name, self.format_, max_bytes=max_bytes, begun=begun)

    def complete(
        self, output: Output, *, out: Path, window: int, timeout: float | None
    ) -> Finished:
        """Check all lines, then run what the output lacks. Raises InvalidInput for bad lines."""
        started, before = time.monotonic(), output.summary.done
        total = self._check(output)
        try:
            left = None if timeout is None else started + timeout - time.monotonic()
            with progress("jobs", total, output.summary.done) as on_done:
                again = run_batch(
                    self.lines(but=output.indexes),
                    output,
                    self.jobs,
                    window=window,
                    timeout=left,
                    skip_invalid=self.skip_invalid,
                    on_done=on_done,
                    on_wait=Waiting(),
                )
        except BaseException as error:
            hint = "" if isinstance(error, InputChanged) else "; run the same again to go on"
            note(f"{output.summary.done} of {total} results {place_of(out)}{hint}")
            raise
        return Finished(
            out=out,
            summary=output.summary,
            before=before,
            again=again,
            seconds=time.monotonic() - started,
        )

    def _check(self, output: Output) -> int:
        """How many lines there are. Bad ones are written as such, or refused all together."""
        total, bad = 0, Bad()
        with progress("lines checked", None) as on_line:
            for line in self.lines():
                total += 1
                on_line()
                if not isinstance(line, BadLine):
                    continue
                if self.skip_invalid:
                    output.refuse(line)
                else:
                    bad.add(line)
        if bad.count:
            bad.refuse()
        return total

    def count(self, counted: DryRun) -> None:
        """Say what the lines come to, on stdout. Raises InvalidInput for bad ones, ModelError."""
        bad = Bad()
        with progress("lines counted", None) as on_line:
            for line in self.lines():
                on_line()
                if isinstance(line, BadLine):
                    bad.add(line)
                    continue
                try:
                    counted.add(self.jobs.version_of(line), line.variables)
                except InvalidInput as error:  # longer than its model can read
                    bad.add(BadLine(index=line.index, id=line.id, error=bare(error)))
        if bad.count and not self.skip_invalid:
            bad.refuse()
        if json_wanted(click.get_current_context()):
            emit_json({**counted.to_dict(), "invalid": bad.count})
            return
        for text in counted.lines():
            click.echo(text)
        if bad.count:
            note(f"{bad.count} line(s) cannot become jobs and were left out")
