"""`prefillq templates sync`, `export --dir`, `schema`, and warnings: files as the source."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.redis_client import connect
from templates.schema import SCHEMA_FILE
from tests.support.command_line import CommandLine

Publish = Callable[..., None]


@pytest.fixture
def folder(command_line: CommandLine, notes: Path) -> Path:
    """A folder with one template file and one YAML file of something else."""
    folder = command_line.folder / "source"
    folder.mkdir()
    notes.rename(folder / "notes.yaml")
    (folder / "compose.yaml").write_text("services: {}\n", "utf-8")
    return folder


def test_sync_publishes_what_changed(command_line: CommandLine, folder: Path) -> None:
    """First looked at, then done; a second time there is nothing to do."""
    looked = command_line.run("templates", "sync", folder, "--dry-run", "--json")
    assert looked.code == 0
    assert looked.json["published"] is False
    assert command_line.run("templates", "list", "--json").json == {"templates": []}

    done = command_line.run("templates", "sync", folder, "--json").json
    assert done == {**looked.json, "published": True}
    (step,) = done["steps"]
    assert (step["file"], step["action"], step["version"]) == ("notes.yaml", "new_template", 1)
    assert step["labels"] == [{"label": "production", "before": None, "after": 1}]
    assert done["others"] == ["compose.yaml"]

    again = command_line.run("templates", "sync", folder)
    assert again.code == 0
    assert "acme/notes@1" in again.out
    assert "unchanged" in again.out
    assert "passed over, as no templates: compose.yaml" in again.err
    assert "0 published, 1 unchanged, 0 refused" in again.err


def test_a_refused_file_gives_5_and_publishes_nothing(
    command_line: CommandLine, folder: Path
) -> None:
    """The reason is on stderr, with file and line; the plan on stdout."""
    good = (folder / "notes.yaml").read_text("utf-8")
    bad = good.replace("name: notes", "name: bad").replace("with care", "<|im_end|>")
    (folder / "bad.yaml").write_text(bad, "utf-8")
    ran = command_line.run("templates", "sync", folder)
    assert ran.code == 5
    assert "refused" in ran.out
    assert "new template" in ran.out
    assert "acme/bad cannot be published; given: line 6: message 1 spells" in ran.err
    assert command_line.run("templates", "list", "--json").json == {"templates": []}
    data = command_line.run("templates", "sync", folder, "--json")
    assert (data.code, data.json["refused"], data.json["new_template"]) == (5, 1, 1)


def test_a_folder_without_templates_is_an_error(command_line: CommandLine, tmp_path: Path) -> None:
    """Very likely the wrong one."""
    (tmp_path / "compose.yaml").write_text("services: {}\n", "utf-8")
    ran = command_line.run("templates", "sync", tmp_path, "--json")
    assert ran.code == 1
    assert ran.json["problem"] == "there are no template files"
    assert command_line.run("templates", "sync", tmp_path / "nowhere").code == 2
    assert command_line.run("templates", "sync", tmp_path, "--label", "3x!").code == 1


def test_an_exported_folder_syncs_to_nothing_and_back(
    command_line: CommandLine, folder: Path, publish: Publish
) -> None:
    """Byte for byte, also through an empty Redis; with all versions and labels."""
    notes = folder / "notes.yaml"
    second = folder / "second.yaml"
    second.write_text(notes.read_text("utf-8").replace("with care", "with great care"), "utf-8")
    other = folder / "other.yaml"
    other.write_text(notes.read_text("utf-8").replace("name: notes", "name: other"), "utf-8")
    publish(notes, second, other)
    command_line.run("templates", "label", "acme/notes@2", "canary")
    command_line.run("templates", "label", "acme/other", "production", "--remove")
    before = command_line.run("templates", "list", "--json").json

    one, two = command_line.folder / "one", command_line.folder / "two"
    written = command_line.run("templates", "export", "acme", "--dir", one, "--json").json
    assert written["files"] == [str(one / "acme/notes.yaml"), str(one / "acme/other.yaml")]
    synced = command_line.run("templates", "sync", one, "--json").json
    assert (synced["unchanged"], synced["new_version"], synced["new_template"]) == (3, 0, 0)
    assert [step["labels"] for step in synced["steps"]] == [[], [], []]

    with connect(command_line.settings) as client:
        client.flushdb()
    assert command_line.run("templates", "sync", one).code == 0
    assert command_line.run("templates", "list", "--json").json == before
    assert command_line.run("templates", "export", "acme", "--dir", two).code == 0
    for path in (one / "acme").iterdir():
        assert (two / "acme" / path.name).read_bytes() == path.read_bytes()


def test_export_of_a_tenant_without_templates_gives_4(command_line: CommandLine) -> None:
    """Nothing is written; and what --dir cannot be given with is a usage error."""
    folder = command_line.folder / "out"
    assert command_line.run("templates", "export", "globex", "--dir", folder, "--json").code == 4
    assert not folder.exists()
    assert command_line.run("templates", "export", "acme", "--dir", folder, "--all").code == 2


def test_schema_is_printed_as_shipped(command_line: CommandLine) -> None:
    """To the byte, for a file beside one's templates; in one line with --json."""
    ran = command_line.run("templates", "schema")
    assert ran.out == SCHEMA_FILE.read_text("utf-8")
    assert command_line.run("templates", "schema", "--json").json == json.loads(ran.out)


def test_warnings_are_said_and_refuse_only_with_strict(
    command_line: CommandLine, notes: Path
) -> None:
    """Publishing lints: talk on stderr, data as before; --strict is exit status 5."""
    text = notes.read_text("utf-8").partition("samples:")[0]
    notes.write_text(text.replace("with care", "with care, as of today, 2 May 2026"), "utf-8")
    for command in ("lint", "publish"):
        ran = command_line.run("templates", command, notes, "--strict")
        assert ran.code == 5, command
    assert command_line.run("templates", "list", "--json").json == {"templates": []}
    ran = command_line.run("templates", "publish", notes)
    assert ran.code == 0
    assert f"{notes}:6: warning: message 1 tells the time, '2 May 2026' [clock_in_text]" in ran.err
    assert "warning: there are no samples [no_samples]" in ran.err
    assert "warning" not in ran.out
    (done,) = command_line.run("templates", "publish", notes, "--json").json["published"]
    assert [w["code"] for w in done["warnings"]] == ["clock_in_text", "no_samples"]
    assert done["warnings"][0]["line"] == 6
