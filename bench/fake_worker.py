"""A worker whose engine computes nothing: `python -m bench.fake_worker MODEL_FOLDER`."""

from __future__ import annotations

import sys
from typing import Any, cast

import click

from contract.console import note
from contract.errors import PrefillqError
from contract.logs import configure_logs
from contract.model_folder import ModelFolder
from contract.settings import Settings
from templates.tokenizer import TemplateTokenizer
from worker.celery_worker import run_worker
from worker.engine.fake import FakeEngine
from worker.engine.fake_model import NoModel, NothingProven
from worker.loaded import Loaded
from worker.options import WorkerOptions
from worker.service import WorkerService


@click.command()
@click.argument("model")
@click.option("--batch", default=8, show_default=True)
def main(*, model: str, batch: int) -> None:
    """Serve the model's templates until SIGTERM."""
    configure_logs(level="WARNING", force_json=True)

    def load(folder: ModelFolder, options: WorkerOptions, _settings: Settings) -> Loaded:
        tokenizer = TemplateTokenizer.load(folder.path)
        return Loaded(
            model=cast(Any, NoModel(folder=folder, tokenizer=tokenizer)),
            engine=FakeEngine(batch_size=options.batch),
            admission=NothingProven(),
        )

    try:
        service = WorkerService(Settings.load(), WorkerOptions(model=model, batch=batch), load=load)
        sys.exit(run_worker(service, log_level="WARNING"))
    except PrefillqError as error:
        note(f"prefillq: {error}")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
