"""The engine and the model of a fake worker; see `tests.support.fake_worker`."""

from __future__ import annotations

import argparse
import os
import re
import signal
import time
from collections.abc import Sequence
from typing import Any, cast

from contract.console import note
from contract.errors import PrefillqError
from contract.logs import configure_logs
from contract.model_folder import ModelFolder
from contract.settings import Settings
from templates.tokenizer import TemplateTokenizer
from worker.celery_worker import run_worker
from worker.engine.base import Generation, GenerationRequest, StopReason, never, non_finite
from worker.engine.fake import FakeEngine
from worker.engine.fake_model import NoModel, NothingProven
from worker.loaded import Loaded
from worker.options import WorkerOptions
from worker.patterns import parse_pin
from worker.service import WorkerService

_STEP_S = 0.005
_WORK = re.compile(r"work=(\d+(?:\.\d+)?)")


class ScriptedEngine(FakeEngine):
    """Does what the options say on prompts that hold certain texts.

    `work=2.5` anywhere in a prompt makes that job take 2.5 seconds; others take
    `tokens * seconds_per_token`. The requests of the parity check are answered at once.
    """

    name = "scripted"

    def __init__(self, options: argparse.Namespace, tokenizer: TemplateTokenizer) -> None:
        answer = "x" * options.answer_chars if options.answer_chars else options.answer
        super().__init__(
            answer=None if answer is None else lambda _: str(answer),
            prefill_s=options.prefill_s,
            batch_size=options.batch,
        )
        self._options = options
        self._tokenizer = tokenizer

    def generate(self, request: GenerationRequest) -> Generation:
        if request.should_stop is not never:
            text = self._tokenizer.decode(request.ids)
            self._act_on(text)
        return super().generate(request)

    def _act_on(self, text: str) -> None:
        asked = self._options
        if asked.die_on and asked.die_on in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if asked.fail_on and asked.fail_on in text:
            raise RuntimeError(f"made to fail on {text}")  # as libraries do, that quote their input
        if asked.fail_match and re.search(asked.fail_match, text, re.DOTALL):
            raise RuntimeError("made to fail")
        if asked.nan_on and asked.nan_on in text:
            raise non_finite()
        while asked.hang_on and asked.hang_on in text:
            time.sleep(1)

    def _wait(self, request: GenerationRequest) -> StopReason | None:
        if request.should_stop is never:
            return None
        work = _WORK.search(self._tokenizer.decode(request.ids))
        options = self._options
        seconds = float(work[1]) if work else options.tokens * options.seconds_per_token
        ids = self._tokenizer.encode_ordinary(self._answer(request)) if request.on_token else ()
        begun, told = time.monotonic(), 0
        while (reason := request.should_stop()) is None and time.monotonic() < begun + seconds:
            told = self._tell(request, ids, told, (time.monotonic() - begun) / seconds)
            time.sleep(min(_STEP_S, seconds))
        if reason is None:
            self._tell(request, ids, told, 1.0)
        return reason

    def _tell(self, request: GenerationRequest, ids: Sequence[int], told: int, share: float) -> int:
        """Hand out the answer's ids up to this share of them; how many that were."""
        upto = int(len(ids) * share)
        if request.on_token is not None:
            for each in ids[told:upto]:
                request.on_token(each)
        return max(told, upto)


def run_fake_worker(options: argparse.Namespace) -> int:
    """Run until told to stop; the exit code of the process."""
    configure_logs(level=options.log_level, force_json=True)

    def load(folder: ModelFolder, _options: WorkerOptions, _settings: Settings) -> Loaded:
        tokenizer = TemplateTokenizer.load(folder.path)
        model = NoModel(folder=folder, tokenizer=tokenizer)
        engine = ScriptedEngine(options, tokenizer)
        return Loaded(model=cast(Any, model), engine=engine, admission=NothingProven())

    service = WorkerService(
        Settings.load(),
        WorkerOptions(
            model=options.model,
            templates=tuple(options.template),
            exclude=tuple(options.exclude),
            pins=tuple(parse_pin(pin) for pin in options.pin),
            warm=options.warm,
            cache_bytes=options.cache_bytes,
            batch=options.batch,
            watchdog_s=options.watchdog,
            metrics_port=options.metrics_port,
            metrics_tenant=options.metrics_tenant,
        ),
        load=load,
    )
    try:
        return run_worker(service, log_level=options.log_level)
    except PrefillqError as error:  # as `prefillq worker start` does
        note(f"prefillq: {error}")
        return error.exit_code
