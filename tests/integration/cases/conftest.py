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
from tests.support.templates import make_spec, publish

Publish = Callable[..., PublishedVersion]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """With the shortest lease there is: what waits for its end waits less."""
    return settings.model_copy(update={"lease_s": 4.0})


@pytest.fixture
def start_fake(settings: Settings, tiny_llama: ModelFolder, tmp_path: Path) -> Iterator[StartFake]:
    with fake_workers(settings, tiny_llama.path, tmp_path) as start:
        yield start


@pytest.fixture
def publish_template(registry: Registry, tiny_llama: ModelFolder) -> Publish:
    """Publish `acme/<name>`, whose one variable is `note`; keywords go to the spec."""

    def publish_one(name: str = "notes", **more: object) -> PublishedVersion:
        return publish(registry, make_spec(name, **more), tiny_llama)

    return publish_one


@pytest.fixture
def command_line(settings: Settings, tmp_path: Path) -> CommandLine:
    return CommandLine(settings=settings, folder=tmp_path)
