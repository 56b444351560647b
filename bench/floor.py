"""The least time that a workload can take on a machine: its multiplications at the GEMM peak.

Counted are the products with weights and the two products of attention, for the suffix and the
new tokens of a job; the prefix is there already. Everything else (norms, softmax, sampling,
reading memory, Python) counts as nothing.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Self

import torch

_SIZE = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder of the Llama family, as its config.json has it."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @classmethod
    def read(cls, folder: Path) -> Self:
        """From a model's folder."""
        config = json.loads((folder / "config.json").read_text("utf-8"))
        heads = config["num_attention_heads"]
        return cls(
            hidden=config["hidden_size"],
            inner=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads", heads),
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
        )

    def job_flops(self, *, prefix: int, suffix: int, new_tokens: int) -> float:
        """Floating-point operations of one job beyond its prefix; a multiply-add counts two."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        weights = self.layers * (attention + 3 * self.hidden * self.inner)
        computed = suffix + new_tokens - 1  # the last new token is not read again
        seen = computed * prefix + computed * (computed + 1) / 2
        return (
            2.0 * computed * weights
            + 2.0 * new_tokens * self.hidden * self.vocabulary
            + 4.0 * self.layers * self.heads * self.head_dim * seen
        )


def gemm_peak(repeats: int = 5) -> float:
    """FLOP/s of one large float32 matrix product, the median of a few."""
    a, b = torch.randn(_SIZE, _SIZE), torch.randn(_SIZE, _SIZE)
    out = torch.empty(_SIZE, _SIZE)
    seconds = []
    for number in range(repeats + 1):
        started = time.perf_counter()
        torch.mm(a, b, out=out)
        if number:  # the first one wakes threads and touches pages
            seconds.append(time.perf_counter() - started)
    return 2.0 * _SIZE**3 / median(seconds)
