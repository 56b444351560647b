"""From a step's tokens to scores: the model's own code, or the same maths with fused weights."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from worker.engine.base import PrefixUnsupported
from worker.engine.shared import hook
from worker.engine.shared.batch import Batch
from worker.engine.shared.decoder import (
    DecoderLayer,
    Step,
    after_attention,
    attend,
    run_layers,
)
from worker.engine.shared.kernels import Kernels
from worker.engine.shared.pool import SuffixPool

# Decoders of the Llama family: norm, rotary attention, norm, gated SiLU, and nothing besides.
_FUSABLE = frozenset({"llama", "mistral", "qwen2", "qwen3"})


class Forward(Protocol):
    """One step. Writes the step's keys and values to the pool."""

    @property
    def name(self) -> str:
        """As it appears in listings."""

    def __call__(self, batch: Batch, pool: SuffixPool) -> Tensor:
        """Scores [S, vocabulary] of the wanted tokens."""


class TransformersForward:
    """The model's own code, with our attention in it. Any model that takes an attention."""

    name = "transformers"

    def __init__(self, module: Any) -> None:
        """Raises PrefixUnsupported."""
        hook.install(module)
        self._module = module
        self._keeps = module._supports_logits_to_keep()  # noqa: SLF001 - no public name
        # A mask of four dimensions is taken as it is; nothing reads it, our attention has its own.
        self._mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=module.device)

    def __call__(self, batch: Batch, pool: SuffixPool) -> Tensor:
        keep = {"logits_to_keep": batch.wanted} if self._keeps else {}
        with hook.attending(batch, pool):
            scores: Tensor = self._module(
                input_ids=batch.ids[None],
                position_ids=batch.positions[None],
                attention_mask=self._mask,
                use_cache=False,
                return_dict=True,
                **keep,
            ).logits[0]
        return scores if self._keeps else scores[batch.wanted]


class FusedForward:
    """A decoder of the Llama family with one product for q, k and v and one for gate and up.

    The weights are held a second time, in the kernels' own form.
    """

    def __init__(self, module: Any, kernels: Kernels, *, pool: SuffixPool) -> None:
        """Raises PrefixUnsupported where the model has more to it than is computed here."""
        config = module.config
        if config.model_type not in _FUSABLE or config.hidden_act != "silu":
            raise PrefixUnsupported(
                "no fused decoder for this architecture",
                given=config.model_type,
                expected=f"{', '.join(sorted(_FUSABLE))}, with SiLU",
            )
        if any(shape.window is not None for shape in pool.layers):
            raise PrefixUnsupported("no fused decoder with sliding-window layers")
        self.name = f"fused-{kernels.name}"
        body = module.model
        self._kernels = kernels
        self._embedding: Tensor = body.embed_tokens.weight
        self._rotary = body.rotary_emb
        self._layers = [DecoderLayer.read(layer, kernels) for layer in body.layers]
        self._norm = body.norm
        self._head = kernels.pack([module.lm_head.weight], module.lm_head.bias)

    def __call__(self, batch: Batch, pool: SuffixPool) -> Tensor:
        kernels, last = self._kernels, self._layers[-1]
        x = functional.embedding(batch.ids, self._embedding)
        cos, sin = (t[0].contiguous() for t in self._rotary(x[None], batch.positions[None]))
        step = Step(cos=cos, sin=sin, batch=batch, pool=pool)
        x = run_layers(kernels, self._layers[:-1], x, step)
        # Beyond the last layer's attention, only what is asked for is computed.
        mixed = attend(kernels, last, len(self._layers) - 1, x, step)[batch.wanted]
        x = after_attention(kernels, last, mixed, x[batch.wanted])
        x = kernels.rms_norm(x, self._norm.weight, self._norm.variance_epsilon)
        return kernels.linear(x, self._head)
