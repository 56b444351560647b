"""The oracle: `model.generate` on an isolated copy, one request at a time.

Works wherever Transformers can copy and continue a cache. It shares nothing between requests
but the model's weights, so what it gives with and without an entry is the standard that other
engines are held to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList

from contract.errors import InvalidInput
from worker.device import synchronize
from worker.engine.base import (
    Generation,
    GenerationRequest,
    PrefixMismatch,
    PrefixUnsupported,
    RequestTooLong,
)
from worker.engine.choices import Choices
from worker.engine.sampling import TokenChooser, check_finite
from worker.engine.stopping import Ending
from worker.model import LoadedModel
from worker.prefix.entry import PrefixEntry, PrefixKey
from worker.prefix.tensors import capacity
from worker.prefix.verify import verify_prefix


class ReferenceEngine:
    """See `worker.engine.base.Engine`. Takes over the model's `generation_config`."""

    name = "reference"
    batch_size = 1

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._module: Any = model.module  # typed too loosely upstream to be of use
        # generate() fills every field that a call leaves at None from the model's own settings;
        # with neutral ones nothing but the template's spec decides how tokens are chosen.
        self._module.generation_config = _config()
        self._lock = threading.Lock()

    def prefill(self, key: PrefixKey, ids: Sequence[int]) -> PrefixEntry:
        """One forward over the prefix, logits of its last token only."""
        self._check_key(key)
        if not ids:
            raise InvalidInput("an empty prefix cannot be prefilled", given="0 ids")
        self._check_length(len(ids), 1)
        if not self._module._supports_default_dynamic_cache():  # noqa: SLF001 - no public name
            raise PrefixUnsupported(
                f"{self._model.folder.architecture} has a cache of its own kind",
                expected="a model that works with transformers.DynamicCache",
                remedy="Its templates run uncached.",
            )
        with self._lock, torch.no_grad():
            started = time.perf_counter()
            kv = DynamicCache(config=self._module.config)
            # Without this the logits of all positions are made: 8k x 128k floats are 4 GB.
            last = {"logits_to_keep": 1} if self._module._supports_logits_to_keep() else {}  # noqa: SLF001
            output = self._module(
                input_ids=self._tensor(ids), cache=kv, use_cache=True, return_dict=True, **last
            )
            check_finite(output.logits[0, -1])
            synchronize(self._model.device)
            prefill_s = time.perf_counter() - started
            return PrefixEntry.freeze(key=key, ids=tuple(ids), kv=kv, prefill_s=prefill_s)

    def generate(self, request: GenerationRequest) -> Generation:
        """See `Engine.generate`; a request waits until the one before it is done."""
        started = time.perf_counter()
        eos_ids = self._model.folder.eos_ids
        choices = None if request.choices is None else Choices(request.choices, eos_ids)
        ending = Ending(
            request.generation,
            eos_ids=eos_ids,
            choices=choices,
            decode=self._model.tokenizer.decode,
            should_stop=request.should_stop,
        )
        self._check_length(len(request.ids), ending.max_new_tokens)
        if request.entry is not None:
            self._check_entry(request.entry, request.ids, ending.max_new_tokens)
        with self._lock, torch.no_grad():
            if (reason := ending.ask()) is not None:
                return Generation(token_ids=(), text="", finish_reason=reason)
            return self._run(request, choices, ending, started)

    def _run(
        self, request: GenerationRequest, choices: Choices | None, ending: Ending, started: float
    ) -> Generation:
        device = self._model.device
        fork_started = time.perf_counter()
        kv: Any = None if request.entry is None else request.entry.fork()
        synchronize(device)
        prompt = self._tensor(request.ids)
        # generate() takes the whole prompt and skips what a cache holds, but cannot tell how
        # much that is when no layer counts positions: such a cache gets the rest only.
        skipped = len(request.entry.ids) if request.entry and all(kv.is_linear) else 0
        chooser = TokenChooser(
            request.generation, prompt=prompt, eos_ids=self._model.folder.eos_ids, choices=choices
        )
        prefill_started = time.perf_counter()
        steps = _Steps(device, chooser, ending, prompt, skipped, keep=request.keep_scores)
        fed = prompt[:, skipped:]
        sequences: Tensor = self._module.generate(
            input_ids=fed,
            attention_mask=torch.ones_like(fed),
            cache=kv,
            generation_config=_config(ending.max_new_tokens),
            logits_processor=LogitsProcessorList([_Choose(steps)]),
            stopping_criteria=StoppingCriteriaList([_End(steps)]),
        )
        synchronize(device)
        ended = time.perf_counter()
        token_ids = ending.token_ids(sequences[0, fed.shape[1] :].tolist())
        return Generation(
            token_ids=token_ids,
            text=ending.text(token_ids),
            choice_index=ending.choice_index,
            finish_reason=ending.reason or "length",
            fork_s=prefill_started - fork_started,
            suffix_prefill_s=steps.first_scores_at - prefill_started,
            decode_s=ended - steps.first_scores_at,
            first_token_s=steps.first_token_at - started,
            first_scores=steps.first_scores,
        )

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], dtype=torch.long, device=self._model.device)

    def _check_key(self, key: PrefixKey) -> None:
        folder = self._model.folder
        ours = (folder.model_digest, folder.tokenizer_digest)
        if (key.model_digest, key.tokenizer_digest) != ours:
            raise PrefixMismatch(
                "a prefix of another model or tokenizer",
                given=f"digests {key.model_digest[:12]}, {key.tokenizer_digest[:12]}",
                expected=f"{ours[0][:12]}, {ours[1][:12]}",
            )

    def _check_entry(self, entry: PrefixEntry, ids: Sequence[int], new_tokens: int) -> None:
        # Callers verify first and run the job uncached; this is the wall behind them.
        self._check_key(entry.key)
        if reason := verify_prefix(entry.ids, ids):
            raise PrefixMismatch(
                "the entry is not an exact prefix of the request",
                given=reason,
                remedy="Run the request without the entry.",
            )
        limit = capacity(entry.kv)
        if limit is not None and len(ids) + new_tokens > limit:
            raise RequestTooLong(
                "the entry's cache has a fixed size",
                given=f"{len(ids)} prompt + {new_tokens} new = {len(ids) + new_tokens} tokens",
                expected=f"{limit} at most",
                remedy="Run the request without the entry.",
            )

    def _check_length(self, prompt: int, new_tokens: int) -> None:
        limit = self._model.folder.max_positions
        if prompt == 0:
            raise InvalidInput("an empty prompt cannot be answered", given="0 ids")
        if limit is not None and prompt + new_tokens > limit:
            raise RequestTooLong(
                f"the request does not fit {self._model.folder.name}",
                given=f"{prompt} prompt + {new_tokens} new = {prompt + new_tokens} tokens",
                expected=f"{limit} positions at most",
                remedy="Shorten the variables or lower generation.max_new_tokens.",
            )


