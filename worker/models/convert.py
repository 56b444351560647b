"""A GGUF file becomes a Hugging Face folder: float32 safetensors and a fast tokenizer.

The work is done by Transformers' GGUF support. What it cannot know is added here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from worker.models.progress import Progress
from worker.quiet import without_bars

# Grows when this module's output changes, so that older conversions are made again.
RECIPE = 1


def convert_gguf(gguf: Path, out: Path, *, progress: Progress) -> None:
    """Write config, weights and tokenizer of `gguf` into the folder `out`.

    Equal input and library versions give equal bytes. Needs torch, transformers, gguf and
    accelerate; raises what they raise.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {
        "pretrained_model_name_or_path": str(gguf.parent),
        "gguf_file": gguf.name,
        "local_files_only": True,
        "trust_remote_code": False,  # without it, code beside the file is asked about on stdin
    }
    progress("convert", 0, None)
    with _tamed_libraries(progress):
        tokenizer = AutoTokenizer.from_pretrained(**where)
        _split_as_trained(tokenizer, gguf)
        model: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        # The weights are plain float32 now; saving refuses a model that calls itself quantized.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer = None
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)


def _split_as_trained(tokenizer: Any, gguf: Path) -> None:
    """Put back the first step of the "smollm" pre-tokenizer: each digit stands alone.

    Transformers rebuilds byte-level tokenizers from GGUF with GPT-2's split alone, which turns
    two line ends before a number into two tokens where the model was trained on one. llama.cpp
    has the rule under LLAMA_VOCAB_PRE_TYPE_SMOLLM.
    """
    from tokenizers import pre_tokenizers
    from transformers.integrations.gguf.reader import read_gguf_metadata

    metadata, _ = read_gguf_metadata(str(gguf))
    if metadata.get("tokenizer.ggml.pre") == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )


@contextmanager
def _tamed_libraries(progress: Progress) -> Iterator[None]:
    """Their bars become our progress, their warnings are kept back, and work is done once.

    Transformers parses the whole file for the tokenizer, the config and the weights, and builds
    the same table of names for every module of the model. Remembering both halves the time.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as loader
    from transformers.utils import logging as transformers_logging

    def counted(items: Iterable[Any], **_: Any) -> Iterator[Any]:
        tensors = list(items)
        for done, tensor in enumerate(tensors):
            progress("convert", done, len(tensors))
            yield tensor
        progress("convert", len(tensors), len(tensors))

    logging: Any = transformers_logging  # without type hints
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with (
            without_bars(),
            _replaced(loader, "tqdm", counted),
            _replaced(gguf, "GGUFReader", cache(gguf.GGUFReader)),
            _replaced(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
        ):
            yield
    finally:
        logging.set_verbosity(verbosity)


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)
