"""Where models lie on disk, and finding one by the name that templates use.

No torch here: publishing needs it too. Hashing takes about a second per gigabyte, so a model's
description is remembered, in the process and in a small file beside the models, for as long as
none of its files changes size, inode or time stamp. Weights replaced under the same name are
therefore always hashed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from contract.errors import ModelError
from contract.files import is_folder, read_text
from contract.logs import get_logger
from contract.model_folder import MAX_JSON_BYTES, ModelFolder, model_files, read_model_folder
from contract.settings import Settings

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_PART}(?:/{_PART})?")
_FORMAT = 3  # of the remembered files; a new way to take digests needs a new number
# A file this young could still change without a new time stamp: clocks of file systems tick.
_TICK_NS = 50_000_000

# One file of a model: name, bytes, modified and changed (ns), inode.
Stamp = tuple[tuple[str, int, int, int, int], ...]

_log = get_logger(__name__)
_remembered: dict[Path, tuple[Stamp, ModelFolder]] = {}


def model_path(name: str, settings: Settings) -> Path:
    """The folder that belongs to a name, whether or not it exists.

    `name` is a catalog name, a hub id such as `org/name` (kept as `org--name`), or an absolute
    path. Raises ModelError for anything else.
    """
    if Path(name).is_absolute() and "\0" not in name:
        return Path(name)
    # The hub forbids "--" and ".." in ids too, so no two names share a folder.
    if _NAME.fullmatch(name) and "--" not in name and ".." not in name:
        return _models_dir(settings) / name.replace("/", "--")
    raise ModelError(
        "not a model's name",
        given=repr(name)[:120],
        expected="a catalog name, a hub id such as org/name, or an absolute path",
        remedy="See 'prefillq models list'.",
    )


def find_model(name: str, settings: Settings, *, verify: bool = False) -> ModelFolder:
    """The model of this name, with its digests. Loads nothing and asks no network.

    `verify` hashes all files again, whatever is remembered. Raises ModelError when the model
    was not fetched or its folder lacks something.
    """
    path = model_path(name, settings)
    if not is_folder(path):
        raise ModelError(
            f"model {name[:120]} is not fetched",
            given=path,
            expected="a model folder",
            remedy=f"Run 'prefillq models fetch {name[:120]}'.",
        )
    stamp = _stamp(path)
    if not verify and (known := _recall(path, stamp, settings)) is not None:
        return replace(known, name=name)
    started_ns = time.time_ns()
    folder = read_model_folder(name, path)
    if _stamp(path) != stamp:
        raise ModelError(
            f"model {name} changed while it was read",
            given=path,
            remedy="Wait until whatever writes there has ended, then try again.",
        )
    if all(max(modified, changed) < started_ns - _TICK_NS for *_, modified, changed, _ in stamp):
        _remember(path, stamp, folder, settings)
    return folder


def stored_models(settings: Settings) -> dict[str, Path]:
    """Names and folders of the models at hand: those fetched, and local folders once checked."""
    found: dict[str, Path] = {}
    models_dir = _models_dir(settings)
    if models_dir.is_dir():
        for folder in sorted(models_dir.iterdir()):
            if folder.is_dir() and not folder.name.startswith("."):
                found[folder.name.replace("--", "/")] = folder
    for file in sorted(_memory_dir(settings).glob("*.json")):
        path = Path(str(_load(file).get("path", "")).replace("\0", ""))
        if path.is_absolute() and path.parent != models_dir and is_folder(path):
            found[str(path)] = path
    return found


def _stamp(path: Path) -> Stamp:
    try:
        stats = [(file.name, file.stat()) for file in model_files(path)]
    except OSError as error:  # a link that leads nowhere, no permission
        raise ModelError(
            "a model's file cannot be read",
            given=f"{error.filename}: {error.strerror}",
            remedy="Let this user read the whole folder.",
        ) from error
    return tuple((name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for name, s in stats)


def _recall(path: Path, stamp: Stamp, settings: Settings) -> ModelFolder | None:
    if path in _remembered:
        known_stamp, known = _remembered[path]
        if known_stamp == stamp:
            return known
    data = _load(_memory_file(path, settings))
    wanted = {"format": _FORMAT, "path": str(path), "stamp": [list(item) for item in stamp]}
    if any(data.get(key) != value for key, value in wanted.items()):
        return None
    try:
        folder = _described(data["folder"], path)
    except (KeyError, TypeError):
        return None  # damaged: made again
    _remembered[path] = (stamp, folder)
    return folder


def _described(fields: dict[str, Any], path: Path) -> ModelFolder:
    """A remembered description. Raises KeyError or TypeError for what is none."""
    eos_ids, limit = fields["eos_ids"], fields["max_positions"]
    texts = [value for key, value in fields.items() if key not in ("eos_ids", "max_positions")]
    if (
        not all(isinstance(text, str) for text in texts)
        or any(type(id_) is not int for id_ in eos_ids)
        or type(limit) not in (int, type(None))
    ):
        raise TypeError("fields of other types")
    return ModelFolder(**{**fields, "path": path, "eos_ids": tuple(eos_ids)})


def _remember(path: Path, stamp: Stamp, folder: ModelFolder, settings: Settings) -> None:
    _remembered[path] = (stamp, folder)
    file = _memory_file(path, settings)
    temporary = file.with_suffix(f".{os.getpid()}")
    data = {
        "format": _FORMAT,
        "path": str(path),
        "stamp": stamp,
        "folder": {**asdict(folder), "path": str(path)},
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(data), "utf-8")
        temporary.replace(file)
    except OSError as error:  # a read-only cache only costs time: the next process hashes again
        _log.debug("model_digest_not_remembered", path=str(file), reason=str(error))


def _models_dir(settings: Settings) -> Path:
    return settings.models_dir.absolute()


def _memory_dir(settings: Settings) -> Path:
    return _models_dir(settings) / ".digests"


def _memory_file(path: Path, settings: Settings) -> Path:
    return _memory_dir(settings) / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"


def _load(file: Path) -> dict[str, Any]:
    """A remembered file, or nothing when it is missing or damaged: then it is made again."""
    try:
        data = json.loads(read_text(file, max_bytes=MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
