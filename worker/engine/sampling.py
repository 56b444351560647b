"""How the next token is chosen from the model's scores.

All of it happens here, not in the model's generation settings: penalties always see the whole
prompt, whichever part of it was fed, and the random numbers of a job are its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from templates.spec import GenerationSpec
from worker.engine.base import NonFiniteLogits
from worker.engine.choices import Choices


def check_finite(scores: Tensor) -> None:
    """Raise NonFiniteLogits if a score is NaN or +inf, or all are -inf. `scores`: [..., vocab].

    Single ids at -inf are a model's way to mask its vocabulary, so the maximum tells.
    """
    if not bool(torch.isfinite(scores.amax(dim=-1)).all()):
        raise NonFiniteLogits(
            "the model's scores are not finite",
            given="NaN or infinity in the logits",
            expected="finite numbers",
            remedy="Try another dtype; float16 overflows first.",
        )


class TokenChooser:
    """Turns raw scores into scores whose maximum is the chosen token.

    Greedy for temperature 0; else one draw from a generator seeded with the spec's seed, so
    that equal requests give equal text whatever ran before, and no global state is touched.
    """

    def __init__(
        self,
        spec: GenerationSpec,
        *,
        prompt: Tensor,  # [1, prompt length], the whole of it
        eos_ids: tuple[int, ...],
        choices: Choices | None,
    ) -> None:
        self._prompt_length = prompt.shape[1]
        self._choices = choices
        # Typed upstream for one kind of tensor subclass that no code there makes.
        self._processors: Any = LogitsProcessorList()
        if spec.repetition_penalty != 1:
            self._processors.append(RepetitionPenaltyLogitsProcessor(spec.repetition_penalty))
        if spec.min_new_tokens and eos_ids and choices is None:
            self._processors.append(
                MinNewTokensLengthLogitsProcessor(
                    self._prompt_length,
                    spec.min_new_tokens,
                    list(eos_ids),
                    device=str(prompt.device),
                )
            )
        self._warpers: Any = LogitsProcessorList()
        self._random: torch.Generator | None = None
        if not spec.greedy:
            # On the CPU, so that a seed means the same on every device.
            self._random = torch.Generator().manual_seed(spec.seed)
            if spec.temperature != 1:
                self._warpers.append(TemperatureLogitsWarper(spec.temperature))
            if spec.top_k:
                self._warpers.append(TopKLogitsWarper(spec.top_k))
            if spec.top_p < 1:
                self._warpers.append(TopPLogitsWarper(spec.top_p))

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """`ids` [1, prompt + produced], `scores` [1, vocab]; raises NonFiniteLogits."""
        check_finite(scores)
        scores = self._processors(ids, scores)
        if self._choices is not None:
            scores = _only_choices(self._choices, ids[0, self._prompt_length :], scores)
        if self._random is None:
            return scores
        probabilities: Tensor = self._warpers(ids, scores).softmax(dim=-1).float().cpu()
        drawn = torch.multinomial(probabilities, 1, generator=self._random).to(scores.device)
        return torch.full_like(scores, -torch.inf).scatter(1, drawn, 0.0)


def _only_choices(choices: Choices, produced: Tensor, scores: Tensor) -> Tensor:
    allowed = choices.allowed(tuple(produced.tolist()))
    mask = torch.ones_like(scores, dtype=torch.bool)
    mask[:, allowed] = False
    return scores.masked_fill(mask, -torch.inf)
