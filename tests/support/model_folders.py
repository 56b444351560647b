"""Model folders of a few bytes, complete by our rules."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from contract import model_store
from contract.model_folder import model_files
from contract.settings import Settings


def write_model(folder: Path, *, seed: float = 0.0) -> Path:
    """A folder that is complete by our rules; `seed` changes weights and not their size."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"architectures": ["Tiny"], "eos_token_id": 2}')
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    write_weights(folder, seed=seed)
    return folder


def write_weights(folder: Path, *, seed: float) -> None:
    """The weights alone; equal in size whatever the seed."""
    save_file({"w": np.full(8, seed, dtype=np.float32)}, folder / "model.safetensors")


def settle(folder: Path) -> None:
    """Wait out the moment in which a file may change without a new time stamp."""
    newest = max(file.stat().st_ctime_ns for file in model_files(folder))
    while time.time_ns() <= newest + model_store._TICK_NS:
        time.sleep(0.005)


def remains(settings: Settings) -> list[str]:
    """What lies among the models, locks and remembered digests aside."""
    if not settings.models_dir.exists():
        return []
    return sorted(
        path.name
        for path in settings.models_dir.iterdir()
        if path.name not in (".locks", ".digests")
    )
