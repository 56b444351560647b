"""Where rows keep the keys and values of their own tokens: blocks of a fixed size, per layer.

A row grows into its next block, so nothing is copied as it grows. Prefixes are not here: they
stay in their entries, read-only, once per version.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What one attention layer keeps of a token."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None  # tokens it sees, itself included; None: all


class SuffixPool:
    """`keys[layer]` is [blocks, kv_heads, block_tokens, key_dim], `values[layer]` likewise."""

    def __init__(
        self,
        layers: Sequence[LayerShape],
        *,
        max_bytes: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """As many blocks as `max_bytes` hold, at least one."""
        self.layers = tuple(layers)
        per_token = sum(s.kv_heads * (s.key_dim + s.value_dim) for s in layers) * dtype.itemsize
        self.block_bytes = per_token * BLOCK_TOKENS
        self.blocks = max(1, max_bytes // self.block_bytes)

        def zeros(shape: LayerShape, dim: int) -> Tensor:
            return _zeros((self.blocks, shape.kv_heads, BLOCK_TOKENS, dim), dtype, device)

        self.keys = [zeros(shape, shape.key_dim) for shape in layers]
        self.values = [zeros(shape, shape.value_dim) for shape in layers]

    def store(self, layer: int, dest: Tensor, key: Tensor, value: Tensor) -> None:
        """Write tokens' keys [N, kv_heads, key_dim] and values to `dest` [N]."""
        block, offset = dest // BLOCK_TOKENS, dest % BLOCK_TOKENS
        self.keys[layer][block, :, offset] = key
        self.values[layer][block, :, offset] = value

    def wipe(self, blocks: Sequence[int]) -> None:
        """Zero blocks that may hold NaN: blocks are read whole, and NaN times zero is NaN."""
        where = torch.tensor(blocks, device=self.keys[0].device)
        for pool in (*self.keys, *self.values):
            pool[where] = 0

    def read(self, layer: int, blocks: Sequence[int], tokens: int) -> tuple[Tensor, Tensor]:
        """A copy of a row's first tokens: keys and values, [1, kv_heads, tokens, dim] each."""
        where = torch.tensor(blocks, device=self.keys[layer].device)

        def gather(pool: Tensor) -> Tensor:
            parts = pool[where].transpose(0, 1)  # [kv_heads, blocks, block_tokens, dim]
            return parts.flatten(1, 2)[None, :, :tokens].contiguous()

        return gather(self.keys[layer]), gather(self.values[layer])


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, not what was in memory (see `wipe`); on a CPU they take no memory until written."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    nbytes = math.prod(size) * dtype.itemsize
    return torch.from_numpy(np.zeros(nbytes, dtype=np.uint8)).view(dtype).view(size)
