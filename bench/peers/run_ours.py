"""The shared-prefix engine, as a worker runs it, among the peers.

python -m bench.peers.run_ours [KERNELS]
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import torch
import transformers

from bench.peers.protocol import Answer, Ids, Load, Work, serve, shared_prefix
from contract.model_folder import read_model_folder
from contract.settings import Settings
from templates.spec import GenerationSpec
from worker.engine.admission import admit
from worker.engine.base import Engine, GenerationRequest
from worker.engine.names import Auto, KernelName
from worker.engine.shared.build import SharedOptions
from worker.model import load_model
from worker.prefix.entry import PrefixEntry


class Ours:
    """One thread a job, as Celery's pool has it; the engine batches them."""

    def __init__(self, kernels: KernelName | Auto) -> None:
        self._kernels: KernelName | Auto = kernels
        self._engine: Engine | None = None

    def load(self, load: Load) -> str:
        """Admitted as in a worker, the proof included; what is proven already is remembered."""
        if self._engine is not None:
            self._engine.close()
        torch.set_num_threads(load.threads)
        settings = Settings.load()
        folder = read_model_folder(Path(load.model).name, Path(load.model))
        self._model = load_model(folder, device=torch.device("cpu"), dtype=torch.float32)
        options = SharedOptions(
            rows=load.max_batch, native_folder=settings.cache_dir / "native", suffix_bytes=2 << 30
        )
        self._engine, admission = admit(
            self._model,
            options,
            mode="shared",
            kernels=self._kernels,
            folder=settings.cache_dir / "admission",
        )
        self._entry: PrefixEntry | None = None
        self._threads = ThreadPoolExecutor(max_workers=load.max_batch)
        return (
            f"{admission.way}, torch {torch.__version__}, transformers {transformers.__version__}"
        )

    def run(self, work: Work) -> Answer:
        """All jobs at once."""
        engine = self._loaded()
        entry = self._warm(shared_prefix(work))
        spec = GenerationSpec(
            min_new_tokens=work.max_new_tokens, max_new_tokens=work.max_new_tokens
        )
        requests = [
            GenerationRequest(ids=tuple(prompt), generation=spec, entry=entry)
            for prompt in work.prompts
        ]
        started = time.perf_counter()
        done = list(self._threads.map(engine.generate, requests))
        seconds = time.perf_counter() - started
        return Answer(
            seconds=seconds,
            token_ids=[list(generation.token_ids) for generation in done],
            prefill_s=max(generation.first_token_s for generation in done),
        )

    def _loaded(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("load comes first")
        return self._engine

    def _warm(self, prefix: Ids) -> PrefixEntry:
        if self._entry is None or self._entry.ids != tuple(prefix):
            key = self._model.prefix_key("bench", "bench")
            self._entry = self._loaded().prefill(key, prefix)
        return self._entry


if __name__ == "__main__":
    serve(Ours(cast("KernelName | Auto", sys.argv[1] if len(sys.argv) > 1 else "auto")))
