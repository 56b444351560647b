"""Attention in two parts, against one plain softmax over all that a token may see."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from tests.support.shared_engines import need_native
from worker.engine.native import ops
from worker.engine.shared.attention import Scoring, attend
from worker.engine.shared.batch import Batch, RowTokens, make_batch
from worker.engine.shared.pool import BLOCK_TOKENS, LayerShape, SuffixPool
from worker.prefix.entry import PrefixEntry, PrefixKey

CPU = torch.device("cpu")
KEY = PrefixKey(
    tenant="acme",
    digest="v1",
    model_digest="m",
    tokenizer_digest="t",
    dtype="float32",
    device="cpu",
)


class Case:
    """A random ragged batch with its pool, queries and, in plain lists, what each token sees."""

    def __init__(
        self,
        seed: int,
        *,
        kv_heads: int,
        per: int,
        window: int | None = None,
        prefixes: tuple[int | None, ...] = (70, 40, None),
    ) -> None:
        self.rng = random.Random(seed)
        self.random = torch.Generator().manual_seed(seed)
        self.heads, self.kv_heads, self.dim, self.value_dim = kv_heads * per, kv_heads, 16, 16
        self.window = window
        shape = LayerShape(kv_heads=kv_heads, key_dim=16, value_dim=16, window=window)
        self.pool = SuffixPool([shape], max_bytes=1 << 20, dtype=torch.float32, device=CPU)
        self.free = list(range(40))
        self.rng.shuffle(self.free)
        self.free.append(self.free.pop(self.free.index(0)))  # the first row's
        entries = [None if n is None else self._entry(n) for n in prefixes]
        rows = [self._row(self.rng.choice(entries)) for _ in range(9)]
        rows.append(self._branches(entries[0]))
        self.batch, order = make_batch(
            [r for r, _, _ in rows], block_tokens=BLOCK_TOKENS, device=CPU
        )
        self.seen = [
            (rows[i][0], keys, values)
            for i in order
            for keys, values in zip(rows[i][1], rows[i][2], strict=True)
        ]
        self.query = self.draw(len(self.batch.ids), self.heads, self.dim)

    def draw(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self.random)

    def _entry(self, tokens: int) -> PrefixEntry:
        """Keys and values of a whole prefix, cropped as a sliding-window layer crops them."""
        keys, values = (
            self.draw(1, self.kv_heads, tokens, 16),
            self.draw(1, self.kv_heads, tokens, 16),
        )
        self.whole = {**getattr(self, "whole", {}), tokens: (keys[0], values[0])}
        kept = tokens if self.window is None else min(tokens, self.window - 1)
        kv = DynamicCache(ddp_cache_data=[(keys[:, :, -kept:], values[:, :, -kept:])])
        return PrefixEntry.freeze(key=KEY, ids=tuple(range(tokens)), kv=kv, prefill_s=0.0)

    def _own(self, tokens: int) -> tuple[tuple[int, ...], Tensor, Tensor]:
        blocks = tuple(self.free.pop() for _ in range(-(-tokens // BLOCK_TOKENS)))
        keys, values = self.draw(tokens, self.kv_heads, 16), self.draw(tokens, self.kv_heads, 16)
        dest = torch.tensor(
            [blocks[at // BLOCK_TOKENS] * BLOCK_TOKENS + at % BLOCK_TOKENS for at in range(tokens)]
        )
        self.pool.store(0, dest, keys, values)
        return blocks, keys, values

    def _visible(
        self, entry: PrefixEntry | None, own: list[int], keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Keys and values [seen, kv_heads, dim] of a token that is the last of `own`."""
        if entry is not None:
            before = [t.transpose(0, 1) for t in self.whole[len(entry.ids)]]
        else:
            before = [keys[:0], values[:0]]
        every = [torch.cat([b, t[own]]) for b, t in zip(before, (keys, values), strict=True)]
        if self.window is not None:
            every = [t[-self.window :] for t in every]
        return every[0], every[1]

    def _row(self, entry: PrefixEntry | None) -> tuple[RowTokens, list[Tensor], list[Tensor]]:
        held = self.rng.choice([1, 3, 31, 32, 33, 50, 70])
        count = self.rng.randint(1, held)
        blocks, keys, values = self._own(held)
        own = range(held - count, held)
        offset = 0 if entry is None else len(entry.ids)
        row = RowTokens(
            entry=entry,
            blocks=blocks,
            ids=[0] * count,
            indices=own,
            positions=[offset + at for at in own],
            spans=[(at + 1, 0, 0) for at in own],
            wanted=(),
        )
        seen = [self._visible(entry, list(range(at + 1)), keys, values) for at in own]
        return row, [k for k, _ in seen], [v for _, v in seen]

    def _branches(self, entry: PrefixEntry | None) -> tuple[RowTokens, list[Tensor], list[Tensor]]:
        """A prompt of 30 tokens, of which the last 5 are computed, and answers of 4, 0 and 3."""
        prompt, answers = 30, (4, 0, 3)
        held = prompt + sum(answers)
        blocks, keys, values = self._own(held)
        sees = [list(range(at + 1)) for at in range(prompt)]
        spans = [(at + 1, 0, 0) for at in range(prompt)]
        places = list(range(prompt))
        start = prompt
        for length in answers:
            for at in range(start, start + length):
                sees.append([*range(prompt), *range(start, at + 1)])
                spans.append((prompt, start, at + 1))
                places.append(prompt + at - start)
            start += length
        own = range(prompt - 5, held)
        offset = 0 if entry is None else len(entry.ids)
        row = RowTokens(
            entry=entry,
            blocks=blocks,
            ids=[0] * len(own),
            indices=own,
            positions=[offset + places[at] for at in own],
            spans=[spans[at] for at in own],
            wanted=(),
        )
        seen = [self._visible(entry, sees[at], keys, values) for at in own]
        return row, [k for k, _ in seen], [v for _, v in seen]

    def plain(self, scoring: Scoring) -> Tensor:
        """One softmax a token and head."""
        out = torch.empty(len(self.seen), self.heads, self.value_dim)
        per = self.heads // self.kv_heads
        for at, (_, keys, values) in enumerate(self.seen):
            for head in range(self.heads):
                scores = keys[:, head // per] @ self.query[at, head] * scoring.scale
                if scoring.softcap is not None:
                    scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
                out[at, head] = scores.softmax(0) @ values[:, head // per]
        return out


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("kv_heads", "per", "window", "softcap"),
    [
        (2, 2, None, None),
        (1, 4, None, None),
        (3, 1, None, 5.0),
        (2, 2, 20, None),
        (2, 3, 48, 3.0),
        (1, 1, 1000, None),
    ],
)
def test_two_parts_are_one_softmax(
    seed: int, kv_heads: int, per: int, window: int | None, softcap: float | None
) -> None:
    """Rows with prefixes and without, prompts, answers and single tokens in one ragged batch."""
    case = Case(seed, kv_heads=kv_heads, per=per, window=window)
    scoring = Scoring(scale=0.3, softcap=softcap, window=window)
    out = attend(case.query, case.batch, case.pool, 0, scoring)
    assert out.shape == (len(case.query), case.heads, case.value_dim)
    torch.testing.assert_close(out, case.plain(scoring), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("prefixes", [(None,), (64,), (1, None)])
def test_without_prefixes_and_with_nothing_else(prefixes: tuple[int | None, ...]) -> None:
    """A batch that has no prefix at all, or only rows with one, or one of a single token."""
    case = Case(5, kv_heads=2, per=2, prefixes=prefixes)
    scoring = Scoring(scale=0.25)
    out = attend(case.query, case.batch, case.pool, 0, scoring)
    torch.testing.assert_close(out, case.plain(scoring), atol=2e-6, rtol=1e-5)


def test_reference_can_fail() -> None:
    """Fault: another scale, window or cap is seen by the comparison above."""
    case = Case(1, kv_heads=2, per=2, window=20)
    plain = case.plain(Scoring(scale=0.3))
    for wrong in (Scoring(scale=0.31, window=20), Scoring(scale=0.3, window=19),
                  Scoring(scale=0.3), Scoring(scale=0.3, window=20, softcap=9.0)):  # fmt: skip
        case.batch.memo.clear()
        out = attend(case.query, case.batch, case.pool, 0, wrong)
        assert not torch.allclose(out, plain, atol=1e-4)


def _native(case: Case, scale: float) -> Tensor:
    empty = torch.empty(case.kv_heads, 0, case.dim)
    layers = [None if e is None else e.kv.layers[0] for e in case.batch.entries]
    keys_and_values = torch.zeros(len(case.query), 2 * case.kv_heads * case.dim)
    return ops.shared_attention(
        torch.cat([case.query.flatten(1), keys_and_values], dim=1),
        [empty if layer is None else layer.keys[0] for layer in layers],
        [empty if layer is None else layer.values[0] for layer in layers],
        case.batch.group_tensor,
        case.pool.keys[0],
        case.pool.values[0],
        case.batch.tables,
        case.batch.row,
        case.batch.spans,
        scale,
        case.heads,
        case.kv_heads,
    )


@pytest.mark.parametrize(("seed", "per"), [*itertools.product(range(3), (1, 3))])
def test_native_attention_is_one_softmax(seed: int, per: int) -> None:
    """The same for the CPU's own code."""
    need_native()
    case = Case(seed, kv_heads=2, per=per)
    out = _native(case, 0.3).view(len(case.query), case.heads, case.value_dim)
    torch.testing.assert_close(out, case.plain(Scoring(scale=0.3)), atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("implementation", ["torch", "native"])
def test_what_others_hold_reaches_no_row(implementation: str) -> None:
    """Isolation: NaN in the blocks of one row, wherever they are, changes no other row's output,
    not even that of a row with fewer blocks."""
    if implementation == "native":
        need_native()
    case = Case(2, kv_heads=2, per=2)
    tables: Any = case.batch.tables

    def compute() -> Tensor:
        case.batch.memo.clear()
        if implementation == "native":
            return _native(case, 0.3).view(len(case.query), case.heads, -1)
        return attend(case.query, case.batch, case.pool, 0, Scoring(scale=0.3))

    before = compute()
    for row in range(len(case.batch.row_counts)):
        blocks = [int(tables[row, 0])]
        kept = case.pool.values[0][blocks].clone()
        case.pool.values[0][blocks] = torch.nan
        others = case.batch.row != row
        after = compute()
        case.pool.values[0][blocks] = kept
        assert torch.equal(after[others], before[others])
        assert after[~others].isnan().any()


def _sizes(batch: Batch) -> tuple[int, ...]:
    return batch.row_counts


def test_batches_are_ragged() -> None:
    """The cases above hold rows of many lengths, several to a bucket."""
    sizes = {n for seed in range(3) for n in _sizes(Case(seed, kv_heads=2, per=2).batch)}
    assert len(sizes) > 6
