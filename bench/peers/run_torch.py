"""Ways to generate on plain PyTorch and Transformers, in the project's own environment.

python -m bench.peers.run_torch uncached|copy|generate_batch
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.utils import WorkloadHints

from bench.peers.protocol import Answer, Ids, Load, Runner, Work, serve, shared_prefix
from contract.model_folder import read_model_folder
from templates.spec import GenerationSpec
from worker.engine.base import GenerationRequest
from worker.engine.reference import ReferenceEngine
from worker.model import LoadedModel, load_model
from worker.prefix.entry import PrefixEntry

VERSIONS = f"torch {torch.__version__}, transformers {transformers.__version__}"


def _load(load: Load) -> LoadedModel:
    torch.set_num_threads(load.threads)
    folder = read_model_folder(Path(load.model).name, Path(load.model))
    return load_model(folder, device=torch.device("cpu"), dtype=torch.float32)


class Uncached:
    """`model.generate` on the whole prompt, one job after another."""

    def load(self, load: Load) -> str:
        """The model, once."""
        self._model = _load(load)
        self._eos = load.eos_ids
        return f"model.generate, {VERSIONS}"

    def run(self, work: Work) -> Answer:
        """One job after another; nothing is kept between them."""
        config = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False,
            eos_token_id=list(self._eos),
            pad_token_id=self._eos[0],
            min_new_tokens=work.max_new_tokens,
            max_new_tokens=work.max_new_tokens,
        )
        module: Any = self._model.module
        answers = []
        started = time.perf_counter()
        for prompt in work.prompts:
            ids = torch.tensor([prompt])
            out = module.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config
            )
            answers.append(out[0, len(prompt) :].tolist())
        return Answer(seconds=time.perf_counter() - started, token_ids=answers)


class Copy:
    """`ReferenceEngine` with an entry: a deep copy of the prefix and `model.generate` on it."""

    def load(self, load: Load) -> str:
        """The engine, once."""
        self._model = _load(load)
        self._engine = ReferenceEngine(self._model)
        self._entry: PrefixEntry | None = None
        return f"deep copy and model.generate, {VERSIONS}"

    def run(self, work: Work) -> Answer:
        """One job after another, each on its own copy."""
        entry = self._warm(shared_prefix(work))
        spec = GenerationSpec(
            min_new_tokens=work.max_new_tokens, max_new_tokens=work.max_new_tokens
        )
        started = time.perf_counter()
        done = [
            self._engine.generate(
                GenerationRequest(ids=tuple(prompt), generation=spec, entry=entry)
            )
            for prompt in work.prompts
        ]
        seconds = time.perf_counter() - started
        return Answer(
            seconds=seconds,
            token_ids=[list(generation.token_ids) for generation in done],
            prefill_s=sum(generation.suffix_prefill_s for generation in done),
        )

    def _warm(self, prefix: Ids) -> PrefixEntry:
        if self._entry is None or self._entry.ids != tuple(prefix):
            key = self._model.prefix_key("bench", "bench")
            self._entry = self._engine.prefill(key, prefix)
        return self._entry


class GenerateBatch:
    """Transformers' continuous batching, with the block sharing that it has."""

    def __init__(self) -> None:
        self._manager: Any = None

    def load(self, load: Load) -> str:
        """The model and a manager whose cache holds the work three times."""
        if self._manager is not None:
            self._manager.stop(block=True)
        model = _load(load)
        module: Any = model.module
        # The manager has no processor that keeps end-of-sequence ids from being chosen.
        module.get_output_embeddings().register_forward_hook(_never(load.eos_ids))
        page = 32
        tokens = load.prefix_len + load.max_batch * load.own_len
        config = ContinuousBatchingConfig(
            page_size=page,
            num_blocks=3 * (tokens // page + load.max_batch + 1),
            max_batch_tokens=max(1024, load.max_batch * 32),
            allow_block_sharing=True,
        )
        self._manager = module.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),  # type: ignore[no-untyped-call]
            continuous_batching_config=config,
            workload_hints=WorkloadHints(
                max_prompt_length=load.prefix_len + load.own_len,
                max_generated_length=load.own_len,
                num_requests=load.max_batch,
            ),
        )
        self._manager.start()
        self._prefix: Ids = []
        return f"generate_batch's manager, pages of {page} tokens, {VERSIONS}"

    def run(self, work: Work) -> Answer:
        """All jobs at once."""
        prefix = shared_prefix(work)
        if prefix != self._prefix:
            self._generate([prefix], 1)
            self._prefix = prefix
        started = time.perf_counter()
        token_ids = self._generate(work.prompts, work.max_new_tokens)
        return Answer(seconds=time.perf_counter() - started, token_ids=token_ids)

    def _generate(self, prompts: Any, new_tokens: int) -> list[Ids]:
        names = self._manager.add_requests(inputs=list(prompts), max_new_tokens=new_tokens)
        done: dict[str, Ids] = {}
        while len(done) < len(names):
            result = self._manager.get_result(timeout=1)
            if result is not None and result.error is not None:
                raise RuntimeError(f"generate_batch: {result.error}")
            if result is not None and result.is_finished():
                done[result.request_id] = list(result.generated_tokens)
            elif not self._manager.is_running():
                raise RuntimeError("generate_batch: its thread has ended")
        return [done[name] for name in names]


def _never(eos_ids: tuple[int, ...]) -> Any:
    def hook(_module: Any, _inputs: Any, logits: torch.Tensor) -> torch.Tensor:
        logits[..., list(eos_ids)] = -torch.inf
        return logits

    return hook


RUNNERS: dict[str, type[Runner]] = {
    "uncached": Uncached,
    "copy": Copy,
    "generate_batch": GenerateBatch,
}

if __name__ == "__main__":
    serve(RUNNERS[sys.argv[1]]())
