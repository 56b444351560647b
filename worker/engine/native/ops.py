"""The CPU kernels as Python functions. Call `build.load_kernels` first.

All tensors are contiguous, on the CPU and float32 unless said otherwise; anything else raises
`RuntimeError` with what was given and expected. Nothing here records gradients.

A token's numbers do not depend on the other tokens of the call, nor on the number of threads:
every sum runs in an order that is fixed by the token alone (inputs in their order in `linear`,
keys in blocks of 128 positions in `shared_attention`). They are the same bits for one token alone
and among a thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor


def pack_linear(weight: Tensor) -> Tensor:
    """`weight` [out, in] as panels for `linear`: opaque, a copy, of this machine's vector width."""
    return cast("Tensor", torch.ops.prefillq.pack_linear(weight))


def linear(
    x: Tensor,
    packed: Tensor,
    out: int,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """`x` [tokens, in] times the packed weight transposed, plus bias [out] and residual
    [tokens, out] where given: [tokens, out]."""
    return cast("Tensor", torch.ops.prefillq.linear(x, packed, out, bias, residual))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x` [tokens, width] over its root mean square, times `weight` [width], as LlamaRMSNorm."""
    return cast("Tensor", torch.ops.prefillq.rms_norm(x, weight, eps))


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(first half) * second half of `gate_up` [tokens, 2 * width]: [tokens, width]."""
    return cast("Tensor", torch.ops.prefillq.silu_mul(gate_up))


def rope_store_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    pool_k: Tensor,
    pool_v: Tensor,
    dest: Tensor,
    heads: int,
    kv_heads: int,
) -> None:
    """Rotate queries and keys in place, as Llama does, and write keys and values to the pool.

    `qkv` is [tokens, (heads + 2 * kv_heads) * head size]; `cos` and `sin` [tokens, head size],
    whose dimensions d and d + size / 2 rotate together. The pools are [blocks, kv_heads,
    block size, head size]; `dest` [tokens], int64, is block * block size + offset, and no two
    tokens may share one.
    """
    torch.ops.prefillq.rope_store_(qkv, cos, sin, pool_k, pool_v, dest, heads, kv_heads)


def shared_attention(
    qkv: Tensor,
    prefix_k: Sequence[Tensor],
    prefix_v: Sequence[Tensor],
    group_start: Tensor,
    pool_k: Tensor,
    pool_v: Tensor,
    tables: Tensor,
    row: Tensor,
    spans: Tensor,
    scale: float,
    heads: int,
    kv_heads: int,
) -> Tensor:
    """Attention of every token over its group's prefix and its row's suffix, as one softmax:
    [tokens, heads * head size].

    qkv: [tokens, (heads + 2 * kv_heads) * head size], rotated; only the queries are read. The
        head size is a multiple of 8.
    prefix_k, prefix_v: one [kv_heads, length, head size] for each group; length may be 0.
    group_start: int64 [groups + 1]; tokens group_start[g] to group_start[g + 1] are of group g.
    pool_k, pool_v: [blocks, kv_heads, block size, head size].
    tables: int32 [rows, most blocks]; the block ids of each row's suffix, in order.
    row: int32 [tokens]; the table row of each token. Tokens of a row that stand together share
        the reading of its keys.
    spans: int32 [tokens, 3]; a token with (a, b, c) sees suffix positions [0, a) and [b, c),
        which include its own. A token that sees no key at all is refused.
    scale: factor on the scores, commonly head size ** -0.5.

    Positions that no token of a row sees are not read. A NaN in a row's keys or values reaches
    no other row; tokens of the same row that stand together may share it.
    """
    return cast(
        "Tensor",
        torch.ops.prefillq.shared_attention(
            qkv, list(prefix_k), list(prefix_v), group_start, pool_k, pool_v, tables, row, spans,
            scale, heads, kv_heads,
        ),
    )  # fmt: skip


def decoder_layers(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    weights: Sequence[Tensor],
    eps: float,
    prefix_k: Sequence[Tensor],
    prefix_v: Sequence[Tensor],
    group_start: Tensor,
    pool_k: Sequence[Tensor],
    pool_v: Sequence[Tensor],
    dest: Tensor,
    tables: Tensor,
    row: Tensor,
    spans: Tensor,
    scale: float,
    heads: int,
    kv_heads: int,
    inner: int,
) -> Tensor:
    """Decoder layers of the Llama family, one after the other: `x` [tokens, hidden] to the same.

    weights: seven a layer: norm, packed qkv, its bias (empty for none), packed output, norm, packed
        gate and up, packed down; `inner` is the width of gate and of up.
    prefix_k, prefix_v: all groups of the first layer, then of the second, ...
    pool_k, pool_v: one a layer. The others as in `rope_store_` and `shared_attention`.
    """
    return cast(
        "Tensor",
        torch.ops.prefillq.decoder_layers(
            x, cos, sin, list(weights), eps, list(prefix_k), list(prefix_v), group_start,
            list(pool_k), list(pool_v), dest, tables, row, spans, scale, heads, kv_heads, inner,
        ),
    )  # fmt: skip