def _config(max_new_tokens: int | None = None) -> GenerationConfig:
    """Plain decoding of one sequence; `TokenChooser` and `Ending` do all that varies."""
    return GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        num_return_sequences=1,
        repetition_penalty=1.0,
        use_cache=True,
        return_dict_in_generate=False,
        disable_compile=True,
    )


class _Steps:
    """What happens at each step inside generate(), and when."""

    def __init__(
        self,
        device: torch.device,
        chooser: TokenChooser,
        ending: Ending,
        prompt: Tensor,
        skipped: int,
        *,
        keep: bool,
    ) -> None:
        self._device = device
        self._chooser = chooser
        self._ending = ending
        self._head = prompt[:, :skipped]
        self._prompt_length = prompt.shape[1]
        self._keep = keep
        self.first_scores: tuple[float, ...] = ()
        self.first_scores_at = 0.0
        self.first_token_at = 0.0

    def choose(self, fed: Tensor, scores: Tensor) -> Tensor:
        if not self.first_scores_at:
            synchronize(self._device)
            self.first_scores_at = time.perf_counter()
            if self._keep:
                self.first_scores = tuple(scores[0].tolist())
        if self._ending.reason is not None:
            # On MPS generate() runs one step beyond the end, and drops it.
            return scores
        return self._chooser(torch.cat([self._head, fed], dim=1), scores)

    def end(self, fed: Tensor) -> bool:
        # Reading the ids waits for the device, so the clock is read after them.
        produced = fed[0, self._prompt_length - self._head.shape[1] :].tolist()
        if not self.first_token_at:
            self.first_token_at = time.perf_counter()
        return self._ending.after(produced)


class _Choose(LogitsProcessor):
    def __init__(self, steps: _Steps) -> None:
        self._steps = steps

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return self._steps.choose(input_ids, scores)


class _End(StoppingCriteria):
    def __init__(self, steps: _Steps) -> None:
        self._steps = steps

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:  # noqa: ARG002 - as called
        return torch.full((1,), self._steps.end(input_ids), device=input_ids.device)
