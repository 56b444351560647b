"""Fake workers on a real Redis: everything of a worker but its model, as processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract.model_folder import ModelFolder
from contract.settings import Settings
from templates.registry import Registry
from templates.version import PublishedVersion
from tests.support.command_line import CommandLine
from tests.support.fakes import StartFake, fake_workers
from tests.support.pretend import pretend_model
from tests.support.templates import make_spec, publish

Publish = Callable[..., PublishedVersion]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """With the shortest lease there is: what waits for its end waits less."""
    return settings.model_copy(update={"lease_s": 4.0})


@pytest.fixture(scope="session")
def model(smollm2: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """What the fake workers serve."""
    return pretend_model(tmp_path_factory.mktemp("pretend"), tokenizer_from=smollm2.path)


@pytest.fixture
def start_fake(settings: Settings, model: ModelFolder, tmp_path: Path) -> Iterator[StartFake]:
    with fake_workers(settings, model.path, tmp_path) as start:
        yield start


@pytest.fixture
def publish_template(registry: Registry, model: ModelFolder) -> Publish:
    """Publish `acme/<name>`, whose one variable is `note`; keywords go to the spec."""

    def publish_one(name: str = "notes", **more: object) -> PublishedVersion:
        return publish(registry, make_spec(name, **more), model)

    return publish_one


@pytest.fixture
def command_line(settings: Settings, tmp_path: Path) -> CommandLine:
    return CommandLine(settings=settings, folder=tmp_path)
