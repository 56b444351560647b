"""`prefillq templates`: a version's whole life on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

Publish = Callable[..., None]


@pytest.fixture
def second(notes: Path) -> Path:
    """The same template with another text and other settings."""
    path = notes.with_name("notes.v2.yaml")
    text = notes.read_text("utf-8").replace("with care", "with great care")
    path.write_text(text + "generation: {max_new_tokens: 9}\n", "utf-8")
    return path


def test_publish_list_and_show(command_line: CommandLine, notes: Path, second: Path) -> None:
    """Numbers count from 1; the same content again is the same version."""
    done = command_line.run("templates", "publish", notes, second, "--json").json["published"]
    assert [item["address"] for item in done] == ["acme/notes@1", "acme/notes@2"]
    assert [item["labels"] for item in done] == [["production"], []]
    assert all(item["created"] and item["prefix_tokens"] > 16 for item in done)

    (again,) = command_line.run("templates", "publish", notes, "--json").json["published"]
    assert (again["version"], again["created"], again["digest"]) == (1, False, done[0]["digest"])
    assert "unchanged" in command_line.run("templates", "publish", notes).out

    listed = command_line.run("templates", "list", "acme", "--json").json["templates"]
    assert listed == [{"tenant": "acme", "name": "notes", "latest": 2, "labels": {"production": 1}}]
    assert command_line.run("templates", "list", "globex", "--json").json == {"templates": []}
    assert command_line.run("templates", "list", "globex").out == ""

    shown = command_line.run("templates", "show", "acme/notes", "--json").json
    assert shown["digest"] == done[0]["digest"]
    assert shown["labels"] == ["production"]
    assert shown["prefix_tokens"] == done[0]["prefix_tokens"]
    assert shown["spec"]["messages"][0]["role"] == "system"


def test_show_previews_the_prompt(command_line: CommandLine, notes: Path, publish: Publish) -> None:
    """The filled text with its control tokens, as the model will read it."""
    publish(notes)
    text = command_line.run(
        "templates", "show", "acme/notes", "--prompt", '{"note": "Hi", "count": 2}'
    ).out
    assert "<|im_start|>user\nHi (2)<|im_end|>\n<|im_start|>assistant\n" in text


def test_publish_with_a_label(
    command_line: CommandLine, notes: Path, second: Path, publish: Publish
) -> None:
    """The label points to the new version; production stays."""
    publish(notes)
    command_line.run("templates", "publish", second, "--label", "canary")
    (listed,) = command_line.run("templates", "list", "--json").json["templates"]
    assert listed["labels"] == {"canary": 2, "production": 1}


def test_nothing_is_published_when_one_file_is_refused(
    command_line: CommandLine, notes: Path
) -> None:
    """Exit status 5 from the compiler; the good file before it is not published either."""
    bad = notes.with_name("bad.yaml")
    bad.write_text(notes.read_text("utf-8").replace("with care", "<|im_start|>"), "utf-8")
    ran = command_line.run("templates", "publish", notes, bad, "--json")
    assert ran.code == 5
    assert ran.json["error"] == "template_refused"
    assert command_line.run("templates", "list", "--json").json == {"templates": []}


def test_lint_gives_5_on_errors_only(command_line: CommandLine, notes: Path) -> None:
    """Warnings are shown and do not fail."""
    assert command_line.run("templates", "lint", notes).code == 0
    warned = notes.with_name("warned.yaml")
    warned.write_text(notes.read_text("utf-8").partition("samples:")[0], "utf-8")
    ran = command_line.run("templates", "lint", notes, warned)
    assert ran.code == 0
    assert "warning: there are no samples [no_samples]" in ran.out
    bad = notes.with_name("bad.yaml")
    bad.write_text(notes.read_text("utf-8").replace("count: 3", "count: -3"), "utf-8")
    data = command_line.run("templates", "lint", notes, warned, bad, "--json")
    assert data.code == 5
    assert (data.json["errors"], data.json["warnings"]) == (1, 1)
    assert [len(file["findings"]) for file in data.json["files"]] == [0, 1, 1]


def test_diff_of_versions_and_files(
    command_line: CommandLine, notes: Path, second: Path, publish: Publish
) -> None:
    """Text on stdout, the rest as talk; a file compares equal to what it was published as."""
    publish(notes, second)
    ran = command_line.run("templates", "diff", "acme/notes@1", "acme/notes@2")
    assert ran.code == 0
    assert "+    content: Sort the note with great care." in ran.out
    assert "generation.max_new_tokens: 128 -> 9" in ran.err
    data = command_line.run("templates", "diff", "acme/notes@1", "acme/notes@2", "--json").json
    assert data["generation"] == {"max_new_tokens": [128, 9]}
    assert data["prefix"]["added"] == data["prefix"]["removed"] + 1
    assert 0 < data["prefix"]["shared"] < data["prefix"]["before"]
    same = command_line.run("templates", "diff", "acme/notes@2", second, "--json").json
    assert same["equal"]
    assert same["prefix"]["same"]


def test_labels_move_by_compare_and_set(
    command_line: CommandLine, notes: Path, second: Path, publish: Publish
) -> None:
    """Exit status 7 when the label points elsewhere than expected; nothing moves then."""
    publish(notes, second)
    label = ("templates", "label")
    assert command_line.run(*label, "acme/notes@2", "canary", "--expect", "0").code == 0
    conflict = command_line.run(*label, "acme/notes@1", "canary", "--expect", "1", "--json")
    assert (conflict.code, conflict.json["error"]) == (7, "conflict")
    moved = command_line.run(*label, "acme/notes@2", "production", "--expect", "1", "--json")
    assert moved.json == {"template": "acme/notes", "label": "production", "version": 2}
    assert command_line.run("templates", "show", "acme/notes", "--json").json["labels"] == [
        "canary",
        "production",
    ]
    assert command_line.run(*label, "acme/notes@2", "canary", "--remove").code == 1
    assert command_line.run(*label, "acme/notes", "canary", "--remove").code == 0
    assert command_line.run(*label, "acme/notes", "canary", "--remove").code == 4


def test_export_import_export_gives_the_same_bytes(
    command_line: CommandLine, notes: Path, second: Path, publish: Publish
) -> None:
    """All versions and labels, into an empty Redis."""
    publish(notes, second)
    command_line.run("templates", "label", "acme/notes@2", "canary")
    command_line.run("templates", "label", "acme/notes", "production", "--remove")
    first, again = notes.with_name("one.yaml"), notes.with_name("two.yaml")
    assert command_line.run("templates", "export", "--all", "acme/notes", "-o", first).code == 0
    before = command_line.run("templates", "list", "--json").json

    _empty(command_line)
    done = command_line.run("templates", "import", first, "--json").json["published"]
    assert [item["created"] for item in done] == [True, True]
    assert command_line.run("templates", "list", "--json").json == before
    command_line.run("templates", "export", "--all", "acme/notes", "-o", again)
    assert again.read_bytes() == first.read_bytes()


def test_exported_version_is_a_template_file(
    command_line: CommandLine, notes: Path, publish: Publish
) -> None:
    """It can be published, and is the version that it came from."""
    publish(notes)
    text = command_line.run("templates", "export", "acme/notes").out
    data = command_line.run("templates", "export", "acme/notes", "--json").json
    assert data["yaml"] == text
    copy = notes.with_name("copy.yaml")
    copy.write_text(text, "utf-8")
    (done,) = command_line.run("templates", "publish", copy, "--json").json["published"]
    assert (done["version"], done["created"]) == (1, False)


def test_bundle_is_no_template_file(
    command_line: CommandLine, notes: Path, publish: Publish
) -> None:
    """`publish` says which command reads it."""
    publish(notes)
    bundle = notes.with_name("bundle.yaml")
    command_line.run("templates", "export", "--all", "acme/notes", "-o", bundle)
    ran = command_line.run("templates", "publish", bundle)
    assert ran.code == 1
    assert "prefillq templates import" in ran.err


def test_missing_model_names_the_remedy(command_line: CommandLine, notes: Path) -> None:
    """Publishing needs the tokenizer."""
    notes.write_text(notes.read_text("utf-8").replace("smollm2-135m-instruct", "org/other"))
    ran = command_line.run("templates", "publish", notes)
    assert ran.code == 1
    assert "prefillq models fetch org/other" in ran.err
    linted = command_line.run("templates", "lint", notes, "--json")
    assert linted.code == 0
    assert json.loads(linted.out)["files"][0]["findings"][0]["code"] == "model_missing"


def _empty(command_line: CommandLine) -> None:
    from contract.redis_client import connect

    with connect(command_line.settings) as client:
        client.flushdb()
