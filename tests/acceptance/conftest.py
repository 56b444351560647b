"""The command line as users run it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from contract.model_folder import ModelFolder
from contract.redis_client import Client
from contract.settings import Settings
from templates.prepare import Preparer
from templates.registry import Registry
from templates.spec import load_spec
from tests.support.command_line import CommandLine
from tests.support.kernels import share_kernels

Publish = Callable[..., None]

TEMPLATE = """\
tenant: acme
name: notes
model: smollm2-135m-instruct
messages:
  - role: system
    content: Sort the note with care. Names, numbers and dates are repeated as they are written.
  - role: user
    content: "{{ note }} ({{ count }})"
input:
  schema:
    type: object
    properties:
      note: {type: string}
      count: {type: integer, minimum: 0}
    required: [note, count]
    additionalProperties: false
samples:
  - input: {note: The parcel came on Monday., count: 3}
"""


@pytest.fixture(scope="session")
def cache_dir(smollm2: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with the real model, shared so that the model is hashed only once."""
    settings = Settings(cache_dir=tmp_path_factory.mktemp("cache"))
    share_kernels(settings.cache_dir)
    settings.models_dir.mkdir()
    (settings.models_dir / smollm2.name).symlink_to(smollm2.path)
    return settings.cache_dir


@pytest.fixture(scope="session")
def preparer(cache_dir: Path) -> Preparer:
    """Compiles in this process: tests that need a published template need not wait for it."""
    return Preparer(Settings(cache_dir=cache_dir))


@pytest.fixture
def command_line(settings: Settings, cache_dir: Path, tmp_path: Path) -> CommandLine:
    """With an empty Redis, and the real model in its cache folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    return CommandLine(settings=settings.model_copy(update={"cache_dir": cache_dir}), folder=folder)


@pytest.fixture
def notes(command_line: CommandLine) -> Path:
    """A template file; not published yet."""
    path = command_line.folder / "notes.yaml"
    path.write_text(TEMPLATE, "utf-8")
    return path


@pytest.fixture
def publish(command_line: CommandLine, client: Client, preparer: Preparer) -> Publish:
    """Do what `templates publish` does, without a process of its own."""
    registry = Registry(client, command_line.settings)

    def publish(*files: Path) -> None:
        for file in files:
            prepared = preparer.prepare(load_spec(file))
            registry.publish(prepared.spec, prepared.compiled, prepared.model)

    return publish
