"""Decoder layers of the Llama family with fused weights, computed by any kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from worker.engine.native import ops
from worker.engine.shared.batch import Batch
from worker.engine.shared.kernels import (
    Heads,
    Kernels,
    Linear,
    NativeKernels,
    prefix_tensors,
)
from worker.engine.shared.pool import SuffixPool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecoderLayer:
    """One layer: q, k and v are one product, gate and up another."""

    heads: Heads
    scale: float
    eps: float
    before: Tensor  # weights of the norm before attention
    qkv: Linear
    head_norms: tuple[Tensor, Tensor] | None  # of each query and key head, in Qwen3
    out: Linear
    between: Tensor  # of the norm before the feed-forward part
    gate_up: Linear
    down: Linear

    @classmethod
    def read(cls, layer: Any, kernels: Kernels) -> Self:
        """Pack the weights of a Transformers layer."""
        attention, mlp = layer.self_attn, layer.mlp
        of_query: Any = getattr(attention, "q_norm", None)
        return cls(
            heads=Heads(
                query=attention.q_proj.out_features // attention.head_dim,
                kv=attention.k_proj.out_features // attention.head_dim,
                dim=attention.head_dim,
            ),
            scale=float(attention.scaling),
            eps=float(layer.input_layernorm.variance_epsilon),
            before=layer.input_layernorm.weight,
            qkv=_join(kernels, attention.q_proj, attention.k_proj, attention.v_proj),
            head_norms=None if of_query is None else (of_query.weight, attention.k_norm.weight),
            out=_join(kernels, attention.o_proj),
            between=layer.post_attention_layernorm.weight,
            gate_up=_join(kernels, mlp.gate_proj, mlp.up_proj),
            down=_join(kernels, mlp.down_proj),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """What all layers of one step read besides their weights."""

    cos: Tensor  # [N, head dim]
    sin: Tensor
    batch: Batch
    pool: SuffixPool


def run_layers(kernels: Kernels, layers: Sequence[DecoderLayer], x: Tensor, step: Step) -> Tensor:
    """The layers' output [N, hidden] for their input `x` [N, hidden]; layer 0 is the first."""
    if isinstance(kernels, NativeKernels) and layers and _alike(layers):
        return _in_one_call(layers, x, step)
    for number, layer in enumerate(layers):
        x = after_attention(kernels, layer, attend(kernels, layer, number, x, step), x)
    return x


def _alike(layers: Sequence[DecoderLayer]) -> bool:
    """Whether the one native call has all that these layers have."""
    first = layers[0]
    return all(
        layer.head_norms is None
        and layer.out.bias is layer.gate_up.bias is layer.down.bias is None
        and (layer.heads, layer.eps, layer.scale) == (first.heads, first.eps, first.scale)
        for layer in layers
    )


def _in_one_call(layers: Sequence[DecoderLayer], x: Tensor, step: Step) -> Tensor:
    """`run_layers` without Python between the layers, which small batches would wait for."""
    batch, pool, first = step.batch, step.pool, layers[0]
    none = x.new_empty(0)
    weights: list[Tensor] = []
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for number, layer in enumerate(layers):
        bias = none if layer.qkv.bias is None else layer.qkv.bias
        weights += [layer.before, layer.qkv.weight, bias, layer.out.weight]
        weights += [layer.between, layer.gate_up.weight, layer.down.weight]
        of_prefixes = prefix_tensors(batch, pool, number)
        keys += of_prefixes[0]
        values += of_prefixes[1]
    return ops.decoder_layers(
        x,
        step.cos,
        step.sin,
        weights,
        first.eps,
        keys,
        values,
        batch.group_tensor,
        pool.keys[: len(layers)],
        pool.values[: len(layers)],
        batch.dest,
        batch.tables,
        batch.row,
        batch.spans,
        first.scale,
        first.heads.query,
        first.heads.kv,
        first.gate_up.out_features // 2,
    )


def attend(kernels: Kernels, layer: DecoderLayer, number: int, x: Tensor, step: Step) -> Tensor:
    """Attention's output [N, query heads * head dim]; writes keys and values to the pool."""
    qkv = kernels.linear(kernels.rms_norm(x, layer.before, layer.eps), layer.qkv)
    if layer.head_norms is not None:
        for part, weight in zip(layer.heads.split(qkv), layer.head_norms, strict=False):
            rows = part.reshape(-1, layer.heads.dim)
            part.copy_(kernels.rms_norm(rows, weight, layer.eps).view(part.shape))
    where: dict[str, Any] = {
        "heads": layer.heads,
        "batch": step.batch,
        "pool": step.pool,
        "layer": number,
    }
    kernels.rotate_and_store(qkv, step.cos, step.sin, **where)
    return kernels.attend(qkv, scale=layer.scale, **where)


def after_attention(kernels: Kernels, layer: DecoderLayer, mixed: Tensor, x: Tensor) -> Tensor:
    """The layer's output [N, hidden] from attention's output and the layer's input."""
    x = kernels.linear(mixed, layer.out, residual=x)
    gate_up = kernels.linear(kernels.rms_norm(x, layer.between, layer.eps), layer.gate_up)
    return kernels.linear(kernels.silu_mul(gate_up), layer.down, residual=x)


def _join(kernels: Kernels, *linears: Any) -> Linear:
    bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
    return kernels.pack([linear.weight for linear in linears], bias)
