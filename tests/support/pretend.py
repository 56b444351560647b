"""A model folder without a model: a real tokenizer, and weights that nobody loads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from contract.model_folder import ModelFolder, read_model_folder
from tests.support.tiny import TOKENIZER_FILES


def pretend_model(folder: Path, *, tokenizer_from: Path) -> ModelFolder:
    """What a fake worker serves; made in no time and without torch."""
    config = {"architectures": ["PretendForCausalLM"], "max_position_embeddings": 1_000_000}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "model.safetensors").write_bytes(b"no weights")
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer_from / name, folder / name)
    return read_model_folder(str(folder), folder)
