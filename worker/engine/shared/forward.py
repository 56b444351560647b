"""From a step's tokens to scores: the model's own code, or the same maths with fused weights."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from worker.engine.base import PrefixUnsupported
from worker.engine.shared import hook
from worker.engine.shared.batch import Batch
from worker.engine.shared.kernels import Heads, Kernels, Linear
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
        self._layers = [_Layer(layer, kernels) for layer in body.layers]
        self._norm = body.norm
        self._head = kernels.pack([module.lm_head.weight], module.lm_head.bias)

    def __call__(self, batch: Batch, pool: SuffixPool) -> Tensor:
        kernels = self._kernels
        x = functional.embedding(batch.ids, self._embedding)
        cos, sin = (t[0].contiguous() for t in self._rotary(x[None], batch.positions[None]))
        last = len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            qkv = layer.queries_keys_values(x)
            kernels.rotate_and_store(
                qkv, cos, sin, heads=layer.heads, batch=batch, pool=pool, layer=number
            )
            mixed = kernels.attend(
                qkv, heads=layer.heads, batch=batch, pool=pool, layer=number, scale=layer.scale
            )
            if number == last:  # beyond its attention, only what is asked for
                mixed, x = mixed[batch.wanted], x[batch.wanted]
            x = layer.after_attention(mixed, x)
        x = kernels.rms_norm(x, self._norm.weight, self._norm.variance_epsilon)
        return kernels.linear(x, self._head)


class _Layer:
    """One decoder layer's weights, packed."""

    def __init__(self, layer: Any, kernels: Kernels) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._kernels = kernels
        self.heads = Heads(
            query=attention.q_proj.out_features // attention.head_dim,
            kv=attention.k_proj.out_features // attention.head_dim,
            dim=attention.head_dim,
        )
        self.scale = float(attention.scaling)
        self._qkv = _join(kernels, attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = _join(kernels, attention.o_proj)
        self._gate_up = _join(kernels, mlp.gate_proj, mlp.up_proj)
        self._down = _join(kernels, mlp.down_proj)
        self._before, self._between = layer.input_layernorm, layer.post_attention_layernorm
        self._head_norms = (getattr(attention, "q_norm", None), getattr(attention, "k_norm", None))

    def queries_keys_values(self, x: Tensor) -> Tensor:
        """[N, (query heads + 2 kv heads) * dim], not rotated yet."""
        qkv = self._kernels.linear(self._normed(x, self._before), self._qkv)
        for norm, part in zip(self._head_norms, self.heads.split(qkv), strict=False):
            if norm is not None:  # Qwen3 norms each head
                rows = part.reshape(-1, self.heads.dim)
                part.copy_(self._normed(rows, norm).view(part.shape))
        return qkv

    def after_attention(self, mixed: Tensor, x: Tensor) -> Tensor:
        """The layer's output [N, hidden] from attention's and its own input."""
        x = self._kernels.linear(mixed, self._out, residual=x)
        gate_up = self._kernels.linear(self._normed(x, self._between), self._gate_up)
        return self._kernels.linear(self._kernels.silu_mul(gate_up), self._down, residual=x)

    def _normed(self, x: Tensor, norm: Any) -> Tensor:
        return self._kernels.rms_norm(x, norm.weight, norm.variance_epsilon)


def _join(kernels: Kernels, *linears: Any) -> Linear:
    bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
    return kernels.pack([linear.weight for linear in linears], bias)
