"""Which files below a folder are templates, and what is wrong with the rest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from templates.examples import example_paths
from templates.folder import Folder, read_folder
from templates.transfer import bundle_text, spec_text
from tests.support.published import make_spec


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def _found(folder: Path) -> dict[str, str]:
    found = read_folder(folder)
    return {
        **{file.path: file.template for file in found.files},
        **{one.path: one.finding.code for one in found.broken},
        **dict.fromkeys(found.others, "other"),
    }


def _codes(found: Folder) -> list[tuple[str, str]]:
    return [(one.path, one.finding.code) for one in found.broken]


def test_templates_and_bundles_are_found_at_any_depth(tmp_path: Path) -> None:
    """By name, with the path below the folder; other YAML is told apart by its keys."""
    _write(tmp_path / "a.yaml", spec_text(make_spec("acme", "a")))
    specs = [make_spec("globex", "b"), make_spec("globex", "b", text="Other: ")]
    _write(tmp_path / "deep/er/b.yml", bundle_text(specs, {"production": 1}))
    _write(tmp_path / "compose.yaml", "services: {redis: {image: redis}}\n")
    _write(tmp_path / "list.yaml", "- a\n- b\n")
    _write(tmp_path / "empty.yaml", "")
    _write(tmp_path / "notes.txt", "tenant: acme")
    _write(tmp_path / ".git/c.yaml", "tenant: [")
    _write(tmp_path / ".hidden.yaml", "tenant: [")
    assert _found(tmp_path) == {
        "a.yaml": "acme/a",
        "compose.yaml": "other",
        "deep/er/b.yml": "globex/b",
        "empty.yaml": "other",
        "list.yaml": "other",
    }
    (bundle,) = [file for file in read_folder(tmp_path).files if file.path == "deep/er/b.yml"]
    assert [len(places) for places in bundle.places] == [1, 1]
    assert bundle.bundle.labels == {"production": 1}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("tenant: acme\nname: x\n", "model"),
        ("messages: [\n", "cannot be read as YAML"),
        ("bundle: acme/x\n", "no versions"),
        (spec_text(make_spec()) + "---\n" + spec_text(make_spec(text="b")), "2 YAML documents"),
        ("%$#: {{ .Values }}", "cannot be read as YAML"),
    ],
)
def test_what_should_be_a_template_and_is_none_is_broken(
    tmp_path: Path, text: str, word: str
) -> None:
    """Also what cannot be read at all: it may be a template with a slip in it."""
    _write(tmp_path / "x.yaml", text)
    (one,) = read_folder(tmp_path).broken
    assert (one.path, one.finding.code, one.finding.level) == ("x.yaml", "spec_invalid", "error")
    assert word in one.finding.message
    assert str(tmp_path) not in one.finding.message


def test_two_files_of_one_template_are_both_refused(tmp_path: Path) -> None:
    """Each names the other. A third template is not concerned."""
    for name in ("one", "two"):
        _write(tmp_path / f"{name}.yaml", spec_text(make_spec(text=f"{name}: ")))
    _write(tmp_path / "three.yaml", spec_text(make_spec(name="other")))
    found = read_folder(tmp_path)
    assert [file.path for file in found.files] == ["three.yaml"]
    assert _codes(found) == [("one.yaml", "two_files"), ("two.yaml", "two_files")]
    assert "one.yaml is of acme/triage, and so is two.yaml" in found.broken[0].finding.message


def test_versions_side_by_side_are_such_files() -> None:
    """As in our own examples: which of the two is the newest is not in the files."""
    found = read_folder(example_paths()[0].parent)
    assert _codes(found) == [
        ("reply-draft.v1.yaml", "two_files"),
        ("reply-draft.v2.yaml", "two_files"),
    ]
    assert len(found.files) == 3


def test_links_are_followed_and_loops_told(tmp_path: Path) -> None:
    """A link to a folder above, by any way; the same folder twice is two files of a template."""
    _write(tmp_path / "src/a/x.yaml", spec_text(make_spec()))
    (tmp_path / "src/a/up").symlink_to("..")
    (tmp_path / "src/self").symlink_to("self")
    (tmp_path / "src/self.yaml").symlink_to("self.yaml")
    (tmp_path / "src/gone.yaml").symlink_to("nowhere")
    (tmp_path / "link").symlink_to(tmp_path / "src")
    assert _found(tmp_path / "link") == {
        "a/up": "symlink_loop",
        "a/x.yaml": "acme/triage",
        "gone.yaml": "spec_invalid",
        "self.yaml": "spec_invalid",
    }
    twice = _found(tmp_path)
    assert twice["src/a/x.yaml"] == twice["link/a/x.yaml"] == "two_files"


@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_broken(tmp_path: Path) -> None:
    """A pipe is not waited for, and a folder with the name of a file is a folder."""
    os.mkfifo(tmp_path / "pipe.yaml")
    _write(tmp_path / "folder.yaml/x.yaml", spec_text(make_spec()))
    (tmp_path / "latin.yaml").write_bytes(b"tenant: \xe9")
    assert _found(tmp_path) == {
        "folder.yaml/x.yaml": "acme/triage",
        "latin.yaml": "spec_invalid",
        "pipe.yaml": "spec_invalid",
    }


def test_a_folder_that_cannot_be_listed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its templates would be missing without a word."""
    _write(tmp_path / "a/x.yaml", spec_text(make_spec()))
    _write(tmp_path / "b/y.yaml", spec_text(make_spec(name="other")))
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("/a"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = read_folder(tmp_path)
    assert _codes(found) == [("a", "unreadable")]
    assert "Permission denied" in found.broken[0].finding.message
    assert [file.path for file in found.files] == ["b/y.yaml"]
