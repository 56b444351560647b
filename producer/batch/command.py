"""`prefillq batch`: its options. What it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from contract.console import Seconds, json_option, option
from contract.errors import JobFailed

if TYPE_CHECKING:
    from contract.settings import Settings
    from producer.batch.formats import Format


@click.command()
@click.argument("file", metavar="FILE.jsonl")
@option(
    "-o",
    "--output",
    "out",
    envvar="PREFILLQ_BATCH_OUTPUT",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="Results, one JSON line each, or - for stdout. Run again with the same file to go on.",
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
    as_json: bool,
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
    from producer.batch.files import STDIO, open_output, open_source
    from producer.batch.formats import OWN
    from producer.batch.jobs import Jobs
    from producer.batch.openai_lines import OPENAI
    from producer.batch.results import longest_line
    from producer.batch.steps import Batch

    if out is None and not dry_run:
        raise click.UsageError("Missing option '-o' / '--output'.", ctx)
    to_stdout = str(out) == STDIO
    if to_stdout and as_json and not dry_run:
        raise click.UsageError("--json has the summary on stdout, where -o - has results.", ctx)
    formats: dict[str, Format] = {"prefillq": OWN, "openai": OPENAI}
    settings: Settings = ctx.obj
    with (
        open_source(file) as source,
        Jobs(settings, use_cache=not no_cache, patience_s=patience) as jobs,
    ):
        steps = Batch(
            source=source,
            jobs=jobs,
            format_=formats[format_name],
            template=template,
            use_cache=not no_cache,
            run=run,
            skip_invalid=skip_invalid,
            # JSON may spell each byte of a variable with six characters, and has a frame around.
            max_bytes=6 * settings.max_variables_bytes + 2**16,
        )
        if dry_run:
            from producer.batch.dry_run import DryRun

            steps.count(DryRun(settings, use_cache=not no_cache))
            return
        assert out is not None  # noqa: S101 - a usage error above
        with open_output(out, source) as target:
            longest = longest_line(settings.max_result_bytes)
            output = steps.output(target, max_bytes=longest, begun=not to_stdout)
            finished = steps.complete(output, out=out, window=window, timeout=timeout)
    finished.tell()
    if not finished.summary.succeeded:
        ctx.exit(JobFailed.exit_code)
