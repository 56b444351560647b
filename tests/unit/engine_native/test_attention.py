"""Attention over a shared prefix and paged suffixes, against plain PyTorch."""

from dataclasses import replace

import pytest
import torch

from tests.unit.engine_native.attention_cases import Batch, decode, make_batch, prefill

BATCHES = {
    "one token": lambda: make_batch([(671, decode(5))]),
    "decode 8": lambda: make_batch([(671, decode(*range(1, 9)))]),
    "no prefix": lambda: make_batch([(0, decode(1, 40, 17))]),
    "no suffix": lambda: make_batch([(129, decode(0, 0))]),
    "prefill without prefix": lambda: make_batch([(0, prefill(150))]),
    "prefill with prefix": lambda: make_batch([(33, prefill(31))]),
    "several groups": lambda: make_batch(
        [(300, decode(*range(1, 14))), (0, prefill(50)), (1, decode(3)), (40, decode(0, 7))]
    ),
    "spans with holes": lambda: make_batch(
        [(40, [[(3, 7, 9)], [(2, 4, 6), (2, 6, 9), (1, 8, 40)], [(0, 200, 300)]])]
    ),
    "long suffix": lambda: make_batch([(0, decode(3000)), (129, [[(1, 200, 700)]])]),
    "one KV head": lambda: make_batch(
        [(200, [[(5, 0, 0), (6, 0, 0)], [(1, 0, 0)]])], heads=32, kv_heads=1, dim=16
    ),
    "a KV head a head": lambda: make_batch(
        [(130, decode(*range(1, 40)))], heads=5, kv_heads=5, dim=24, block_size=4
    ),
    "four heads a KV head": lambda: make_batch(
        [(77, decode(9, 9, 9))], heads=8, kv_heads=2, dim=128
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_equals_plain_attention(name: str) -> None:
    """Every shape gives what one softmax over prefix and suffix gives in float64."""
    batch = BATCHES[name]()
    torch.testing.assert_close(batch.attend(), batch.expected(), rtol=1e-5, atol=2e-6)


def test_large_scores_stay_finite() -> None:
    """Scores of many hundreds overflow no exponential."""
    batch = make_batch([(300, decode(4, 30))], query_size=300.0)
    torch.testing.assert_close(batch.attend(), batch.expected(), rtol=1e-3, atol=1e-3)


def rows_of(batch: Batch, start: int, end: int) -> Batch:
    """Some tokens of a batch of one group, alone."""
    return replace(
        batch,
        qkv=batch.qkv[start:end].contiguous(),
        group_start=torch.tensor([0, end - start]),
        row=batch.row[start:end],
        spans=batch.spans[start:end],
    )


@pytest.mark.parametrize("length", [0, 671])
def test_a_token_has_the_same_bits_alone_and_in_any_company(length: int) -> None:
    """Neither neighbours, nor the tile, nor how the work is split change a token's numbers."""
    batch = make_batch([(length, [*decode(*range(1, 30)), *prefill(20), *decode(400)])])
    whole = batch.attend()
    for start, end in [(0, 1), (3, 5), (7, 24), (29, 49), (35, 36), (49, 50)]:
        assert torch.equal(rows_of(batch, start, end).attend(), whole[start:end])


def test_a_token_has_the_same_bits_on_one_thread() -> None:
    """The number of threads changes no number."""
    batch = make_batch([(671, decode(3, 200))])
    several = batch.attend()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert torch.equal(batch.attend(), several)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("poisoned", ["key", "value", "query"])
def test_a_nan_stays_in_its_row(poisoned: str) -> None:
    """A NaN of one row reaches that row's output and no other's."""
    batch = make_batch([(60, decode(5, 6, 7, 8))])
    clean = batch.attend()
    if poisoned == "query":
        batch.qkv[1, 0] = torch.nan
    else:
        pool = batch.pool_k if poisoned == "key" else batch.pool_v
        pool[batch.tables[1, 0].long(), :, 2] = torch.nan
    out = batch.attend()
    assert out[1].isnan().any()
    assert torch.equal(out[[0, 2, 3]], clean[[0, 2, 3]])


def test_a_nan_in_the_prefix_reaches_its_group() -> None:
    """A broken prefix is seen in every row that uses it and in no other group."""
    batch = make_batch([(60, decode(5, 6)), (60, decode(5))])
    clean = batch.attend()
    batch.prefix_k[0][:, 7] = torch.nan
    out = batch.attend()
    assert out[:2].isnan().all()
    assert torch.equal(out[2], clean[2])


def test_positions_that_nobody_sees_are_not_read() -> None:
    """Unwritten places of the pool and block ids beyond the last position do no harm."""
    batch = make_batch([(20, [[(3, 40, 44)], [(2, 0, 0)]])])
    clean = batch.attend()
    batch.pool_k[batch.tables[0, 0].long(), :, 3:] = torch.nan
    batch.pool_v[batch.tables[0, 0].long(), :, 3:] = torch.nan
    batch.tables[0, 1] = -1
    batch.tables[1, 1:] = 10_000
    assert torch.equal(batch.attend(), clean)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"row": torch.tensor([0, 9], dtype=torch.int32)}, "row: given 9"),
        ({"spans": torch.tensor([[1, 0, 0], [17, 0, 0]], dtype=torch.int32)}, "spans: given"),
        ({"spans": torch.tensor([[1, 0, 0], [0, 4, 4]], dtype=torch.int32)}, "sees no key"),
        ({"tables": torch.tensor([[0], [7]], dtype=torch.int32)}, "block id 7"),
        ({"row": torch.tensor([0, 1])}, "row: given Long"),
        ({"group_start": torch.tensor([0, 1])}, "group_start: given 0 to 1"),
        ({"kv_heads": 2}, "qkv: given"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], says: str) -> None:
    """Indexes out of range and wrong shapes raise instead of reading foreign memory."""
    batch = make_batch([(0, decode(5, 6))])
    with pytest.raises(RuntimeError, match=says):
        replace(batch, **change).attend()


def test_a_head_size_that_is_no_multiple_of_8_is_refused() -> None:
    """Head size 12 raises."""
    with pytest.raises(RuntimeError, match="head size: given 12"):
        make_batch([(10, decode(1))], dim=12).attend()


def test_no_tokens_give_no_rows() -> None:
    """An empty batch is no error."""
    batch = make_batch([(10, decode(1))])
    empty = replace(rows_of(batch, 0, 0), group_start=torch.tensor([0, 0]))
    assert empty.attend().shape == (0, 9 * 64)
