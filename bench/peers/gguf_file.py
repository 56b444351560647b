"""A Llama folder becomes a GGUF file in float32, for llama.cpp.

Weights only: the benchmark passes ids in and takes ids out, so the file has no tokenizer.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import safetensors
import torch

from contract.errors import ModelError

Array = npt.NDArray[np.float32]


def write_llama_gguf(folder: Path, out: Path) -> None:
    """Write the weights of a Llama model (safetensors) to `out`, whole or not at all.

    Raises ModelError when the folder holds something else: another architecture, biases, scaled
    rotary positions or a weight that llama.cpp has no name for.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    _check(config, folder)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    layers, width = config["num_hidden_layers"], config["hidden_size"]
    head_dim = config.get("head_dim") or width // heads
    partial = out.with_name(out.name + ".part")
    writer = gguf.GGUFWriter(partial, "llama")
    writer.add_name(folder.name)
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(_rope_theta(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    for name, weight in _weights(folder):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue  # llama.cpp takes token_embd for it
        known = names.get_name(name, try_suffixes=(".weight",))
        if known is None:
            raise ModelError(
                "a weight that llama.cpp's Llama has no name for", given=name, expected=folder
            )
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = paired(weight, heads if name.endswith("q_proj.weight") else kv_heads)  # noqa: PLW2901
        writer.add_tensor(known, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(out)


def paired(weight: Array, heads: int) -> Array:
    """Reorder the rows of a query or key weight (heads * head_dim, width) for llama.cpp.

    Transformers rotates dimension i of a head with i + head_dim / 2, llama.cpp's Llama rotates
    neighbours 2i and 2i + 1.
    """
    rows, width = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, width)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, width)


def _weights(folder: Path) -> Iterator[tuple[str, Array]]:
    for file in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                yield name, tensors.get_tensor(name).to(torch.float32).numpy()


def _rope_theta(config: dict[str, Any]) -> float:
    # Transformers 5 moved it into rope_parameters.
    rope = config.get("rope_parameters") or config
    return float(rope.get("rope_theta", 10_000.0))


def _check(config: dict[str, Any], folder: Path) -> None:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    plain = (
        config.get("model_type") == "llama"
        and not config.get("attention_bias")
        and not config.get("mlp_bias")
        and rope.get("rope_type", "default") == "default"
    )
    if not plain:
        raise ModelError(
            "this model cannot be written as a GGUF file here",
            given=f"{config.get('architectures')} in {folder}",
            expected="a Llama without biases and without scaled rotary positions",
        )
