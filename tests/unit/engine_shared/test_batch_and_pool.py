"""A step's tokens as flat tensors, and where their keys and values lie."""

from __future__ import annotations

import pytest
import torch

from tests.support.made_entries import made_entry
from tests.support.tiny_models import WINDOW, tiny_model
from worker.engine.base import PrefixUnsupported
from worker.engine.shared.batch import RowTokens, make_batch
from worker.engine.shared.layers import layer_shapes
from worker.engine.shared.pool import BLOCK_TOKENS, LayerShape, SuffixPool
from worker.prefix.entry import PrefixEntry

CPU = torch.device("cpu")


def tokens(
    entry: PrefixEntry | None,
    blocks: tuple[int, ...],
    own: range,
    *,
    wanted: tuple[int, ...] = (),
) -> RowTokens:
    """Ordinary tokens `own` of a row; its ids tell whose they are."""
    offset = 0 if entry is None else len(entry.ids)
    return RowTokens(
        entry=entry,
        blocks=blocks,
        ids=[100 * blocks[0] + at for at in own],
        indices=own,
        positions=[offset + at for at in own],
        spans=[(at + 1, 0, 0) for at in own],
        wanted=wanted,
    )


def test_rows_lie_side_by_side_those_of_an_entry_together() -> None:
    """Groups come in order of first appearance, and each index points to its own row."""
    a, b = made_entry("a"), made_entry("b", tokens=32)
    rows = [
        tokens(a, (7, 1), range(3, 5), wanted=(1,)),
        tokens(b, (2,), range(1), wanted=(0,)),
        tokens(None, (3,), range(2), wanted=()),
        tokens(a, (4,), range(1), wanted=(0,)),
        tokens(None, (5,), range(1, 2), wanted=(0,)),
    ]
    batch, order = make_batch(rows, block_tokens=4, device=CPU)
    assert order == [0, 3, 1, 2, 4]
    assert batch.entries == (a, b, None)
    assert batch.group_start == (0, 3, 4, 7)
    assert batch.group_tensor.tolist() == [0, 3, 4, 7]
    assert batch.row_counts == (2, 1, 1, 2, 1)
    assert batch.row.tolist() == [0, 0, 1, 2, 3, 3, 4]
    assert batch.ids.tolist() == [703, 704, 400, 200, 300, 301, 501]
    assert batch.positions.tolist() == [67, 68, 64, 32, 0, 1, 1]
    assert batch.wanted.tolist() == [1, 2, 3, 6]
    assert batch.wanted_counts == (1, 1, 1, 0, 1)
    assert batch.spans.tolist() == [[n, 0, 0] for n in (4, 5, 1, 1, 1, 2, 2)]


def test_tokens_go_to_the_blocks_of_their_row() -> None:
    """The destination is block times size plus offset, across a block's border."""
    row = tokens(None, (7, 1), range(2, 6))
    batch, _ = make_batch([row], block_tokens=4, device=CPU)
    assert batch.dest.tolist() == [30, 31, 4, 5]


def test_padding_of_a_table_is_the_rows_own() -> None:
    """Isolation: blocks are read whole, so a short row's table must not name another's block."""
    rows = [tokens(None, (0, 1, 2), range(9)), tokens(None, (5,), range(2))]
    batch, _ = make_batch(rows, block_tokens=4, device=CPU)
    assert batch.tables[0].tolist() == [0, 1, 2]
    assert set(batch.tables[1].tolist()) == {5}


def pool(*, blocks: int = 6, layers: int = 2) -> SuffixPool:
    shapes = [LayerShape(kv_heads=2, key_dim=8, value_dim=4 + n) for n in range(layers)]
    per_token = sum(2 * (8 + 4 + n) for n in range(layers)) * 4
    return SuffixPool(
        shapes, max_bytes=blocks * BLOCK_TOKENS * per_token, dtype=torch.float32, device=CPU
    )


def test_pool_takes_no_more_than_it_may() -> None:
    """The number of blocks follows from the budget; there is at least one."""
    some = pool(blocks=6)
    held = sum(t.numel() * t.element_size() for t in (*some.keys, *some.values))
    assert (some.blocks, held) == (6, 6 * some.block_bytes)
    shapes = some.layers
    least = SuffixPool(shapes, max_bytes=some.block_bytes * 2 - 1, dtype=torch.float32, device=CPU)
    assert least.blocks == 1
    assert SuffixPool(shapes, max_bytes=0, dtype=torch.float32, device=CPU).blocks == 1


def test_what_is_stored_is_read_back() -> None:
    """A row's tokens come back in order, across blocks, per layer, as copies."""
    some = pool()
    count = BLOCK_TOKENS + 5
    blocks = (4, 1)
    dest = torch.tensor([blocks[at // BLOCK_TOKENS] * BLOCK_TOKENS + at % BLOCK_TOKENS
                         for at in range(count)])  # fmt: skip
    for layer, shape in enumerate(some.layers):
        key = torch.randn(count, 2, 8)
        value = torch.randn(count, 2, shape.value_dim)
        some.store(layer, dest, key, value)
        keys, values = some.read(layer, blocks, count)
        assert torch.equal(keys, key.transpose(0, 1)[None])
        assert torch.equal(values, value.transpose(0, 1)[None])
        keys.zero_()
        assert torch.equal(some.read(layer, blocks, count)[0], key.transpose(0, 1)[None])
        assert not some.keys[layer][[0, 2, 3, 5]].any()


def test_wiped_blocks_are_zero_and_others_are_left() -> None:
    """After a wipe nothing of what was there can be read, in any layer."""
    some = pool()
    for t in (*some.keys, *some.values):
        t.fill_(torch.nan)
    some.wipe((3, 0))
    for t in (*some.keys, *some.values):
        assert not t[[0, 3]].any()
        assert t[[1, 2, 4, 5]].isnan().all()


def test_new_pool_is_zero() -> None:
    """Blocks are read whole, so what was in memory before must not be in them."""
    some = pool()
    assert not any(t.any() for t in (*some.keys, *some.values))


@pytest.mark.parametrize(
    ("architecture", "kv_heads", "dim"),
    [("llama", 2, 16), ("gpt2", 4, 16), ("gpt_neox", 4, 16), ("phi3", 2, 16), ("gemma2", 2, 16)],
)
def test_shapes_of_attention_layers(architecture: str, kv_heads: int, dim: int) -> None:
    """What a layer keeps of a token is found by asking the model."""
    shapes = layer_shapes(tiny_model(architecture).module)
    assert [(s.kv_heads, s.key_dim, s.value_dim) for s in shapes] == [(kv_heads, dim, dim)] * 2


@pytest.mark.parametrize(
    ("architecture", "windows"),
    [
        ("llama", [None, None]),
        ("mistral", [WINDOW, WINDOW]),
        ("gemma2", [WINDOW, None]),
        ("gemma3", [WINDOW, None]),
    ],
)
def test_windows_of_attention_layers(architecture: str, windows: list[int | None]) -> None:
    """Layers with a sliding window are told from those without."""
    assert [s.window for s in layer_shapes(tiny_model(architecture).module)] == windows


@pytest.mark.parametrize("architecture", ["qwen3_next", "bamba", "jamba", "mamba", "mamba2"])
def test_recurrent_layers_are_refused(architecture: str) -> None:
    """Case P10: a state that is not keys and values cannot be shared, and is said to be so."""
    with pytest.raises(PrefixUnsupported) as caught:
        layer_shapes(tiny_model(architecture).module)
    assert "state" in str(caught.value) or "cache of its own kind" in str(caught.value)
