"""Random models of many architectures, small enough to make in a test.

Their weights are drawn wide, so that what they say depends on what they read: with the usual
narrow ones a model repeats itself whatever the prompt, and no comparison can fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import transformers as hf

from contract.model_folder import ModelFolder
from templates.spec import GenerationSpec
from templates.tokenizer import TemplateTokenizer
from worker.engine.base import Engine, Generation, GenerationRequest
from worker.engine.reference import ReferenceEngine
from worker.model import LoadedModel
from worker.prefix.entry import PrefixEntry, PrefixKey

VOCABULARY = 96
EOS = 2
WINDOW = 32
POSITIONS = 256
PAST_PROOF = 128
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
    "tie_word_embeddings": False,  # tied, a random model only repeats the last token
}
_NO_ATTENTION: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "initializer_range": 0.3,
}

ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaConfig(**_COMMON),
    "qwen2": lambda: hf.Qwen2Config(**_COMMON),
    "qwen3": lambda: hf.Qwen3Config(**_COMMON, head_dim=16),
    "phi3": lambda: hf.Phi3Config(**_COMMON),
    "gpt2": lambda: hf.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=POSITIONS,
        initializer_range=0.3,
    ),
    "gpt_neox": lambda: hf.GPTNeoXConfig(
        **{k: v for k, v in _COMMON.items() if k != "num_key_value_heads"}
    ),
    "mistral": lambda: hf.MistralConfig(**_COMMON, sliding_window=WINDOW),
    "gemma2": lambda: hf.Gemma2Config(**_COMMON, head_dim=16, sliding_window=WINDOW),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **_COMMON,
        head_dim=16,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "qwen3_next": lambda: hf.Qwen3NextConfig(
        **_COMMON,
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        layer_types=["linear_attention", "full_attention"],
    ),
    "bamba": lambda: hf.BambaConfig(
        **_COMMON,
        mamba_n_heads=8,
        mamba_d_head=16,
        mamba_n_groups=1,
        mamba_d_state=16,
        attn_layer_indices=[1],
    ),
    "jamba": lambda: hf.JambaConfig(
        **_COMMON,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=2,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=8,
        mamba_dt_rank=4,
    ),
    "mamba": lambda: hf.MambaConfig(**_NO_ATTENTION, state_size=8),
    "mamba2": lambda: hf.Mamba2Config(
        **_NO_ATTENTION, state_size=16, num_heads=8, head_dim=16, n_groups=1
    ),
}

# What looks like one of the above and is not: each is right up to a length, and past it wrong
# where it is taken for ordinary attention. None is so short that the admission proof goes past it.
_ROTARY: dict[str, Any] = {"rope_theta": 1e4, "factor": 4.0}
LONG_TEXTS_DIFFER: dict[str, Callable[[], Any]] = {
    "dynamic_rope": lambda: hf.LlamaConfig(
        **(_COMMON | {"max_position_embeddings": PAST_PROOF}),
        rope_parameters={"rope_type": "dynamic", **_ROTARY},
    ),
    "longrope": lambda: hf.Phi3Config(
        **_COMMON,
        original_max_position_embeddings=PAST_PROOF,
        rope_parameters={
            "rope_type": "longrope",
            **_ROTARY,
            "original_max_position_embeddings": PAST_PROOF,
            "short_factor": [1.0] * 8,
            "long_factor": [4.0] * 8,
        },
    ),
    "chunked": lambda: hf.Llama4TextConfig(
        **_COMMON,
        head_dim=16,
        attention_chunk_size=PAST_PROOF,
        intermediate_size_mlp=128,
        num_local_experts=2,
    ),
}


class LetterTokenizer:
    """Each id from 3 is one visible character; those below are control tokens."""

    def decode(self, ids: Sequence[int], *, skip_control: bool = True) -> str:
        return "".join(chr(0x100 + i) for i in ids if i > EOS or not skip_control)


def tiny_model(
    architecture: str = "llama", *, dtype: torch.dtype = torch.float32, seed: int = 0
) -> LoadedModel:
    """The same weights for the same arguments; the global random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = hf.AutoModelForCausalLM.from_config(
            (ARCHITECTURES | LONG_TEXTS_DIFFER)[architecture]()
        )
    folder = ModelFolder(
        name=f"tiny-{architecture}",
        path=Path("nowhere"),
        model_digest=f"model-{architecture}-{seed}",
        tokenizer_digest="letters",
        chat_template="",
        bos_token="",
        eos_token="",
        eos_ids=(EOS,),
        max_positions=None if "mamba" in architecture else POSITIONS,
        architecture=architecture,
    )
    return LoadedModel(
        folder=folder,
        module=module.to(dtype).eval(),
        tokenizer=cast("TemplateTokenizer", LetterTokenizer()),
        device=torch.device("cpu"),
        dtype=dtype,
    )


def undecided(architecture: str = "llama") -> LoadedModel:
    """A model whose scores lie a tenth as far apart, so that no label has all the probability."""
    model = tiny_model(architecture)
    module: Any = model.module
    with torch.no_grad():
        module.get_output_embeddings().weight.mul_(0.1)
    return model


def tiny_engine(
    architecture: str = "llama", *, dtype: torch.dtype = torch.float32
) -> ReferenceEngine:
    """A reference engine over `tiny_model`."""
    return ReferenceEngine(tiny_model(architecture, dtype=dtype))


def key_for(model: LoadedModel, **changes: str) -> PrefixKey:
    """The key of version "v1" of tenant "acme" on this model, with some fields changed."""
    fields = {
        "tenant": "acme",
        "digest": "v1",
        "model_digest": model.folder.model_digest,
        "tokenizer_digest": model.folder.tokenizer_digest,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
    }
    return PrefixKey(**(fields | changes))


def random_ids(count: int, seed: int) -> tuple[int, ...]:
    """Ids of ordinary tokens; the same for the same arguments."""
    return tuple(random.Random(seed).choices(range(EOS + 1, VOCABULARY), k=count))


def answer(
    engine: Engine,
    ids: Sequence[int],
    entry: PrefixEntry | None = None,
    *,
    choices: tuple[tuple[int, ...], ...] | None = None,
    **generation: Any,
) -> Generation:
    """Generate greedily, 16 tokens and no early end unless told otherwise."""
    spec = GenerationSpec(**({"max_new_tokens": 16, "min_new_tokens": 16} | generation))
    return engine.generate(
        GenerationRequest(ids=tuple(ids), generation=spec, entry=entry, choices=choices)
    )
