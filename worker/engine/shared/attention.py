"""Attention of many rows over one copy of their prefix and over each row's own tokens.

One softmax over both: the two parts are computed apart and merged by their log-sum-exp, as in
flash attention (Dao et al., 2022, https://arxiv.org/abs/2205.14135) and for shared prefixes in
Hydragen (Juravsky et al., 2024, https://arxiv.org/abs/2402.05099). All rows of a version are
one matrix product with its prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.shared.batch import Batch
from worker.engine.shared.pool import BLOCK_TOKENS, SuffixPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How a layer scores: `scale * q.k`, capped to `softcap`, over `window` tokens at most."""

    scale: float
    softcap: float | None = None
    window: int | None = None  # the token itself counts as one


def attend(query: Tensor, batch: Batch, pool: SuffixPool, layer: int, scoring: Scoring) -> Tensor:
    """Outputs [N, heads, value_dim] of the step's queries [N, heads, key_dim].

    The keys and values of the step's own tokens must be in the pool already.
    """
    kv_heads = pool.layers[layer].kv_heads
    tokens, heads, dim = query.shape
    grouped = query.view(tokens, kv_heads, heads // kv_heads, dim)
    own, own_lse = _own_tokens(grouped, batch, pool, layer, scoring)
    shared, shared_lse = _prefixes(grouped, batch, layer, scoring, like=own)
    both = torch.logaddexp(own_lse, shared_lse)
    merged = own * (own_lse - both).exp()[..., None] + shared * (shared_lse - both).exp()[..., None]
    return merged.flatten(1, 2).to(query.dtype)


# Both parts give float32 outputs [N, kv_heads, per kv head, value_dim] and the log-sum-exp of
# the scores [N, kv_heads, per kv head], -inf where nothing is seen.


def _prefixes(
    query: Tensor, batch: Batch, layer: int, scoring: Scoring, *, like: Tensor
) -> tuple[Tensor, Tensor]:
    out = torch.zeros_like(like)
    lse = torch.full(like.shape[:-1], -torch.inf, device=like.device)
    for entry, start, end in zip(
        batch.entries, batch.group_start, batch.group_start[1:], strict=False
    ):
        if entry is None:
            continue
        kv = entry.kv.layers[layer]
        # [N, kv, per, dim] -> [1, kv, N * per, dim]: one product for all rows and heads.
        queries = query[start:end].transpose(0, 1).flatten(1, 2)[None]
        visible = _prefix_mask(batch, (start, end), len(entry.ids), kv.keys.shape[2], scoring)
        if visible is not None:
            visible = visible.repeat_interleave(query.shape[2], dim=0)[None]
        part, part_lse = _attention(queries, kv.keys, kv.values, visible, scoring)
        shape = (query.shape[1], end - start, query.shape[2])
        out[start:end] = part[0].view(*shape, -1).transpose(0, 1)
        lse[start:end] = part_lse[0].view(shape).transpose(0, 1)
    return out, lse


def _prefix_mask(
    batch: Batch, tokens: tuple[int, int], length: int, kept: int, scoring: Scoring
) -> Tensor | None:
    """[tokens, the last `kept` of `length` prefix positions], or None where all see all."""
    if scoring.window is None:
        return None
    memo = ("prefix", tokens, kept, scoring.window)
    if memo not in batch.memo:
        at = torch.arange(length - kept, length, device=batch.positions.device)
        batch.memo[memo] = batch.positions[slice(*tokens), None] - at < scoring.window
    mask: Tensor = batch.memo[memo]
    return mask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Bucket:
    """Rows whose tokens are padded to one length: attention over own tokens is then batched."""

    tokens: Tensor  # [rows, most tokens], indices among the step's; padding repeats the first
    real: Tensor  # [rows, most tokens] bool
    blocks: Tensor  # [rows, blocks]
    visible: Tensor  # [rows, most tokens, blocks * BLOCK_TOKENS] bool


def _own_tokens(
    query: Tensor, batch: Batch, pool: SuffixPool, layer: int, scoring: Scoring
) -> tuple[Tensor, Tensor]:
    shape = (*query.shape[:3], pool.layers[layer].value_dim)
    out = torch.empty(shape, device=query.device)
    lse = torch.empty(shape[:-1], device=query.device)
    for bucket in _buckets(batch, scoring.window):
        rows, most = bucket.tokens.shape
        keys, values = (
            pooled[bucket.blocks].transpose(1, 2).flatten(2, 3)
            for pooled in (pool.keys[layer], pool.values[layer])
        )
        # [rows, most, kv, per, dim] -> [rows, kv, most * per, dim]
        queries = query[bucket.tokens].transpose(1, 2).flatten(2, 3)
        visible = bucket.visible.repeat_interleave(query.shape[2], dim=1)
        part, part_lse = _attention(queries, keys, values, visible, scoring)
        heads = (rows, query.shape[1], most, query.shape[2])
        where = bucket.tokens[bucket.real]
        out[where] = part.view(*heads, -1).transpose(1, 2)[bucket.real]
        lse[where] = part_lse.view(heads).transpose(1, 2)[bucket.real]
    return out, lse


def _buckets(batch: Batch, window: int | None) -> list[_Bucket]:
    memo = ("own", window)
    if memo not in batch.memo:
        starts = [0]
        for count in batch.row_counts:
            starts.append(starts[-1] + count)
        by_length: dict[int, list[int]] = {}
        for row, count in enumerate(batch.row_counts):
            # Powers of two: few buckets, and less than half of each is padding.
            by_length.setdefault((count - 1).bit_length(), []).append(row)
        batch.memo[memo] = [_bucket(batch, starts, rows, window) for rows in by_length.values()]
    found: list[_Bucket] = batch.memo[memo]
    return found


def _bucket(batch: Batch, starts: list[int], rows: list[int], window: int | None) -> _Bucket:
    device = batch.positions.device
    first = torch.tensor([starts[row] for row in rows], device=device)[:, None]
    counts = torch.tensor([batch.row_counts[row] for row in rows], device=device)[:, None]
    offsets = torch.arange(max(batch.row_counts[row] for row in rows), device=device)
    real = offsets < counts
    tokens = torch.where(real, first + offsets, first)
    spans = batch.spans[tokens]  # [rows, most, 3]
    a, b, c = spans[..., None].unbind(2)
    blocks = -(-int(spans.max()) // BLOCK_TOKENS)
    at = torch.arange(blocks * BLOCK_TOKENS, device=device)
    visible = (at < a) | ((at >= b) & (at < c))
    if window is not None:
        # Own token `at` stands so far behind this one: an answer continues the prompt, `a`.
        last = torch.where(c > 0, a + c - b, a)
        behind = last - 1 - torch.where(at < a, at, a + at - b)
        visible &= behind < window
    return _Bucket(
        tokens=tokens,
        real=real,
        blocks=batch.tables[torch.tensor(rows, device=device), :blocks].long(),
        visible=visible,
    )


def _attention(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """[B, kv, Q, dim] over [B, kv, K, dim], `visible` [B, Q, K] or None: output and log-sum-exp."""
    if visible is None and scoring.softcap is None and query.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - the public function keeps the log-sum-exp to itself
            query, key, value, scale=scoring.scale
        )
        return out.float(), lse
    scores = torch.matmul(query, key.transpose(-1, -2)).float() * scoring.scale
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    if visible is not None:
        scores = scores.masked_fill(~visible[:, None], -torch.inf)
    lse = scores.logsumexp(dim=-1)
    # Where nothing is seen the scores are all -inf, and so must the weights be 0 and not NaN.
    weights = (scores - lse.clamp(min=torch.finfo(lse.dtype).min)[..., None]).exp()
    return torch.matmul(weights.to(value.dtype), value).float(), lse
