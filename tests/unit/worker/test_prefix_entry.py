"""Entries: frozen after prefill, copied for every use, checked by a checksum."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from tests.support.tiny_models import (
    ARCHITECTURES,
    WINDOW,
    answer,
    key_for,
    random_ids,
    tiny_engine,
    tiny_model,
)
from worker.prefix import tensors
from worker.prefix.entry import PrefixEntry

PREFIX = random_ids(64, seed=1)
JOB = PREFIX + random_ids(20, seed=2)


def prefill(architecture: str = "llama") -> PrefixEntry:
    model = tiny_model(architecture)
    engine = tiny_engine(architecture)
    return engine.prefill(key_for(model), PREFIX)


def forward(architecture: str, *, mode: Any) -> tuple[Any, DynamicCache]:
    """A cache filled by a plain forward, in the given autograd mode."""
    module: Any = tiny_model(architecture).module
    cache = DynamicCache(config=module.config)
    with mode:
        module(input_ids=torch.tensor([PREFIX]), cache=cache, use_cache=True)
    return module, cache


def freeze(cache: DynamicCache) -> PrefixEntry:
    key = key_for(tiny_model())
    return PrefixEntry.freeze(key=key, ids=PREFIX, kv=cache, prefill_s=0.0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_tensor_counts_in_the_audit(architecture: str) -> None:
    """Invariant: one changed element in any tensor of any kind of layer is noticed."""
    entry = prefill(architecture)
    found = [tensor for tensor in tensors.tensors(entry.kv) if tensor.numel()]
    assert len(found) >= 4
    assert entry.audit()
    for tensor in found:
        element = tensor.view(-1)[-1]
        before = element.clone()
        element.add_(1)
        assert not entry.audit()
        element.copy_(before)
    assert entry.audit()


def test_swapped_elements_are_noticed() -> None:
    """The checksum depends on where a value is, not only on the sum of all."""
    entry = prefill()
    row = entry.kv.layers[0].keys[0, 0, 0]
    row[:2] = row[[1, 0]]
    assert not entry.audit()


def test_a_cache_that_grew_is_noticed() -> None:
    """Lengths are part of the checksum."""
    entry = prefill()
    layer = entry.kv.layers[1]
    layer.keys = torch.cat([layer.keys, torch.zeros_like(layer.keys[:, :, :1])], dim=2)
    assert not entry.audit()


def test_a_counted_position_is_noticed() -> None:
    """A sliding layer's count of what it has seen is no tensor, and is audited too."""
    entry = prefill("mistral")
    entry.kv.layers[0].cumulative_length += 1
    assert not entry.audit()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_fork_shares_no_memory_with_the_entry(architecture: str) -> None:
    """What a job writes into its fork, it writes into its own memory."""
    entry = prefill(architecture)
    fork = entry.fork()
    assert tensors.checksum(fork) == entry.checksum
    for tensor in tensors.tensors(fork):
        tensor.zero_()
    assert entry.audit()


def test_a_fork_that_is_no_copy_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: with copying broken, one use changes the entry, and the audit says so."""
    engine = tiny_engine()
    entry = engine.prefill(key_for(tiny_model()), PREFIX)
    monkeypatch.setattr(copy, "deepcopy", lambda value: value)
    monkeypatch.setattr(tensors, "own_copy", copy.deepcopy)
    answer(engine, JOB, entry)
    assert not entry.audit()


@pytest.mark.parametrize("mode", [torch.no_grad(), torch.inference_mode()])
def test_prefill_without_autograd_can_be_forked(mode: Any) -> None:
    """Case P7: a cache made in no-grad or inference mode is copied, and its copy can be written."""
    _, cache = forward("qwen3_next", mode=mode)
    entry = freeze(cache)
    for tensor in tensors.tensors(entry.fork()):
        tensor.add_(1)
    assert entry.audit()


def test_prefill_inside_an_autograd_graph_is_detached() -> None:
    """Case P7: a plain deep copy of a cache that has gradients fails; an entry has none."""
    _, cache = forward("llama", mode=torch.enable_grad())
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(cache)
    entry = freeze(cache)
    assert not any(tensor.requires_grad for tensor in tensors.tensors(entry.fork()))


def test_engine_prefills_without_autograd() -> None:
    """Case P7: the engine's own prefill builds no graph, whatever the caller's mode."""
    with torch.enable_grad():
        entry = prefill()
    assert not any(tensor.requires_grad for tensor in tensors.tensors(entry.kv))


def test_sliding_layers_keep_their_window_only() -> None:
    """An entry does not keep the whole prefill alive behind a slice of it, and counts right."""
    _, cache = forward("mistral", mode=torch.no_grad())
    entry = freeze(cache)
    kept = 2 * 2 * 2 * (WINDOW - 1) * 16 * 4  # layers, K and V, heads, positions, width, bytes
    assert kept <= entry.nbytes <= kept + 64
    assert tensors.nbytes(cache) > 1.9 * entry.nbytes


def test_nbytes_is_the_cache_size() -> None:
    """A full-attention entry costs layers x 2 x heads x positions x width x 4 bytes."""
    assert prefill().nbytes == 2 * 2 * 2 * 64 * 16 * 4


def test_an_entry_keeps_its_own_copy() -> None:
    """Whoever filled the cache cannot change the entry afterwards."""
    _, cache = forward("llama", mode=torch.no_grad())
    entry = freeze(cache)
    cache.layers[0].keys.zero_()
    assert entry.audit()


def test_walk_stops_at_a_cycle() -> None:
    """An object that holds itself is walked once."""
    loop: dict[str, Any] = {"a": torch.ones(1)}
    loop["self"] = loop
    assert [path for path, _ in tensors.leaves(loop)] == ["['a']", "['self']"]


def test_tied_tensors_are_counted_and_copied_once() -> None:
    """Layers that share a tensor still share one in the copy."""
    shared = torch.ones(8)
    mine = tensors.own_copy([shared, shared])
    assert mine[0] is mine[1]
    assert mine[0] is not shared
    assert tensors.nbytes(mine) == 32
