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
from typing import Any, cast

from contract.canonical import canonical_json, digest
from contract.errors import ModelError
from contract.files import open_regular, read_text

_WEIGHTS = "*.safetensors"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")  # weights that run code when they are loaded
_CODE = "*.py"
MAX_JSON_BYTES = 256 * 2**20  # the largest tokenizers have some 40 MB
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
    try:
        return _read(name, path)
    except (ValueError, RecursionError) as error:  # infinite numbers, text that is no Unicode
        raise ModelError(
            f"a file of model {name} holds what no digest can be taken of",
            given=type(error).__name__,
            expected="JSON with finite numbers and valid Unicode text",
        ) from error


def _read(name: str, path: Path) -> ModelFolder:
    config = _json(path, "config.json", name)
    generation = _json(path, "generation_config.json", name, optional=True)
    tokenizer_config = _json(path, "tokenizer_config.json", name, optional=True)
    chat_template = _chat_template(path, tokenizer_config, name)
    return ModelFolder(
        name=name,
        path=path,
        model_digest=digest(
            {
                "config": _stable(config),
                "generation": _stable(generation),
                "weights": _digests(_weights(path, name), name),
                **({"code": _digests(code, name)} if (code := _code_files(path, config)) else {}),
            }
        ),
        tokenizer_digest=tokenizer_digest(path, name, chat_template),
        chat_template=chat_template,
        bos_token=_token_text(tokenizer_config, "bos_token", name),
        eos_token=_token_text(tokenizer_config, "eos_token", name),
        eos_ids=_eos_ids(generation, config, name),
        max_positions=_max_positions(config, name),
        architecture=_architecture(config, name),
    )


def wants_code(path: Path, name: str) -> bool:
    """True when the model's config names code of its own (`auto_map`)."""
    return bool(_json(path, "config.json", name).get("auto_map"))


def model_files(path: Path) -> tuple[Path, ...]:
    """The files a model's description is made of, those that exist, in a fixed order."""
    texts = (path / name for name in _TEXTS)
    return (
        *(file for file in texts if file.is_file()),
        *_weight_files(path),
        *sorted(path.glob(_CODE)),
    )


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
    """sha256 (hex) of a regular file. Raises OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def _digests(files: list[Path], name: str) -> dict[str, str]:
    try:
        return {file.name: file_digest(file) for file in files}
    except OSError as error:
        raise ModelError(
            f"a file of model {name} cannot be read",
            given=f"{error.filename}: {error.strerror}",
            remedy="Let this user read the whole folder.",
        ) from error


def _weight_files(path: Path) -> list[Path]:
    return sorted(path.glob(_WEIGHTS))


def _code_files(path: Path, config: dict[str, Any]) -> list[Path]:
    """Code counts as weights do where the config asks for it: it too makes the output."""
    return sorted(path.glob(_CODE)) if config.get("auto_map") else []


def _weights(path: Path, name: str) -> list[Path]:
    if files := _weight_files(path):
        return files
    if any(next(path.glob(pattern), None) for pattern in _PICKLED):
        raise ModelError(
            f"the weights of model {name} are pickled, and loading such runs what is in them",
            given=path,
            expected=_WEIGHTS,
            remedy="Save it with save_pretrained(..., safe_serialization=True), if you trust it.",
        )
    raise ModelError(
        f"model {name} has no weights",
        given=path,
        expected=_WEIGHTS,
        remedy="Fetch it again with 'prefillq models fetch'.",
    )


def _json(path: Path, file: str, name: str, *, optional: bool = False) -> dict[str, Any]:
    try:
        data = json.loads(
            read_text(path / file, max_bytes=MAX_JSON_BYTES), parse_constant=_no_constant
        )
    except FileNotFoundError as error:
        if optional:
            return {}
        raise ModelError(
            f"model {name} has no {file}",
            given=path,
            expected="a Hugging Face model folder with a fast tokenizer",
            remedy="Fetch it with 'prefillq models fetch', or save it with save_pretrained.",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(
            f"{file} of model {name} cannot be read", given=str(reason)[:200]
        ) from error
    if not isinstance(data, dict):
        raise ModelError(
            f"{file} of model {name} is not a JSON object",
            given=path,
            remedy="Fetch or copy the model's folder anew.",
        )
    return data


def _stable(config: dict[str, Any]) -> dict[str, Any]:
    return json.loads(  # type: ignore[no-any-return]
        canonical_json({key: value for key, value in config.items() if key not in _VOLATILE})
    )


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _chat_template(path: Path, tokenizer_config: dict[str, Any], name: str) -> str:
    file = path / "chat_template.jinja"
    if file.exists():
        try:
            return read_text(file, max_bytes=MAX_JSON_BYTES)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{file.name} of model {name} cannot be read",
                given=error,
                remedy="Fetch or copy the model's folder anew.",
            ) from error
    template = tokenizer_config.get("chat_template") or ""
    if isinstance(template, list):  # several named templates, in older folders
        named = [entry for entry in template if isinstance(entry, dict)]
        default = (entry.get("template") for entry in named if entry.get("name") == "default")
        template = next(default, "")
    if not isinstance(template, str):
        raise _odd(name, "chat_template", template, "text")
    return template


def _token_text(config: dict[str, Any], field: str, name: str) -> str:
    token = config.get(field)
    text = token.get("content", "") if isinstance(token, dict) else token
    if text is None:
        return ""
    if not isinstance(text, str):
        raise _odd(name, field, text, "text")
    return text


def _eos_ids(generation: dict[str, Any], config: dict[str, Any], name: str) -> tuple[int, ...]:
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if any(type(id_) is not int or id_ < 0 for id_ in ids):
        raise _odd(name, "eos_token_id", eos, "a token id, or a list of them")
    return tuple(ids)


def _max_positions(config: dict[str, Any], name: str) -> int | None:
    text_config = config.get("text_config", config)
    if not isinstance(text_config, dict):
        raise _odd(name, "text_config", text_config, "an object")
    for field in ("max_position_embeddings", "n_positions"):
        limit = text_config.get(field)
        if limit:
            if type(limit) is not int or not 0 < limit < 2**31:
                raise _odd(name, field, limit, "a number of tokens")
            return limit
    return None


def _architecture(config: dict[str, Any], name: str) -> str:
    architectures = config.get("architectures") or [config.get("model_type", "")]
    if not isinstance(architectures, list) or not isinstance(architectures[0], str):
        raise _odd(name, "architectures", architectures, "a list of names")
    return architectures[0]


def _odd(name: str, field: str, value: object, expected: str) -> ModelError:
    return ModelError(
        f"{field} of model {name} makes no sense",
        given=repr(value)[:80],
        expected=expected,
        remedy="Fetch the model again, or mend its folder.",
    )
