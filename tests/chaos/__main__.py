"""`python -m tests.chaos`; see docs/chaos.md."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click

from contract.console import emit_json, json_option, note, option
from contract.model_folder import ModelFolder, read_model_folder
from contract.model_store import find_model
from contract.settings import Settings
from tests.chaos.run import ChaosOptions, run_chaos
from tests.support.tiny import make_tiny_llama
from worker.openmp import wait_passively

_TOKENIZER = "smollm2-135m-instruct"


@click.command(context_settings={"auto_envvar_prefix": "PREFILLQ_CHAOS"})
@option("--minutes", type=click.FloatRange(min=0.1), default=5.0, show_default=True)
@option("--seed", type=int, default=1, show_default=True, help="Of jobs and deeds.")
@option("--every", type=click.FloatRange(min=0.1), default=1.5, show_default=True,
        help="Seconds between two deeds, on average.")  # fmt: skip
@option("--per-second", type=click.FloatRange(min=0.1), default=5.0, show_default=True,
        help="Jobs submitted, by all producers together.")  # fmt: skip
@option("--model", type=click.Path(path_type=Path, exists=True), help="Folder of the model to use; "
        "default: a tiny one with random weights.")  # fmt: skip
@option("--keep", type=click.Path(path_type=Path, file_okay=False),
        help="An empty or new folder for ledgers and logs, which stay there.")  # fmt: skip
@json_option
@click.pass_context
def main(
    ctx: click.Context,
    *,
    minutes: float,
    seed: int,
    every: float,
    per_second: float,
    model: Path | None,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Break everything at random for a while, and account for every job.

    Exit status 1 when a job was lost or done twice, or anything else is wrong; ledgers and logs
    are then kept.
    """
    wait_passively()
    folder = keep or Path(tempfile.mkdtemp(prefix="prefillq-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    report = run_chaos(
        ChaosOptions(
            seconds=minutes * 60,
            seed=seed,
            model=_model(model, folder),
            folder=folder,
            every_s=every,
            per_second=per_second,
        ),
        say=note,
    )
    if as_json:
        emit_json(report.to_dict())
    else:
        for line in report.lines():
            click.echo(line)
    if keep is None and report.ok:
        shutil.rmtree(folder)
    else:
        note(f"ledgers and logs are in {folder}")
    ctx.exit(0 if report.ok else 1)


def _model(given: Path | None, folder: Path) -> ModelFolder:
    if given is not None:
        return read_model_folder(given.name, given)
    tokenizer = find_model(_TOKENIZER, Settings.load()).path
    made = folder / "model"
    made.mkdir()
    return make_tiny_llama(made, tokenizer_from=tokenizer)


if __name__ == "__main__":
    main()
