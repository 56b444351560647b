"""The few operations that a fused decoder is made of, in plain torch or in native code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from worker.engine.native import ops
from worker.engine.shared.attention import Scoring, attend
from worker.engine.shared.batch import Batch
from worker.engine.shared.pool import SuffixPool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Linear:
    """Weights of `x @ weight.T + bias`, in the form that its kernels take."""

    weight: Any
    out_features: int
    bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Shape of an attention layer: queries, keys and values lie side by side in that order."""

    query: int
    kv: int
    dim: int

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views [N, heads, dim] of the three parts of [N, (query + 2 kv) * dim]."""
        heads = qkv.view(qkv.shape[0], -1, self.dim)
        keys, values = self.query, self.query + self.kv
        return heads[:, :keys], heads[:, keys:values], heads[:, values:]


class Kernels(Protocol):
    """All tensors are contiguous and on one device; N is the number of tokens of the step."""

    name: str

    def pack(self, weights: Sequence[Tensor], bias: Tensor | None) -> Linear:
        """One product for several: weights [out, in] with the same input, one below the other."""

    def linear(self, x: Tensor, packed: Linear, residual: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias + residual`: [N, in] to [N, out]."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root-mean-square norm over the last dimension, as Llama does it."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """`silu(first half) * second half`: [N, 2 * inner] to [N, inner]."""

    def rotate_and_store(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        heads: Heads,
        batch: Batch,
        pool: SuffixPool,
        layer: int,
    ) -> None:
        """Rotate queries and keys in place, then write keys and values to the pool."""

    def attend(
        self, qkv: Tensor, *, heads: Heads, batch: Batch, pool: SuffixPool, layer: int, scale: float
    ) -> Tensor:
        """Shared-prefix attention of the queries in `qkv`: [N, query heads * dim]."""


class TorchKernels:
    """Plain torch, for any device and dtype; on a CPU in float32 weights are packed for oneDNN."""

    def __init__(self, *, packed: bool) -> None:
        self._packed = packed
        self.name = "onednn" if packed else "torch"
        self._rms_norm, self._silu_mul, self._rotated = _rms_norm, _silu_mul, _rotated

    def pack(self, weights: Sequence[Tensor], bias: Tensor | None) -> Linear:
        joined = weights[0] if len(weights) == 1 else torch.cat(tuple(weights))
        # The batch size is a hint only; oneDNN's layout for 32 rows serves others as well.
        weight = torch.ops.mkldnn._reorder_linear_weight(joined, 32) if self._packed else joined  # noqa: SLF001 - what torch's own compiler calls
        return Linear(weight=weight, out_features=joined.shape[0], bias=bias)

    def linear(self, x: Tensor, packed: Linear, residual: Tensor | None = None) -> Tensor:
        if self._packed:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001 - as above
                x, packed.weight, packed.bias, "none", [], ""
            )
        else:
            out = functional.linear(x, packed.weight, packed.bias)
        return out if residual is None else out + residual

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._rms_norm(x, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return self._silu_mul(gate_up)

    def rotate_and_store(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        heads: Heads,
        batch: Batch,
        pool: SuffixPool,
        layer: int,
    ) -> None:
        query, key, value = heads.split(qkv)
        query.copy_(self._rotated(query, cos, sin))
        pool.store(layer, batch.dest, self._rotated(key, cos, sin), value)

    def attend(
        self, qkv: Tensor, *, heads: Heads, batch: Batch, pool: SuffixPool, layer: int, scale: float
    ) -> Tensor:
        query, _, _ = heads.split(qkv)
        return attend(query, batch, pool, layer, Scoring(scale=scale)).flatten(1)


class CompiledKernels(TorchKernels):
    """Plain torch with its element-wise parts compiled: fewer and larger launches on a GPU.

    Compiled at the first use, for any number of tokens and all layers alike; torch keeps what it
    compiled on disk (`TORCHINDUCTOR_CACHE_DIR`), so that a restarted worker does not wait again.
    """

    def __init__(self) -> None:
        super().__init__(packed=False)
        self.name = "compiled"
        self._rms_norm, self._silu_mul, self._rotated = (
            torch.compile(part, dynamic=True) for part in (_rms_norm, _silu_mul, _rotated)
        )


class NativeKernels(TorchKernels):
    """Our own float32 CPU code, see `worker.engine.native`."""

    def __init__(self) -> None:
        super().__init__(packed=False)
        self.name = "native"

    def pack(self, weights: Sequence[Tensor], bias: Tensor | None) -> Linear:
        joined = weights[0] if len(weights) == 1 else torch.cat(tuple(weights))
        packed = ops.pack_linear(joined.contiguous())
        return Linear(weight=packed, out_features=joined.shape[0], bias=bias)

    def linear(self, x: Tensor, packed: Linear, residual: Tensor | None = None) -> Tensor:
        return ops.linear(x, packed.weight, packed.out_features, packed.bias, residual)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return ops.rms_norm(x, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return ops.silu_mul(gate_up)

    def rotate_and_store(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        heads: Heads,
        batch: Batch,
        pool: SuffixPool,
        layer: int,
    ) -> None:
        keys, values = pool.keys[layer], pool.values[layer]
        ops.rope_store_(qkv, cos, sin, keys, values, batch.dest, heads.query, heads.kv)

    def attend(
        self, qkv: Tensor, *, heads: Heads, batch: Batch, pool: SuffixPool, layer: int, scale: float
    ) -> Tensor:
        return ops.shared_attention(
            qkv,
            *prefix_tensors(batch, pool, layer),
            batch.group_tensor,
            pool.keys[layer],
            pool.values[layer],
            batch.tables,
            batch.row,
            batch.spans,
            scale,
            heads.query,
            heads.kv,
        )


def prefix_tensors(batch: Batch, pool: SuffixPool, layer: int) -> tuple[list[Tensor], list[Tensor]]:
    """Each group's keys and values [kv heads, prefix tokens, dim], none for no prefix."""
    shape = pool.layers[layer]
    empty = pool.keys[layer].new_empty((shape.kv_heads, 0, shape.key_dim))
    caches = [None if entry is None else entry.kv.layers[layer] for entry in batch.entries]
    return (
        [empty if cache is None else cache.keys[0] for cache in caches],
        [empty if cache is None else cache.values[0] for cache in caches],
    )


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


def _silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions of [N, heads, dim], `cos` and `sin` [N, dim]."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]
