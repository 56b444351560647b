"""Small batches of shared attention, and what plain PyTorch makes of them in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.native import ops

Span = tuple[int, int, int]
Rows = list[list[Span]]  # the spans of each row's tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The arguments of `shared_attention`; `groups` pairs a prefix length with its rows."""

    qkv: Tensor
    prefix_k: list[Tensor]
    prefix_v: list[Tensor]
    group_start: Tensor
    pool_k: Tensor
    pool_v: Tensor
    tables: Tensor
    row: Tensor
    spans: Tensor
    heads: int
    kv_heads: int

    @property
    def dim(self) -> int:
        return self.pool_k.shape[3]

    def attend(self) -> Tensor:
        return ops.shared_attention(
            self.qkv, self.prefix_k, self.prefix_v, self.group_start, self.pool_k, self.pool_v,
            self.tables, self.row, self.spans, self.dim**-0.5, self.heads, self.kv_heads,
        )  # fmt: skip

    def expected(self) -> Tensor:
        """The same, one token after another."""
        return torch.stack([self._token(t) for t in range(len(self.qkv))])

    def _token(self, t: int) -> Tensor:
        group = int(torch.searchsorted(self.group_start, t, right=True)) - 1
        a, b, c = self.spans[t].tolist()
        seen = [p for p in range(max(a, c)) if p < a or b <= p < c]
        blocks = self.tables[self.row[t]][[p // self.pool_k.shape[2] for p in seen]].long()
        offsets = torch.tensor([p % self.pool_k.shape[2] for p in seen], dtype=torch.long)
        share = self.heads // self.kv_heads

        def all_of(prefix: Tensor, pool: Tensor) -> Tensor:
            suffix = pool[blocks, :, offsets].transpose(0, 1)
            return torch.cat([prefix, suffix], 1).double().repeat_interleave(share, 0)

        q = self.qkv[t, : self.heads * self.dim].view(self.heads, 1, self.dim).double()
        keys = all_of(self.prefix_k[group], self.pool_k)
        scores = q @ keys.transpose(1, 2) * self.dim**-0.5
        weighed = scores.softmax(-1) @ all_of(self.prefix_v[group], self.pool_v)
        return weighed.reshape(-1).float()


def make_batch(
    groups: list[tuple[int, Rows]],
    *,
    heads: int = 9,
    kv_heads: int = 3,
    dim: int = 64,
    block_size: int = 16,
    query_size: float = 1.0,
) -> Batch:
    """Random numbers of a fixed seed in these shapes; each row has blocks of its own."""
    random = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    rows = [row for _, of_group in groups for row in of_group]
    spans = [span for row in rows for span in row]
    most = max(1, *(-(-max(a, c) // block_size) for a, _, c in spans))
    ids = torch.randperm(len(rows) * most, generator=random).int()
    counts = torch.tensor([0, *(sum(map(len, of_group)) for _, of_group in groups)])
    pool = (len(rows) * most, kv_heads, block_size, dim)
    return Batch(
        qkv=normal(len(spans), (heads + 2 * kv_heads) * dim) * query_size,
        prefix_k=[normal(kv_heads, length, dim) for length, _ in groups],
        prefix_v=[normal(kv_heads, length, dim) for length, _ in groups],
        group_start=counts.cumsum(0),
        pool_k=normal(*pool),
        pool_v=normal(*pool),
        tables=ids.view(len(rows), most),
        row=torch.tensor([r for r, row in enumerate(rows) for _ in row], dtype=torch.int32),
        spans=torch.tensor(spans, dtype=torch.int32).view(-1, 3),
        heads=heads,
        kv_heads=kv_heads,
    )


def decode(*lengths: int) -> Rows:
    """One token a row, that sees so many suffix positions."""
    return [[(length, 0, 0)] for length in lengths]


def prefill(length: int) -> Rows:
    """One row, every token of which sees those before it and itself."""
    return [[(p + 1, 0, 0) for p in range(length)]]
