"""Loading a model from a folder, without a hub and without its code."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from contract.errors import ModelError
from contract.model_folder import ModelFolder
from templates.tokenizer import TemplateTokenizer
from worker.prefix.entry import PrefixKey
from worker.quiet import without_bars


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in memory, ready to compute, with the tokenizer that made its templates' ids."""

    folder: ModelFolder
    module: PreTrainedModel
    tokenizer: TemplateTokenizer
    device: torch.device
    dtype: torch.dtype

    @property
    def label(self) -> str:
        """For logs: `smollm2-135m-instruct float32 on cpu`."""
        return f"{self.folder.name} {self.dtype_name} on {self.device}"

    @property
    def dtype_name(self) -> str:
        """`float32`, without torch's name before it."""
        return str(self.dtype).removeprefix("torch.")

    def prefix_key(self, tenant: str, digest: str) -> PrefixKey:
        """The key of a version's prefix on this model: all that shapes its tensors."""
        return PrefixKey(
            tenant=tenant,
            digest=digest,
            model_digest=self.folder.model_digest,
            tokenizer_digest=self.folder.tokenizer_digest,
            dtype=self.dtype_name,
            device=str(self.device),
        )


def load_model(folder: ModelFolder, *, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Load a decoder-only model from its folder (safetensors only, no code from the folder).

    Raises ModelError when it cannot be read, is an encoder-decoder, or lacks weights that
    Transformers would otherwise fill with random numbers.
    """
    try:
        with nullcontext() if sys.stderr.isatty() else without_bars():  # bars are for people
            module = _read(folder, dtype)
        module = module.to(device).eval()
    except (
        OSError,
        ValueError,
        KeyError,
        ImportError,
        RuntimeError,
        SafetensorError,
    ) as error:
        raise ModelError(
            f"model {folder.name} cannot be loaded",
            given=" ".join(f"{type(error).__name__}: {error}".split())[:300],
            expected=f"a decoder-only model with safetensors weights in {folder.path}",
            remedy="Fetch it again with 'prefillq models fetch', or choose a smaller dtype or model"
            " if memory ran out.",
        ) from error
    return LoadedModel(
        folder=folder,
        module=module,
        tokenizer=TemplateTokenizer.load(folder.path),
        device=device,
        dtype=dtype,
    )


def _read(folder: ModelFolder, dtype: torch.dtype) -> Any:
    config = AutoConfig.from_pretrained(folder.path, local_files_only=True, trust_remote_code=False)
    if config.is_encoder_decoder:
        raise ModelError(
            f"model {folder.name} is an encoder-decoder, which has no prompt prefix to cache",
            given=folder.architecture,
            expected="a decoder-only language model",
        )
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder.path,
        config=config,
        dtype=dtype,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
    )
    module, report = loaded
    lacking = sorted(report["missing_keys"]) + sorted(str(k) for k in report["mismatched_keys"])
    if lacking:
        raise ModelError(
            f"model {folder.name} lacks weights",
            given=f"{len(lacking)} missing or of another shape, the first: {lacking[0]}",
            expected=f"all weights of {folder.architecture}",
            remedy="Fetch it again with 'prefillq models fetch'.",
        )
    return module
