"""A model folder that brings Python code: never run unasked, and part of the digest when run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, dynamic_module_utils

from contract.errors import ModelError
from contract.model_folder import ModelFolder, read_model_folder
from contract.settings import Settings
from tests.support import made_tokenizers
from worker.model import LoadedModel, load_model
from worker.models import fetch_model

CODE = """\
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

Path({mark!r}).write_text("ran")


class OwnConfig(LlamaConfig):
    model_type = "own_thing"


class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""
AUTO_MAP = {"AutoConfig": "modeling.OwnConfig", "AutoModelForCausalLM": "modeling.OwnModel"}


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the code of the models here would leave a mark; it is copied to the test's folder."""
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(copies))
    monkeypatch.setattr(sys, "path", [*sys.path, str(copies)])
    return tmp_path / "mark"


def make(folder: Path, mark: Path, *, model_type: str = "own_thing", **config: Any) -> Path:
    """A small Llama that says it needs `modeling.py`."""
    settings = LlamaConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        eos_token_id=2,
    )
    LlamaForCausalLM(settings).save_pretrained(folder)
    made_tokenizers.byte_level().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["modeling.T", None]}})
    )
    (folder / "modeling.py").write_text(CODE.format(mark=str(mark)))
    file = folder / "config.json"
    found = json.loads(file.read_text())
    file.write_text(json.dumps({**found, "model_type": model_type, "auto_map": AUTO_MAP, **config}))
    return folder


def load(folder: ModelFolder, *, trust: bool = False) -> LoadedModel:
    return load_model(
        folder, device=torch.device("cpu"), dtype=torch.float32, trust_remote_code=trust
    )


def test_code_is_refused_unless_asked_for(tmp_path: Path, mark: Path) -> None:
    """With the option's name; neither fetching nor describing nor loading runs a line of it."""
    path = make(tmp_path / "model", mark)
    folder = fetch_model(str(path), Settings(cache_dir=tmp_path / "cache"))
    with pytest.raises(ModelError, match=r"--trust-remote-code.*PREFILLQ_TRUST_REMOTE_CODE"):
        load(folder)
    assert not mark.exists()


def test_code_runs_when_it_is_trusted(tmp_path: Path, mark: Path) -> None:
    """So the refusal above is what keeps it from running."""
    loaded = load(read_model_folder("own", make(tmp_path / "model", mark)), trust=True)
    assert mark.read_text() == "ran"
    assert type(loaded.module).__name__ == "OwnModel"


def test_a_known_architecture_is_taken_instead_of_code(tmp_path: Path, mark: Path) -> None:
    """Many folders bring code for older releases of Transformers, which has the model by now."""
    loaded = load(read_model_folder("own", make(tmp_path / "model", mark, model_type="llama")))
    assert type(loaded.module) is LlamaForCausalLM
    assert not mark.exists()


def test_attention_from_a_hub_is_refused(tmp_path: Path, mark: Path) -> None:
    """Transformers fetches it for a name with a slash, whether or not code is trusted."""
    path = make(tmp_path / "model", mark, model_type="llama", attn_implementation="evil/kernel")
    for trust in (False, True):
        with pytest.raises(ModelError, match="attention code from a hub"):
            load(read_model_folder("own", path), trust=trust)


def test_code_is_part_of_the_digest(tmp_path: Path, mark: Path) -> None:
    """Other code is another model; a stray script beside a model without auto_map is nothing."""
    path = make(tmp_path / "model", mark)
    before = read_model_folder("own", path).model_digest
    (path / "modeling.py").write_text("# other code")
    assert read_model_folder("own", path).model_digest != before
    config = json.loads((path / "config.json").read_text())
    del config["auto_map"]
    (path / "config.json").write_text(json.dumps(config))
    plain = read_model_folder("own", path).model_digest
    (path / "modeling.py").unlink()
    assert read_model_folder("own", path).model_digest == plain


def test_more_layers_than_weights_are_refused_before_they_are_built(
    tmp_path: Path, mark: Path
) -> None:
    """Each takes a millisecond and memory, and there may be two billion."""
    path = make(tmp_path / "model", mark, model_type="llama", num_hidden_layers=2**31 - 1)
    with pytest.raises(ModelError, match="cannot have so many layers"):
        load(read_model_folder("own", path))
