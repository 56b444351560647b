"""A small random Llama with the real tokenizer: the real code at a hundredth of the time."""

from __future__ import annotations

import shutil
from pathlib import Path

from contract.model_folder import ModelFolder, read_model_folder

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def make_tiny_llama(folder: Path, *, tokenizer_from: Path, seed: int = 0) -> ModelFolder:
    """Save a two-layer Llama with random weights; equal seeds give equal weights.

    The weights are drawn wide, so that every token of the prompt changes the answer.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        initializer_range=0.5,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer_from / name, folder / name)
    return read_model_folder(str(folder), folder)
