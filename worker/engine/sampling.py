"""How the next token is chosen from the model's scores.

All of it happens here, not in the model's generation settings: penalties always see the whole
prompt, whichever part of it was fed, and the random numbers of a job are its own. Its i-th new
token inverts the cumulative distribution at the i-th of them (inverse transform sampling), so
that engines which agree on the scores agree on the token.
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
)

from templates.spec import GenerationSpec
from worker.engine.base import non_finite

# Weights are whole multiples of 2**-34 of the likeliest token's. Up to 2**19 of them add up in
# float64 without rounding, so a sum is the same in any order, on any device, among any neighbours.
_UNITS = 2.0**34


def check_finite(scores: Tensor) -> None:
    """Raise NonFiniteLogits if a score is NaN or +inf, or all are -inf. `scores`: [..., vocab].

    Single ids at -inf are a model's way to mask its vocabulary, so the maximum tells.
    """
    if not bool(torch.isfinite(scores.amax(dim=-1)).all()):
        raise non_finite()


def uniforms(seed: int, count: int) -> Tensor:
    """A job's random numbers, one per new token: [count] float64 in [0, 1), on the CPU.

    On the CPU, so that a seed means the same on every device. A longer job's begin with these.
    """
    return torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def weigh(scores: Tensor, top: Tensor) -> Tensor:
    """Softmax without its division: `scores` [R, N] float32 to whole numbers [R, N] float32.

    `top` [R, 1] is the row's highest score, whose weight is 2**34.
    """
    return (scores - top).exp_().mul_(_UNITS).round_()


def keep_top_p(scores: Tensor, weights: Tensor, room: Tensor) -> Tensor:
    """Weights [R, N] with those outside the nucleus at 0 (Holtzman et al., arXiv:1904.09751).

    `scores` [R, N] in vocabulary order; `room` [R, 1] float64 is top_p of the total weight. As in
    Transformers' TopPLogitsWarper a token goes, from the lowest score upwards, while those above
    it hold that much; of equal scores the lower id goes first, which the warper leaves open.
    """
    order = scores.sort(dim=-1, stable=True).indices
    ordered = weights.gather(-1, order)
    summed = ordered.cumsum(-1, dtype=torch.float64)
    outside = summed[:, -1:] - summed >= room
    return weights.scatter(-1, order, ordered.masked_fill(outside, 0))


def pick(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first place whose cumulative weight exceeds `uniform` * total: [R, N], [R, 1] to [R, 1].

    `uniform` is float64. A place of weight 0 is never picked; NaN gives a place without meaning.
    """
    summed = weights.cumsum(-1, dtype=torch.float64)
    places = torch.searchsorted(summed, uniform * summed[:, -1:], right=True)
    return places.clamp_(max=weights.shape[1] - 1)


class TokenChooser:
    """Turns raw scores into scores whose maximum is the chosen token.

    Greedy for temperature 0; else drawn with the numbers of the spec's seed, so that equal
    requests give equal text whatever ran before, and no global state is touched.
    """

    def __init__(
        self,
        spec: GenerationSpec,
        *,
        prompt: Tensor,  # [1, prompt length], the whole of it
        eos_ids: tuple[int, ...],
    ) -> None:
        self._prompt_length = prompt.shape[1]
        # Typed upstream for one kind of tensor subclass that no code there makes.
        self._processors: Any = LogitsProcessorList()
        if spec.repetition_penalty != 1:
            self._processors.append(RepetitionPenaltyLogitsProcessor(spec.repetition_penalty))
        if spec.min_new_tokens and eos_ids:
            self._processors.append(
                MinNewTokensLengthLogitsProcessor(
                    self._prompt_length,
                    spec.min_new_tokens,
                    list(eos_ids),
                    device=str(prompt.device),
                )
            )
        self._warpers: Any = LogitsProcessorList()
        self._top_p = spec.top_p
        self._uniforms: Tensor | None = None
        if not spec.greedy:
            self._uniforms = uniforms(spec.seed, spec.max_new_tokens)
            if spec.temperature != 1:
                self._warpers.append(TemperatureLogitsWarper(spec.temperature))
            if spec.top_k:
                self._warpers.append(TopKLogitsWarper(spec.top_k))

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """`ids` [1, prompt + produced], `scores` [1, vocab]; raises NonFiniteLogits.

        Also where the spec leaves no finite maximum, as a temperature of 1e-40 does.
        """
        check_finite(scores)
        scores = self._processors(ids, scores.float())
        if self._uniforms is None:
            check_finite(scores)
            return scores
        warped = self._warpers(ids, scores.cpu())
        check_finite(warped)
        weights = weigh(warped, warped.amax(dim=-1, keepdim=True))
        if self._top_p < 1:
            total = weights.sum(-1, keepdim=True, dtype=torch.float64)
            weights = keep_top_p(warped, weights, self._top_p * total)
        uniform = self._uniforms[ids.shape[1] - self._prompt_length]
        drawn = pick(weights, uniform.view(1, 1)).to(scores.device)
        return torch.full_like(scores, -torch.inf).scatter(1, drawn, 0.0)
