"""Loading a model from a folder: without a hub, and without its code unless that is asked for."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from contract.errors import ModelError, PrefillqError
from contract.files import read_text
from contract.logs import get_logger
from contract.model_folder import MAX_JSON_BYTES, ModelFolder, wants_code
from templates.tokenizer import TemplateTokenizer
from worker.prefix.entry import PrefixKey
from worker.quiet import without_bars

log = get_logger(__name__)

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")  # as configs call them


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


def load_model(
    folder: ModelFolder,
    *,
    device: torch.device,
    dtype: torch.dtype,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a decoder-only model from its folder (safetensors only).

    The folder's own code (`auto_map` in config.json) is run only with `trust_remote_code`.
    Without it, Transformers' class of that architecture is taken where there is one.

    Raises ModelError when it cannot be read, needs its own code, is an encoder-decoder, or lacks
    weights that Transformers would otherwise fill with random numbers.
    """
    if wants_code(folder.path, folder.name):
        log.warning("model_brings_code", model=folder.name, run=trust_remote_code)
    try:
        _check_config(folder)
        with nullcontext() if sys.stderr.isatty() else without_bars():  # bars are for people
            module = _read(folder, dtype, trust_remote_code=trust_remote_code)
        module = module.to(device).eval()
    except PrefillqError:
        raise
    except Exception as error:
        # Libraries answer a damaged folder with whatever comes first.
        if not trust_remote_code and wants_code(folder.path, folder.name):
            raise _code_refused(folder) from error
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


def _code_refused(folder: ModelFolder) -> ModelError:
    return ModelError(
        f"model {folder.name} brings Python code, and Transformers cannot load it without",
        given=f"auto_map in {folder.path / 'config.json'}",
        expected="an architecture that this release of Transformers knows",
        remedy="Read the code; if you trust it, start with --trust-remote-code "
        "(PREFILLQ_TRUST_REMOTE_CODE=1).",
    )


def _check_config(folder: ModelFolder) -> None:
    """Raise ModelError for what Transformers would take literally, at a price.

    More layers than weights: each is built before the first is missed. An attention by the name
    of a hub's repository: its code is fetched and run, whatever `trust_remote_code` says.
    """
    config = json.loads(read_text(folder.path / "config.json", max_bytes=MAX_JSON_BYTES))
    for name in ("attn_implementation", "_attn_implementation"):
        if "/" in str(config.get(name, "")):
            raise ModelError(
                f"model {folder.name} asks for attention code from a hub",
                given=f"{name} in {folder.path / 'config.json'}",
                remedy="Take that line out.",
            )
    text_config = config.get("text_config", config)
    layers = next((text_config[name] for name in _LAYERS if name in text_config), 0)
    weights = 0
    for file in sorted(folder.path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            weights += len(tensors.keys())
    if weights and (type(layers) is not int or not 0 <= layers <= weights):
        raise ModelError(
            f"model {folder.name} cannot have so many layers",
            given=f"{layers!r:.40} layers, {weights} weights",
            expected="a weight or more in each",
        )


def _read(folder: ModelFolder, dtype: torch.dtype, *, trust_remote_code: bool) -> Any:
    config = AutoConfig.from_pretrained(
        folder.path, local_files_only=True, trust_remote_code=trust_remote_code
    )
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
        trust_remote_code=trust_remote_code,
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
