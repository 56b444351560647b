"""Loading a model folder: local files, whole, decoder-only, or a clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from contract.errors import ModelError
from contract.model_folder import ModelFolder, read_model_folder
from tests.support import made_tokenizers
from worker.model import LoadedModel, load_model

CPU = torch.device("cpu")


def save(folder: Path, module: Any) -> ModelFolder:
    """Save a model with a small tokenizer."""
    module.save_pretrained(folder)
    made_tokenizers.byte_level().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    return read_model_folder("tiny", folder)


@pytest.fixture
def llama(tmp_path: Path) -> ModelFolder:
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        eos_token_id=2,
    )
    return save(tmp_path, LlamaForCausalLM(config))


def load(folder: ModelFolder, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load_model(folder, device=CPU, dtype=dtype)


@pytest.mark.parametrize("shown", [True, False])
def test_progress_bars_are_left_as_they_were(
    llama: ModelFolder, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading keeps its bars to itself and changes no setting of the process."""
    from transformers.utils import logging

    monkeypatch.setattr(logging, "_tqdm_active", shown)
    load(llama)
    assert logging.is_progress_bar_enabled() is shown


def test_loads_ready_to_compute(llama: ModelFolder) -> None:
    """The model is in evaluation mode, of the asked dtype, with tied weights and its tokenizer."""
    loaded = load(llama, torch.bfloat16)
    assert not loaded.module.training
    assert {p.dtype for p in loaded.module.parameters()} == {torch.bfloat16}
    assert loaded.label == "tiny bfloat16 on cpu"
    assert loaded.tokenizer.decode(loaded.tokenizer.encode_ordinary("hello")) == "hello"


def test_missing_weights_are_an_error(llama: ModelFolder) -> None:
    """A tensor that is not in the file is never filled with random numbers."""
    file = llama.path / "model.safetensors"
    weights = load_file(file)
    del weights["model.norm.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks weights.*model\.norm\.weight"):
        load(llama)


def test_weights_of_another_shape_are_an_error(llama: ModelFolder) -> None:
    """A file that does not fit the config is refused."""
    file = llama.path / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"] = torch.ones(7)
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError):
        load(llama)


def test_cut_off_weights_are_an_error(llama: ModelFolder) -> None:
    """A half-copied file is a ModelError that names the model and the remedy."""
    file = llama.path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"tiny cannot be loaded.*models fetch"):
        load(llama)


def test_pickled_weights_are_refused(llama: ModelFolder) -> None:
    """Only safetensors are read: a pickle can run code."""
    (llama.path / "model.safetensors").rename(llama.path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        load(llama)


def test_unknown_architecture_is_an_error(llama: ModelFolder) -> None:
    """A model type that Transformers does not know would need the folder's code: refused."""
    config = llama.path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "brand_new"}))
    with pytest.raises(ModelError, match="brand_new"):
        load(llama)


def test_encoder_decoder_is_refused(tmp_path: Path) -> None:
    """A model whose prompt is read by an encoder has no prefix to cache."""
    config = T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, eos_token_id=1
    )
    with pytest.raises(ModelError, match="encoder-decoder"):
        load(save(tmp_path, T5ForConditionalGeneration(config)))
