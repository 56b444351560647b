"""The oracle: `model.generate` on an isolated copy, one request at a time.

Works wherever Transformers can copy and continue a cache. It shares nothing between requests
but the model's weights, so what it gives with and without an entry is the standard that other
engines are held to.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Sequence
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
    PrefixUnsupported,
)
from worker.engine.checks import check_entry, check_ids, check_key, check_length
from worker.engine.choices import Choices
from worker.engine.masks import forbid
from worker.engine.rotary import rotary_types
from worker.engine.sampling import TokenChooser, check_finite
from worker.engine.stopping import Ending
from worker.model import LoadedModel
from worker.prefix.entry import PrefixEntry, PrefixKey


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
        self.stepped_at = time.monotonic()

    def prefill(self, key: PrefixKey, ids: Sequence[int]) -> PrefixEntry:
        """One forward over the prefix, logits of its last token only."""
        check_key(self._model, key)
        if not ids:
            raise InvalidInput("an empty prefix cannot be prefilled", given="0 ids")
        check_length(self._model, len(ids), 1)
        check_ids(self._model, ids)
        if not self._module._supports_default_dynamic_cache():  # noqa: SLF001 - no public name
            raise PrefixUnsupported(
                f"{self._model.folder.architecture} has a cache of its own kind",
                expected="a model that works with transformers.DynamicCache",
                remedy="Its templates run uncached.",
            )
        if "dynamic" in rotary_types(self._module):
            # Past the length that the model was trained for every angle is another one, and the
            # plain path computes the prefix with the later ones.
            raise PrefixUnsupported(
                "the model's rotary angles change as the text grows", given="dynamic"
            )
        with self._lock, torch.no_grad():
            started = time.perf_counter()
            kv = DynamicCache(config=self._module.config)
            output = self._module(
                input_ids=self._tensor(ids),
                cache=kv,
                use_cache=True,
                return_dict=True,
                **self._last(1),
            )
            self._told()
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
            decode=self._model.tokenizer.decode,
            should_stop=request.should_stop,
            grammar=request.grammar,
        )
        new_tokens = ending.max_new_tokens if choices is None else choices.longest
        check_length(self._model, len(request.ids), new_tokens)
        check_ids(self._model, request.ids)
        if request.entry is not None:
            check_entry(self._model, request.entry, request.ids, new_tokens)
        with self._lock, torch.no_grad():
            if (reason := ending.ask()) is not None:
                return Generation(token_ids=(), text="", finish_reason=reason)
            if choices is not None:
                return self._score(request, choices, started)
            return self._run(request, ending, started)

    def close(self) -> None:
        """Nothing runs between calls."""

    def _score(self, request: GenerationRequest, choices: Choices, started: float) -> Generation:
        """Each choice after the prompt, one after the other, in full."""
        fork_s, began = 0.0, time.perf_counter()
        first: Tensor | None = None
        first_scores: tuple[float, ...] = ()
        after: dict[tuple[int, ...], Tensor] = {}
        for branch in choices.branches:
            if branch in after:  # where first tokens decide, all branches are empty
                continue
            if (reason := request.should_stop()) is not None:
                return Generation(token_ids=(), text="", finish_reason=reason)
            fork_started = time.perf_counter()
            kv: Any = None if request.entry is None else request.entry.fork()
            synchronize(self._model.device)
            fork_s += time.perf_counter() - fork_started
            scores = self._scores(request.ids + branch, kv, request.entry, 1 + len(branch))
            check_finite(scores)
            if request.keep_scores:
                first_scores = tuple(scores[0].tolist())
            kept = choices.kept(scores)
            first, after[branch] = kept[0], kept[1:]
            self._told()
        if first is None:
            raise InvalidInput("there are no choices to score", given=request.choices)
        probabilities = choices.probabilities(first, [after[b] for b in choices.branches])
        synchronize(self._model.device)
        ended = time.perf_counter()
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        return Generation(
            token_ids=choices[best],
            text=self._model.tokenizer.decode(choices[best]),
            choice_index=best,
            choice_probabilities=probabilities,
            finish_reason="stop",
            fork_s=fork_s,
            suffix_prefill_s=ended - began - fork_s,
            first_token_s=ended - started,
            first_scores=first_scores,
        )

    def _scores(
        self, ids: tuple[int, ...], kv: Any, entry: PrefixEntry | None, count: int
    ) -> Tensor:
        """Scores [count, vocabulary] of the last of `ids`, of which an entry's are not computed."""
        past = 0 if entry is None else len(entry.ids)
        fed = self._tensor(ids[past:])
        given: dict[str, Any] = {} if kv is None else {"cache": kv}
        if "position_ids" in inspect.signature(self._module.forward).parameters:
            # Not all models count on from their cache.
            given["position_ids"] = torch.arange(past, len(ids), device=fed.device)[None]
        output = self._module(
            input_ids=fed, use_cache=kv is not None, return_dict=True, **given, **self._last(count)
        )
        scores: Tensor = output.logits[0, -count:]
        return scores

    def _last(self, count: int) -> dict[str, int]:
        """Without this the scores of all positions are made: 8k x 128k floats are 4 GB."""
        return {"logits_to_keep": count} if self._module._supports_logits_to_keep() else {}  # noqa: SLF001 - no public name

    def _run(self, request: GenerationRequest, ending: Ending, started: float) -> Generation:
        device = self._model.device
        fork_started = time.perf_counter()
        kv: Any = None if request.entry is None else request.entry.fork()
        synchronize(device)
        prompt = self._tensor(request.ids)
        # generate() takes the whole prompt and skips what a cache holds, but cannot tell how
        # much that is when no layer counts positions: such a cache gets the rest only.
        skipped = len(request.entry.ids) if request.entry and all(kv.is_linear) else 0
        chooser = TokenChooser(
            request.generation, prompt=prompt, eos_ids=self._model.folder.eos_ids
        )
        prefill_started = time.perf_counter()
        steps = _Steps(device, chooser, ending, prompt, skipped, request=request, told=self._told)
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
        token_ids = tuple(sequences[0, fed.shape[1] :].tolist())
        return Generation(
            token_ids=token_ids,
            text=ending.text(token_ids),
            finish_reason=ending.reason or "length",
            fork_s=prefill_started - fork_started,
            suffix_prefill_s=steps.first_scores_at - prefill_started,
            decode_s=ended - steps.first_scores_at,
            first_token_s=steps.first_token_at - started,
            first_scores=steps.first_scores,
        )

    def _told(self) -> None:
        self.stepped_at = time.monotonic()

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], dtype=torch.long, device=self._model.device)


