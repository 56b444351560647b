"""Finding a model by name, and when its remembered digests may be believed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from contract import model_store
from contract.errors import ModelError
from contract.model_store import find_model, model_path, stored_models
from contract.settings import Settings
from tests.support.model_folders import settle, write_model, write_weights


@pytest.fixture
def unhashable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any hashing fails, so a description can only come from memory."""

    def refuse(name: str, path: Path) -> None:
        raise AssertionError(f"{name} was hashed again")

    monkeypatch.setattr(model_store, "read_model_folder", refuse)


def test_a_missing_model_names_the_command_that_fetches_it(settings: Settings) -> None:
    """The error can be acted on without reading a manual."""
    with pytest.raises(ModelError, match="not fetched") as caught:
        find_model("org/name", settings)
    assert "prefillq models fetch org/name" in caught.value.remedy


def test_hub_ids_lie_in_one_folder_level(settings: Settings) -> None:
    """`org/name` is kept as `org--name` and listed under its own name."""
    write_model(settings.models_dir / "org--name")
    assert find_model("org/name", settings).path == settings.models_dir / "org--name"
    assert list(stored_models(settings)) == ["org/name"]


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/../b", "a/b/c", "a--b", "./x", "a b", "-x", "x/", "é", "a\n"]
)
def test_names_cannot_leave_the_models_folder(settings: Settings, name: str) -> None:
    """Whatever is no catalog name, hub id or absolute path is refused."""
    with pytest.raises(ModelError, match="not a model's name"):
        model_path(name, settings)


def test_an_absolute_path_is_a_name(settings: Settings, tmp_path: Path) -> None:
    """A folder anywhere serves, and is listed once it was looked at."""
    folder = write_model(tmp_path / "mine")
    settle(folder)
    assert find_model(str(folder), settings).name == str(folder)
    assert stored_models(settings) == {str(folder): folder}


def test_digests_are_remembered_across_processes(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashing takes seconds for a real model; the second look reads no weights."""
    folder = write_model(settings.models_dir / "tiny")
    settle(folder)
    first = find_model("tiny", settings)
    monkeypatch.setattr(model_store, "read_model_folder", None)
    assert find_model("tiny", settings) == first  # from this process
    model_store._remembered.clear()
    assert find_model("tiny", settings) == first  # from the file


@pytest.mark.parametrize("new_process", [True, False])
def test_weights_replaced_under_the_same_name_are_another_model(
    settings: Settings, *, new_process: bool
) -> None:
    """Case P19: same name, same size, even the same modification time, other weights."""
    folder = write_model(settings.models_dir / "tiny", seed=1)
    settle(folder)
    first = find_model("tiny", settings)
    before = (folder / "model.safetensors").stat()
    write_weights(folder, seed=2)
    os.utime(folder / "model.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns))
    if new_process:
        model_store._remembered.clear()
    second = find_model("tiny", settings)
    assert second.model_digest != first.model_digest
    assert second.tokenizer_digest == first.tokenizer_digest


@pytest.mark.parametrize(
    ("file", "field"),
    [("tokenizer.json", "tokenizer_digest"), ("config.json", "model_digest")],
)
def test_other_files_count_too(settings: Settings, file: str, field: str) -> None:
    """A changed tokenizer or config is noticed like changed weights."""
    folder = write_model(settings.models_dir / "tiny")
    settle(folder)
    first = find_model("tiny", settings)
    (folder / file).write_text('{"other": 1}')
    assert getattr(find_model("tiny", settings), field) != getattr(first, field)


def test_a_chat_template_that_appears_is_noticed(settings: Settings) -> None:
    """Files that were not there belong to the description as well."""
    folder = write_model(settings.models_dir / "tiny")
    settle(folder)
    assert find_model("tiny", settings).chat_template == ""
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert find_model("tiny", settings).chat_template == "{{ messages }}"


def test_files_written_a_moment_ago_are_not_remembered(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one tick of the clock a file can change and keep its time stamp."""
    monkeypatch.setattr(model_store, "_TICK_NS", 3600 * 10**9)
    write_model(settings.models_dir / "tiny")
    find_model("tiny", settings)
    assert not model_store._remembered
    assert not (settings.models_dir / ".digests").exists()


def test_verify_hashes_again(settings: Settings, unhashable: None) -> None:
    """`verify` believes no memory."""
    folder = write_model(settings.models_dir / "tiny")
    stamp = model_store._stamp(folder)
    model_store._remembered[folder] = (stamp, None)  # type: ignore[assignment]
    with pytest.raises(AssertionError, match="hashed again"):
        find_model("tiny", settings, verify=True)


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"format": 0}'])
def test_a_damaged_memory_is_made_again(settings: Settings, damage: str) -> None:
    """The remembered file is an optimisation and can be deleted or broken at will."""
    folder = write_model(settings.models_dir / "tiny")
    settle(folder)
    first = find_model("tiny", settings)
    (memory,) = (settings.models_dir / ".digests").glob("*.json")
    memory.write_text(damage)
    model_store._remembered.clear()
    assert find_model("tiny", settings) == first
    assert json.loads(memory.read_text())["path"] == str(folder)


def test_a_read_only_cache_only_costs_time(settings: Settings) -> None:
    """A model in a folder that we may not write to is found all the same."""
    folder = write_model(settings.models_dir / "tiny")
    settle(folder)
    (settings.models_dir / ".digests").write_text("no folder can be made here")
    assert find_model("tiny", settings).architecture == "Tiny"


def test_a_model_that_changes_while_it_is_read_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half old, half new weights never get a digest."""
    folder = write_model(settings.models_dir / "tiny")
    read = model_store.read_model_folder

    def read_and_disturb(name: str, path: Path) -> object:
        described = read(name, path)
        write_model(folder, seed=3)
        return described

    monkeypatch.setattr(model_store, "read_model_folder", read_and_disturb)
    with pytest.raises(ModelError, match="changed while it was read"):
        find_model("tiny", settings)
