"""`prefillq batch`: files, the progress bar and the summary around `producer.batch`."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from contract.console import Seconds, emit_json, json_option, json_wanted, note, option
from contract.errors import Conflict, InvalidInput, JobFailed
from contract.files import open_regular
from contract.ids import parse_address

if TYPE_CHECKING:
    from contract.settings import Settings
    from contract.types import VersionRef
    from producer.batch import BadLine, BatchLine, Summary
    from producer.dry_run import DryRun
    from producer.handle import JobHandle
    from templates.target import Target
    from templates.version import PublishedVersion

_SHOWN = 20  # bad lines on a terminal
_KEPT = 10_000  # and with --json: a file can have more of them than memory has room


@click.command()
@click.argument("file", metavar="FILE.jsonl")
@option(
    "-o",
    "--output",
    "out",
    envvar="PREFILLQ_BATCH_OUTPUT",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Results, one JSON line each. Run again with the same file to go on.",
)
@option(
    "--format",
    "format_name",
    envvar="PREFILLQ_BATCH_FORMAT",
    type=click.Choice(["prefillq", "openai"]),
    default="prefillq",
    show_default=True,
    help="What lines look like, in and out: ours, or those of OpenAI's Batch API.",
)
@option("--dry-run", is_flag=True, help="Check all lines and count their tokens; enqueue nothing.")
@option("--template", metavar="ADDRESS", help="For the lines that name none.")
@option(
    "--window",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Jobs in flight at most.",
)
@option(
    "--patience",
    type=Seconds(),
    default=0.0,
    show_default=True,
    help="Seconds to go on trying while Redis cannot be reached.",
)
@option("--timeout", type=Seconds(), help="Seconds after which to give up waiting.")
@option("--no-cache", is_flag=True, help="Compute the prefix anew for each job, to compare.")
@option("--skip-invalid", is_flag=True, help="Write bad lines as errors and run the others.")
@option("--run", default="", metavar="NAME", help="Another name makes new jobs of the same file.")
@json_option
@click.pass_context
def batch(
    ctx: click.Context,
    *,
    file: str,
    out: Path | None,
    format_name: str,
    dry_run: bool,
    template: str | None,
    window: int,
    patience: float,
    timeout: float | None,
    no_cache: bool,
    skip_invalid: bool,
    run: str,
    as_json: bool,  # noqa: ARG001 - read through json_wanted
) -> None:
    """Run every line of FILE.jsonl ("-" for stdin) as a job.

    A line is {"variables": {...}, "template": "tenant/name", "id": "yours", "sticky_key": "..."};
    the last three are optional. During a rollout, lines with one sticky key get one version. All
    lines are checked before the first job is enqueued. Results are appended as
    they come, with the line's "index" (from 0) and "id". After an interruption, the same
    command does only what is missing.

    With --format openai, lines are those of OpenAI's Batch API: "custom_id", and a "body" whose
    "model" is the template's address and whose "prompt" has the "variables" (docs/batch.md).

    --dry-run needs the model's tokenizer on this machine, and no -o.
    """
    from producer.batch import (
        BadLine,
        Output,
        batch_name,
        chunks_of,
        lines_of,
        read_lines,
        run_batch,
    )
    from producer.batch_format import OWN, Format
    from producer.openai_lines import OPENAI

    if out is None and not dry_run:
        raise click.UsageError("Missing option '-o' / '--output'.", ctx)
    formats: dict[str, Format] = {"prefillq": OWN, "openai": OPENAI}
    format_ = formats[format_name]
    started = time.monotonic()
    settings: Settings = ctx.obj
    jobs = _Jobs(
        settings,
        use_cache=not no_cache,
        patience_s=patience,
    )
    # JSON may spell each byte of a variable with six characters, and has a frame around them.
    longest = 6 * settings.max_variables_bytes + 2**16
    with _source(file) as source:

        def lines() -> Iterator[BatchLine | BadLine]:
            source.seek(0)
            return read_lines(
                lines_of(source, max_bytes=longest),
                template=template,
                check=jobs.check,
                max_bytes=longest,
                format_=format_,
                only_variable=jobs.only_variable,
            )

        if dry_run:
            from producer.dry_run import DryRun

            counted = DryRun(settings, use_cache=not no_cache)
            _count_tokens(lines(), jobs, counted, skip_invalid=skip_invalid)
            return
        assert out is not None  # noqa: S101 - a usage error above
        with _locked(out) as target:
            name = batch_name(
                chunks_of(source),
                template=template,
                use_cache=not no_cache,
                run=run,
                format_=format_,
            )
            output = Output(target, name, format_)
            total, bad = 0, _Bad()
            for line in lines():
                total += 1
                if isinstance(line, BadLine):
                    bad.add(line)
            if bad.count and not skip_invalid:
                bad.refuse()
            before = output.summary.done
            try:
                left = None if timeout is None else started + timeout - time.monotonic()
                with _progress(total, before) as on_done:
                    run_batch(lines(), output, jobs, window=window, timeout=left, on_done=on_done)
            except BaseException:
                note(
                    f"{output.summary.done} of {total} results in {out}; "
                    "run the same again to go on"
                )
                raise
            _finish(ctx, output.summary, out=out, before=before, seconds=time.monotonic() - started)


def _count_tokens(
    lines: Iterator[BatchLine | BadLine], jobs: _Jobs, counted: DryRun, *, skip_invalid: bool
) -> None:
    """Say what the lines come to, on stdout. Raises InvalidInput for bad ones, ModelError."""
    from producer.batch import BadLine

    bad = _Bad()
    for line in lines:
        if isinstance(line, BadLine):
            bad.add(line)
            continue
        try:
            counted.add(jobs.version_of(line), line.variables)
        except InvalidInput as error:  # longer than its model can read
            bad.add(BadLine(index=line.index, id=line.id, error=error))
    if bad.count and not skip_invalid:
        bad.refuse()
    if json_wanted(click.get_current_context()):
        emit_json({**counted.to_dict(), "invalid": bad.count})
        return
    for text in counted.lines():
        click.echo(text)
    if bad.count:
        note(f"{bad.count} line(s) cannot become jobs and were left out")


class _Jobs:
    """`producer.batch.Submitter` on a real `Producer`.

    Lines are checked against the versions that their template's address may mean at the start.
    """

    def __init__(self, settings: Settings, *, use_cache: bool, patience_s: float) -> None:
        from contract.redis_client import connect
        from producer.client import Producer
        from producer.patience import Patience
        from producer.validate import VariablesChecker
        from templates.registry import Registry

        self._producer = Producer(settings, patience_s=patience_s)
        self._patience = Patience(patience_s)
        self._registry = Registry(connect(settings), settings)
        self._checker = VariablesChecker(settings.max_variables_bytes)
        self._targets: dict[str, Target] = {}  # by address
        self._use_cache = use_cache

    def check(self, template: str, variables: Mapping[str, Any], sticky_key: str | None) -> None:
        for ref in self._target(template).refs_for(variables, sticky_key):
            self._checker.check(self._version(ref), variables)

    def only_variable(self, template: str) -> str:
        """`producer.batch_format.OnlyVariable`."""
        version = self._version(self._target(template).stable)
        names = list(version.spec.input.json_schema.get("properties", {}))
        if len(names) != 1:
            raise InvalidInput(
                "body.messages can only stand for a template's one variable",
                given=f"{version.ref} with {', '.join(names)[:120] or 'none'}",
                remedy="Give the variables by name in body.prompt.variables.",
            )
        return str(names[0])

    def version_of(self, line: BatchLine) -> PublishedVersion:
        """The version that a line gets, or during a rollout may get."""
        refs = self._target(line.template).refs_for(line.variables, line.sticky_key)
        return self._version(refs[0])

    def _target(self, template: str) -> Target:
        if template not in self._targets:
            address = parse_address(template)
            self._targets[template] = self._patience.call(lambda: self._registry.target(address))
        return self._targets[template]

    def _version(self, ref: VersionRef) -> PublishedVersion:
        return self._patience.call(partial(self._registry.get, ref))

    def submit(self, line: BatchLine, idempotency_key: str) -> JobHandle:
        return self._producer.submit(
            line.template,
            line.variables,
            idempotency_key=idempotency_key,
            sticky_key=line.sticky_key,
            use_cache=self._use_cache,
        )

    def ended(self, handles: Collection[JobHandle], timeout: float | None) -> Iterator[JobHandle]:
        return self._producer.as_completed(handles, timeout)


@contextmanager
def _source(file: str) -> Iterator[IO[bytes]]:
    """The input, seekable: it is read once to check and once to enqueue."""
    if file == "-":
        with tempfile.TemporaryFile() as spool:
            try:
                shutil.copyfileobj(sys.stdin.buffer, spool)
            except OSError as error:
                raise InvalidInput("stdin cannot be kept", given=error.strerror) from error
            spool.seek(0)
            yield spool
        return
    try:
        source = open_regular(file)
    except OSError as error:
        raise InvalidInput(
            "the batch file cannot be read",
            given=f"{file}: {error.strerror}",
            remedy="Pipe it in with - if it is no regular file.",
        ) from error
    with source:
        yield source


@contextmanager
def _locked(out: Path) -> Iterator[IO[bytes]]:
    """The output, opened for reading and writing and kept from other processes."""
    try:
        out.touch()
        file = out.open("r+b")
    except (OSError, ValueError) as error:  # a ValueError for a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput("the output file cannot be written", given=f"{out}: {reason}") from error
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidInput("the output is no regular file", given=out)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(
                "the output file is in use",
                given=out,
                remedy="Wait for the other batch, or name another file with -o.",
            ) from error
        yield file


class _Bad:
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


@contextmanager
def _progress(total: int, done: int) -> Iterator[Callable[[], None]]:
    """A bar with rate and time to go on stderr, on a terminal only."""
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
        TextColumn("jobs"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:.2f}/s"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task("jobs", total=total, completed=done, rate=0.0)
        started, finished = time.monotonic(), 0

        def on_done() -> None:
            nonlocal finished
            finished += 1
            rate = finished / max(time.monotonic() - started, 1e-6)
            bar.update(task, advance=1, rate=rate)

        yield on_done


def _finish(
    ctx: click.Context, summary: Summary, *, out: Path, before: int, seconds: float
) -> None:
    rate = (summary.done - before) / max(seconds, 1e-6)  # of this run's
    if json_wanted(ctx):
        emit_json(
            {
                "output": str(out),
                "lines": summary.done,
                "already_done": before,
                "statuses": dict(summary.statuses),
                "prompt_tokens": summary.prompt_tokens,
                "cached_tokens": summary.cached_tokens,
                "completion_tokens": summary.completion_tokens,
                "seconds": round(seconds, 3),
                "jobs_per_s": round(rate, 3),
            }
        )
    else:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(summary.statuses.items()))
        earlier = f" ({before} from an earlier run)" if before else ""
        note(
            f"{counts or 'no lines'}{earlier}; {summary.prompt_tokens} prompt tokens, "
            f"{summary.cached_tokens} of them cached, {summary.completion_tokens} new; "
            f"{seconds:.1f} s, {rate:.2f} jobs/s; results in {out}"
        )
    if not summary.succeeded:
        ctx.exit(JobFailed.exit_code)
