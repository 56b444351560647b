"""The GGUF file that llama.cpp is given holds the same model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from bench.peers.gguf_file import write_llama_gguf
from contract.errors import ModelError


def make_llama(folder: Path, **changes: Any) -> Any:
    """A small random Llama whose heads do not fill the hidden size's usual split."""
    settings: dict[str, Any] = {
        "vocab_size": 300,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0},
        "tie_word_embeddings": True,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model: Any = LlamaForCausalLM(LlamaConfig(**(settings | changes)))
        model.eval()
        for norm in (layer.input_layernorm for layer in model.model.layers):
            torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    model.save_pretrained(folder)
    return model


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., tuple[Any, Path]]:
    def write(**changes: Any) -> tuple[Any, Path]:
        folder, out = tmp_path / "model", tmp_path / "out" / "model.gguf"
        out.parent.mkdir()
        model = make_llama(folder, **changes)
        write_llama_gguf(folder, out)
        return model, out

    return write


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_reads_the_same_model_back(
    written: Callable[..., tuple[Any, Path]], tied: bool
) -> None:
    """Another reader of GGUF, which undoes llama.cpp's order of rows, computes the same logits."""
    model, out = written(tie_word_embeddings=tied)
    again: Any = AutoModelForCausalLM.from_pretrained(out.parent, gguf_file=out.name)
    again.eval()
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-5)


def test_the_file_says_what_llama_cpp_needs(written: Callable[..., tuple[Any, Path]]) -> None:
    """Every size is the model's, every tensor float32, and there is no tokenizer."""
    model, out = written()
    reader = gguf.GGUFReader(out)
    values = {name: field.contents() for name, field in reader.fields.items()}
    expected = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 256,
        "llama.embedding_length": 48,
        "llama.feed_forward_length": 80,
        "llama.attention.head_count": 6,
        "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 8,
        "llama.attention.value_length": 8,
        "llama.rope.dimension_count": 8,
        "llama.rope.freq_base": 50_000.0,
        "llama.vocab_size": 300,
        "tokenizer.ggml.model": "none",
    }
    assert {name: values.get(name) for name in expected} == expected
    assert values["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)
    assert {tensor.tensor_type for tensor in reader.tensors} == {gguf.GGMLQuantizationType.F32}
    names = {tensor.name for tensor in reader.tensors}
    assert "output.weight" not in names  # tied
    assert len(names) == len(list(model.parameters()))


def test_rotated_pairs_become_neighbours(written: Callable[..., tuple[Any, Path]]) -> None:
    """Row i and row i + head_dim / 2 of a query or key head lie side by side; values stay."""
    model, out = written()
    tensors = {tensor.name: torch.tensor(tensor.data) for tensor in gguf.GGUFReader(out).tensors}
    attention = model.model.layers[1].self_attn
    head = 1
    for name, module in (("attn_q", attention.q_proj), ("attn_k", attention.k_proj)):
        found = tensors[f"blk.1.{name}.weight"][head * 8 : head * 8 + 8]
        order = [head * 8 + row for row in (0, 4, 1, 5, 2, 6, 3, 7)]
        assert torch.equal(found, module.weight[order])
    assert torch.equal(tensors["blk.1.attn_v.weight"], attention.v_proj.weight)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mistral"},
        {"attention_bias": True},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
    ],
)
def test_another_model_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    """What this writer would get wrong is refused, and no file is left."""
    folder = tmp_path / "model"
    make_llama(folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | change), "utf-8")
    with pytest.raises(ModelError, match="without biases"):
        write_llama_gguf(folder, tmp_path / "model.gguf")
    assert not list(tmp_path.glob("*.gguf*"))


def test_a_broken_folder_leaves_no_file_to_load(tmp_path: Path) -> None:
    """The file gets its name only when it is whole."""
    folder = tmp_path / "model"
    make_llama(folder)
    shutil.copyfile(folder / "config.json", folder / "zz.safetensors")
    with pytest.raises(SafetensorError):
        write_llama_gguf(folder, tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()
