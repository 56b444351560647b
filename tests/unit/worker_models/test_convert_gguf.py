"""A GGUF file becomes a folder that Transformers loads, with the tokenizer of its training."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from contract.model_folder import ModelFolder, read_model_folder
from worker.models.convert import convert_gguf

WIDTH, LAYERS = 16, 2
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGED = ["ĊĊ", "ĠĠ"]


def byte_alphabet() -> list[str]:
    """How byte-level tokenizers spell the 256 bytes (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write_gguf(path: Path, *, pre: str) -> Path:
    """A random two-layer Llama whose vocabulary is bytes, three control tokens and two merges."""
    tokens = [*CONTROL, *byte_alphabet(), *MERGED]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(WIDTH // 2)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(CONTROL) + [1] * (256 + len(MERGED)))
    writer.add_token_merges(["Ċ Ċ", "Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")
    random = np.random.default_rng(0)
    shapes = {"token_embd.weight": (len(tokens), WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        block = {
            "attn_norm": (WIDTH,),
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (WIDTH // 2, WIDTH),
            "attn_v": (WIDTH // 2, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (2 * WIDTH, WIDTH),
            "ffn_up": (2 * WIDTH, WIDTH),
            "ffn_down": (WIDTH, 2 * WIDTH),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
    for name, shape in shapes.items():
        writer.add_tensor(name, random.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def convert(folder: Path, *, pre: str = "smollm") -> tuple[ModelFolder, list[str]]:
    out = folder / "out"
    out.mkdir(parents=True)
    stages: list[str] = []
    convert_gguf(
        write_gguf(folder / "tiny.gguf", pre=pre),
        out,
        progress=lambda stage, *_: stages.append(stage),
    )
    return read_model_folder("tiny", out), stages


def test_the_folder_loads_as_float32(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Weights, limits, control tokens and chat template arrive, and libraries keep quiet."""
    import torch
    from transformers import AutoModelForCausalLM

    folder, stages = convert(tmp_path)
    assert set(stages) == {"convert"}
    assert capfd.readouterr() == ("", "")
    assert (folder.architecture, folder.max_positions) == ("LlamaForCausalLM", 128)
    assert (folder.bos_token, folder.eos_token, folder.eos_ids) == (*CONTROL[1:], (2,))
    assert folder.chat_template == "{{ messages }}"
    model = AutoModelForCausalLM.from_pretrained(folder.path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.isfinite(model(torch.tensor([[1, 5, 9]])).logits).all()


def test_equal_files_give_equal_digests(tmp_path: Path) -> None:
    """Two machines that convert the same file agree on what model it is."""
    (first, _), (second, _) = convert(tmp_path / "a"), convert(tmp_path / "b")
    assert first.model_digest == second.model_digest
    assert first.tokenizer_digest == second.tokenizer_digest


@pytest.mark.parametrize(
    ("pre", "text", "tokens"),
    [
        ("smollm", "x\n\n12", ["x", "ĊĊ", "1", "2"]),
        ("smollm", "x  7", ["x", "ĠĠ", "7"]),
        ("gpt-2", "x\n\n12", ["x", "Ċ", "Ċ", "1", "2"]),
    ],
)
def test_digits_stand_alone_where_the_model_was_trained_so(
    tmp_path: Path, pre: str, text: str, tokens: list[str]
) -> None:
    """SmolLM2 saw a double line end before a number as one token; others keep GPT-2's split."""
    folder, _ = convert(tmp_path, pre=pre)
    tokenizer = Tokenizer.from_file(str(folder.path / "tokenizer.json"))
    assert tokenizer.encode(text).tokens == tokens


@pytest.mark.parametrize("shown", [True, False])
def test_libraries_are_left_as_they_were(
    tmp_path: Path, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is swapped during the conversion is back afterwards, also after an error."""
    from transformers import modeling_gguf_pytorch_utils as loader
    from transformers.utils import logging

    monkeypatch.setattr(logging, "_tqdm_active", shown)
    before = (gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm, logging.get_verbosity())
    (tmp_path / "broken.gguf").write_bytes(b"not GGUF at all")
    with pytest.raises(Exception, match=r"(?i)gguf|magic"):
        convert_gguf(tmp_path / "broken.gguf", tmp_path / "out", progress=lambda *_: None)
    after = (gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm, logging.get_verbosity())
    assert after == before
    assert logging.is_progress_bar_enabled() is shown


@pytest.mark.model
def test_the_default_model_has_the_recorded_tokenizer(smollm2: ModelFolder) -> None:
    """Everyone who fetches the default model gets the same ids and the same weights."""
    assert smollm2.tokenizer_digest.startswith("8c6b81b0307ebf38")
    assert smollm2.model_digest.startswith("520f2b682f2a12cc")
