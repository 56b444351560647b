"""A model on disk, described without loading it: digests, limits and the chat template.

Publishing (no torch) and serving (torch) both read this, and must agree on it to the bit.
A model's digest covers its weights and the settings that change its output, not its name:
new weights under an old name are another model.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.canonical import canonical_json, digest
from contract.errors import ModelError

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TEXTS = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
# What may differ between two copies of one model without changing any output.
_VOLATILE = frozenset({"_name_or_path", "transformers_version", "_from_model_config"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """What publishing and serving need to know about a model."""

    name: str  # as templates write it: a short name, a hub id or a path
    path: Path
    model_digest: str
    tokenizer_digest: str
    chat_template: str
    bos_token: str
    eos_token: str
    eos_ids: tuple[int, ...]
    max_positions: int | None  # None when the model states no limit
    architecture: str


def read_model_folder(name: str, path: Path) -> ModelFolder:
    """Read and hash a model folder (about 1 s per GB). Raises ModelError naming what lacks."""
    config = _json(path, "config.json", name)
    generation = _json(path, "generation_config.json", name, optional=True)
    tokenizer_config = _json(path, "tokenizer_config.json", name, optional=True)
    chat_template = _chat_template(path, tokenizer_config)
    text_config = config.get("text_config", config)
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    architectures = config.get("architectures") or [config.get("model_type", "")]
    return ModelFolder(
        name=name,
        path=path,
        model_digest=digest(
            {
                "config": _stable(config),
                "generation": _stable(generation),
                "weights": {file.name: file_digest(file) for file in _weights(path, name)},
            }
        ),
        tokenizer_digest=tokenizer_digest(path, name, chat_template),
        chat_template=chat_template,
        bos_token=_token_text(tokenizer_config.get("bos_token")),
        eos_token=_token_text(tokenizer_config.get("eos_token")),
        eos_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),),
        max_positions=text_config.get("max_position_embeddings") or text_config.get("n_positions"),
        architecture=str(architectures[0]),
    )


def model_files(path: Path) -> tuple[Path, ...]:
    """The files a model's description is made of, those that exist, in a fixed order."""
    texts = (path / name for name in _TEXTS)
    return (*(file for file in texts if file.is_file()), *_weight_files(path))


def tokenizer_digest(path: Path, name: str, chat_template: str) -> str:
    """Digest of everything that decides which ids a text becomes.

    `tokenizer_config.json` counts with the fields that name tokens: Transformers adds those to
    the tokenizer's own, and the chat template prints some of them.
    """
    config = _json(path, "tokenizer_config.json", name, optional=True)
    named = {
        key: value
        for key, value in config.items()
        if key == "added_tokens_decoder" or key.endswith(("_token", "_tokens"))
    }
    return digest(
        {
            "tokenizer": _json(path, "tokenizer.json", name),
            "named_tokens": named,
            "chat": chat_template,
        }
    )


def file_digest(path: Path) -> str:
    """sha256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _weight_files(path: Path) -> list[Path]:
    for pattern in _WEIGHTS:
        if files := sorted(path.glob(pattern)):
            return files
    return []


def _weights(path: Path, name: str) -> list[Path]:
    if files := _weight_files(path):
        return files
    raise ModelError(
        f"model {name} has no weights",
        given=path,
        expected=" or ".join(_WEIGHTS),
        remedy="Fetch it again with 'prefillq models fetch'.",
    )


def _json(path: Path, file: str, name: str, *, optional: bool = False) -> dict[str, Any]:
    try:
        data = json.loads((path / file).read_text("utf-8"))
    except FileNotFoundError as error:
        if optional:
            return {}
        raise ModelError(
            f"model {name} has no {file}",
            given=path,
            expected="a Hugging Face model folder with a fast tokenizer",
            remedy="Fetch it with 'prefillq models fetch', or save it with save_pretrained.",
        ) from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} of model {name} cannot be read", given=str(error)) from error
    if not isinstance(data, dict):
        raise ModelError(f"{file} of model {name} is not a JSON object", given=path)
    return data


def _stable(config: dict[str, Any]) -> dict[str, Any]:
    return json.loads(  # type: ignore[no-any-return]
        canonical_json({key: value for key, value in config.items() if key not in _VOLATILE})
    )


def _chat_template(path: Path, tokenizer_config: dict[str, Any]) -> str:
    file = path / "chat_template.jinja"
    if file.exists():
        return file.read_text("utf-8")
    template = tokenizer_config.get("chat_template") or ""
    if isinstance(template, list):  # several named templates, in older folders
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default", "")
    return str(template)


def _token_text(token: object) -> str:
    if isinstance(token, dict):
        return str(token.get("content", ""))
    return "" if token is None else str(token)