class UncachedEngine(ReferenceEngine):
    """For models whose prefix can be neither shared nor copied: every prompt in full."""

    name = "uncached"

    def prefill(self, key: PrefixKey, ids: Sequence[int]) -> PrefixEntry:
        """Raises PrefixUnsupported."""
        raise PrefixUnsupported(
            f"no way to reuse a prefix is proven for {self._model.folder.name} here",
            given=f"{len(ids)} ids of version {key.digest[:12]}",
            remedy="Its templates run uncached.",
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
        request: GenerationRequest,
        told: Callable[[], None],
    ) -> None:
        self._told = told
        self._device = device
        self._chooser = chooser
        self._ending = ending
        self._head = prompt[:, :skipped]
        self._prompt_length = prompt.shape[1]
        self._request = request
        self.first_scores: tuple[float, ...] = ()
        self.first_scores_at = 0.0
        self.first_token_at = 0.0

    def choose(self, fed: Tensor, scores: Tensor) -> Tensor:
        if not self.first_scores_at:
            synchronize(self._device)
            self.first_scores_at = time.perf_counter()
            if self._request.keep_scores:
                self.first_scores = tuple(scores[0].tolist())
        if self._ending.reason is not None:
            # On MPS generate() runs one step beyond the end, and drops it.
            return scores
        if self._ending.run is not None:
            forbid(scores, [0], [self._ending.run])
        return self._chooser(torch.cat([self._head, fed], dim=1), scores)

    def end(self, fed: Tensor) -> bool:
        # Reading the ids waits for the device, so the clock is read after them.
        produced = fed[0, self._prompt_length - self._head.shape[1] :].tolist()
        self._told()
        if not self.first_token_at:
            self.first_token_at = time.perf_counter()
        if self._request.on_token is not None and self._ending.reason is None:
            self._request.on_token(produced[-1])
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
