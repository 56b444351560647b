"""One step's tokens as flat tensors: rows of any length side by side, without padding.

Token `t` of the step belongs to the row `row[t]`, stands at `positions[t]` of its sequence, and
its keys and values are written to `dest[t]` of the pool. It sees the whole prefix of its group,
and of its row's own tokens those in `[0, a)` and `[b, c)`, the three columns of `spans`: for
ordinary tokens `a` is one past itself and `b = c = 0`; the tokens of one of several possible
answers to the same prompt see the prompt, `[0, a)`, and their own answer so far, `[b, c)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from worker.prefix.entry import PrefixEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTokens:
    """What one row adds to a step."""

    entry: PrefixEntry | None
    blocks: tuple[int, ...]
    ids: Sequence[int]  # [count]
    indices: Sequence[int]  # [count], among the row's own tokens
    positions: Sequence[int]  # [count], in the whole sequence
    spans: Sequence[tuple[int, int, int]]  # [count]
    wanted: Sequence[int]  # which of the `count` tokens' scores are needed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """See the module. N tokens, R rows, G groups; a group is all rows of one prefix entry."""

    ids: Tensor  # [N] int64
    positions: Tensor  # [N] int64
    dest: Tensor  # [N] int64: block * block_tokens + offset
    row: Tensor  # [N] int32
    spans: Tensor  # [N, 3] int32
    # [R, most blocks] int32, padded with a block of the row's own: another's may hold NaN, which
    # no mask takes back.
    tables: Tensor
    wanted: Tensor  # [S] int64, indices among the N tokens
    wanted_counts: tuple[int, ...]  # [R], how many of the S are each row's
    entries: tuple[PrefixEntry | None, ...]  # [G]
    group_start: tuple[int, ...]  # [G + 1], first token of each group
    row_counts: tuple[int, ...]  # [R], tokens of each row; rows are in token order
    # Per step, whatever the layer: attention fills it once and uses it in all of them.
    memo: dict[Any, Any] = field(default_factory=dict)

    @property
    def group_tensor(self) -> Tensor:
        """`group_start` on the CPU, int64."""
        return torch.tensor(self.group_start, dtype=torch.int64)


def make_batch(
    rows: Sequence[RowTokens], *, block_tokens: int, device: torch.device
) -> tuple[Batch, list[int]]:
    """Lay rows side by side, those of one entry together.

    Returns the batch and, for each row of the batch, its index in `rows`; the scores come back
    in the batch's order.
    """
    order = _grouped(rows)
    tables = [rows[i].blocks for i in order]
    widest = max(len(table) for table in tables)
    ids: list[int] = []
    positions: list[int] = []
    dest: list[int] = []
    row: list[int] = []
    spans: list[tuple[int, int, int]] = []
    wanted: list[int] = []
    entries: list[PrefixEntry | None] = []
    starts: list[int] = []
    for number, i in enumerate(order):
        tokens = rows[i]
        if not entries or entries[-1] is not tokens.entry:
            entries.append(tokens.entry)
            starts.append(len(ids))
        wanted.extend(len(ids) + w for w in tokens.wanted)
        ids.extend(tokens.ids)
        positions.extend(tokens.positions)
        spans.extend(tokens.spans)
        blocks = tokens.blocks
        dest.extend(
            blocks[at // block_tokens] * block_tokens + at % block_tokens for at in tokens.indices
        )
        row.extend([number] * len(tokens.ids))

    def tensor(values: Any, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    batch = Batch(
        ids=tensor(ids),
        positions=tensor(positions),
        dest=tensor(dest),
        row=tensor(row, torch.int32),
        spans=tensor(spans, torch.int32),
        tables=tensor([t + t[:1] * (widest - len(t)) for t in tables], torch.int32),
        wanted=tensor(wanted),
        wanted_counts=tuple(len(rows[i].wanted) for i in order),
        entries=tuple(entries),
        group_start=(*starts, len(ids)),
        row_counts=tuple(len(rows[i].ids) for i in order),
    )
    return batch, order


def _grouped(rows: Sequence[RowTokens]) -> list[int]:
    """Indices of `rows`, those of one entry together, in order of first appearance."""
    groups: dict[int, list[int]] = {}
    for index, tokens in enumerate(rows):
        groups.setdefault(id(tokens.entry), []).append(index)
    return [index for members in groups.values() for index in members]
