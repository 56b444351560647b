"""Model folders whose files say what no model's do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from contract import model_store
from contract.errors import ModelError
from contract.model_store import find_model, stored_models
from contract.settings import Settings
from producer.cli import main
from templates.tokenizer import TemplateTokenizer
from tests.support.model_folders import settle, write_model


def _show(settings: Settings, name: str) -> tuple[int, str]:
    ran = CliRunner().invoke(
        main, ["--cache-dir", str(settings.cache_dir), "models", "show", name], env={}
    )
    assert "unexpected" not in ran.output
    return ran.exit_code, ran.stderr


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", {"eos_token_id": "two"}),
        ("config.json", {"eos_token_id": {}}),
        ("config.json", {"eos_token_id": [2, None]}),
        ("config.json", {"eos_token_id": True}),
        ("config.json", {"eos_token_id": -1}),
        ("config.json", {"architectures": {}, "model_type": 5}),
        ("config.json", {"architectures": "Llama"}),
        ("config.json", {"architectures": [5]}),
        ("config.json", {"text_config": []}),
        ("config.json", {"max_position_embeddings": "many"}),
        ("config.json", {"max_position_embeddings": 2**40}),
        ("config.json", {"max_position_embeddings": 1.5}),
        ("config.json", []),
        ("config.json", b"\xff"),
        ("config.json", b"[" * 100_000),
        ("config.json", b'{"a": NaN}'),
        ("config.json", b'{"a": 1e999}'),
        ("config.json", b'{"a": "\\ud800"}'),
        ("config.json", b"9" * 5000),
        ("generation_config.json", {"eos_token_id": [[]]}),
        ("tokenizer_config.json", {"chat_template": 5}),
        ("tokenizer_config.json", {"chat_template": [{"name": "default", "template": []}]}),
        ("tokenizer_config.json", {"eos_token": {"content": 5}}),
        ("tokenizer_config.json", {"bos_token": ["<s>"]}),
        ("chat_template.jinja", b"\xff"),
        ("tokenizer.json", b""),
    ],
)
def test_odd_content_is_a_model_error(settings: Settings, file: str, content: Any) -> None:
    """For the library, and exit status 1 in one line for `models show`."""
    folder = write_model(settings.models_dir / "odd")
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / file).write_bytes(data)
    with pytest.raises(ModelError) as caught:
        find_model("odd", settings)
    assert len(str(caught.value)) < 500
    code, talk = _show(settings, "odd")
    assert (code, talk.count("\n")) == (1, 1), talk


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "file", ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"]
)
@pytest.mark.parametrize("kind", ["pipe", "device", "loop", "nothing", "folder"])
def test_files_that_are_none_are_model_errors(settings: Settings, file: str, kind: str) -> None:
    """No pipe is waited for, no device hashed for ever."""
    path = write_model(settings.models_dir / "odd") / file
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path)
        case "nothing":
            path.symlink_to(path.parent / "nothing")
        case "folder":
            path.mkdir()
    if (file, kind) in {("chat_template.jinja", "nothing"), ("chat_template.jinja", "loop")}:
        return  # the same as no such file, or found by exists() to be none
    with pytest.raises(ModelError):
        find_model("odd", settings)
    assert _show(settings, "odd")[0] == 1


def test_a_hole_of_a_terabyte_is_not_read(settings: Settings) -> None:
    """As a config; weights are hashed, which takes as long as they are large."""
    folder = write_model(settings.models_dir / "odd")
    with (folder / "config.json").open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(ModelError, match="more than"):
        find_model("odd", settings)


def test_pickled_weights_are_named_for_what_they_are(settings: Settings) -> None:
    """At once, and not first when a worker starts."""
    folder = write_model(settings.models_dir / "odd")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pickled.*safe_serialization"):
        find_model("odd", settings)


@pytest.mark.parametrize(
    "memory",
    [
        {"folder": 5},
        {"folder": {}},
        {"folder": {"eos_ids": 5}},
        {"folder": {"unknown": 1, "eos_ids": [], "max_positions": None}},
        {"path": 5},
        {"path": "/a\0b"},
        {"path": "/" + "x" * 5000},
        [],
    ],
    ids=str,
)
def test_a_damaged_memory_is_made_again(settings: Settings, memory: Any) -> None:
    """The small file beside the models is a help and no authority."""
    folder = write_model(settings.models_dir / "mine")
    settle(folder)
    right = find_model("mine", settings)
    [file] = (settings.models_dir / ".digests").glob("*.json")
    good = json.loads(file.read_text())
    file.write_text(json.dumps({**good, **memory} if isinstance(memory, dict) else memory))
    model_store._remembered.clear()
    assert find_model("mine", settings) == right
    assert "mine" in stored_models(settings)


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"5",
        b'{"model": 5}',
        b'{"model": {"vocab": []}, "added_tokens": 5}',
        b'{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": [["a"]]}, "added_tokens": []}',
        b'{"model": {"type": "Unigram", "vocab": [["a", 1]], "unk_id": 99}, "added_tokens": []}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_a_tokenizer_that_is_none_is_a_model_error(tmp_path: Path, data: bytes) -> None:
    """Whatever the library thinks of it."""
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(ModelError, match="tokenizer cannot be read"):
        TemplateTokenizer.load(tmp_path)
