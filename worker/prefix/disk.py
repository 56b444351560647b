"""Prefilled prefixes on disk, so that a worker that starts again need not compute them again.

One safetensors file per entry. A file is trusted only when it names exactly this prefix, this
software and this hardware, and when the cache rebuilt from it has the checksum of the one that
was stored; any other file is deleted, and its prefix is computed again. Files hold what a tenant
wrote, as keys and values: the folder is the user's alone.
"""

from __future__ import annotations

import os
import platform
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from io import BufferedReader
from json import loads
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from contract.canonical import canonical_json, digest
from contract.errors import PrefillqError
from contract.files import open_regular
from contract.logs import get_logger
from worker.engine.code import code_digest
from worker.engine.parity import Outcome, Parity
from worker.prefix import tensors
from worker.prefix.entry import PrefixEntry, PrefixKey
from worker.versions import library_versions

log = get_logger(__name__)

FORMAT = 1  # another layout of the file, or another way to take the checksum, is another format
SUFFIX = ".safetensors"
# What a killed writer left behind is removed at this age; a file being written is never as old.
LEFT_BEHIND_S = 600.0


class Unfit(PrefillqError):
    """A cache that no file can hold, or a file that does not hold what was stored in it."""

    code = "prefix_unfit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An entry from disk, and what the greedy check once found for this very engine, if it ran."""

    entry: PrefixEntry
    parity: Parity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """What the folder holds now, for listings. `bytes` includes files not yet finished."""

    files: int
    bytes: int
    max_bytes: int


class PrefixStore:
    """A folder of entries within a budget, least recently loaded or stored first out.

    Safe to use from several threads and processes: a file appears whole, by a rename, and what
    one removes while another reads it stays readable to the end. For the length of a save the
    folder may hold one file more than the budget allows. Nothing here fails a job: what cannot
    be read or written is logged.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def load(self, key: PrefixKey, ids: Sequence[int], *, engine: str) -> Stored | None:
        """The entry of this key and these ids, on the key's device; None when there is none."""
        path = self._path(key, ids)
        try:
            self._check_file(path)
            stored = _read(path, key, tuple(ids), engine)
        except FileNotFoundError:
            return None
        except RecursionError:
            log.warning("prefix_file_refused", file=path.name, reason="too deeply nested")
            self._unlink(path)
            return None
        except (OSError, RuntimeError, MemoryError) as error:
            # No permission, out of file handles or of the device's memory: not the file's fault.
            log.warning("prefix_not_loaded", file=path.name, reason=str(error))
            return None
        except (
            Unfit,
            SafetensorError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            reason = error.problem if isinstance(error, Unfit) else repr(error)[:200]
            log.warning("prefix_file_refused", file=path.name, reason=reason)
            self._unlink(path)
            return None
        try:
            os.utime(path)
        except OSError as error:  # removed just now, or a read-only folder: the entry is good
            log.debug("prefix_file_not_touched", file=path.name, reason=str(error))
        return stored

    def save(self, entry: PrefixEntry, parity: Parity, *, engine: str) -> None:
        """Store an entry with what the check of it found. Caches of other kinds are left out."""
        path = self._path(entry.key, entry.ids)
        started = time.perf_counter()
        try:
            written = self._write(path, entry, parity, engine)
        except (Unfit, SafetensorError, OSError, MemoryError, RuntimeError) as error:
            # A full disk, mostly; a RuntimeError is torch out of memory, or layers that share keys.
            reason = error.problem if isinstance(error, Unfit) else str(error)
            log.warning("prefix_not_stored", file=path.name, reason=reason)
            return
        seconds = round(time.perf_counter() - started, 4)
        log.info("prefix_stored", file=path.name, nbytes=written, seconds=seconds)

    def remove(self, key: PrefixKey) -> None:
        """Forget what is stored under a key, of any software version."""
        for path in self._folder.glob(f"{_key_digest(key)}-*{SUFFIX}"):
            self._unlink(path)

    def usage(self) -> DiskUsage:
        """Count the files; a system call each."""
        found = list(self._files())
        return DiskUsage(
            files=sum(path.suffix == SUFFIX for _, _, path in found),
            bytes=sum(size for _, size, _ in found),
            max_bytes=self._max_bytes,
        )

    def _path(self, key: PrefixKey, ids: Sequence[int]) -> Path:
        # The key first, so that its files can be found without the ids.
        name = f"{_key_digest(key)}-{digest(_identity(key, ids))[:32]}"
        return self._folder / f"{name}{SUFFIX}"

    def _write(self, path: Path, entry: PrefixEntry, parity: Parity, engine: str) -> int:
        layers = _layers(entry.kv)
        found = _tensors(entry.kv)
        # Also finds attributes that no file keeps, and an entry that changed since its prefill.
        if tensors.checksum(_rebuilt(layers, found.__getitem__)) != entry.checksum:
            raise Unfit("the cache would not be the same when rebuilt")
        if not self._make_room(entry.nbytes):
            raise Unfit(f"{entry.nbytes} bytes do not fit in {self._max_bytes}")
        about = canonical_json(
            {
                **_identity(entry.key, entry.ids),
                "layers": layers,
                "checksum": entry.checksum,
                "prefill_s": entry.prefill_s,
                "engine": engine,
                "parity": asdict(parity),
            }
        )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".", suffix=".part")  # mode 0600
        os.close(handle)
        part = Path(name)
        try:
            plain = {name: tensor.cpu().contiguous() for name, tensor in found.items()}
            save_file(plain, part, metadata={"about": about, "digest": digest(about)})
            _fsync(part)
            size = part.stat().st_size
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        _fsync(self._folder)
        self._make_room(0)  # the header's bytes, and what other workers stored meanwhile
        return size

    def _make_room(self, nbytes: int) -> bool:
        """Remove the oldest until so many bytes fit; False when they never do."""
        if nbytes > self._max_bytes:
            return False
        found = sorted(self._files())
        total = nbytes + sum(size for _, size, _ in found)
        for modified, size, path in found:
            whole = path.suffix == SUFFIX
            if total > self._max_bytes if whole else time.time() - modified > LEFT_BEHIND_S:
                self._unlink(path)
                total -= size
        return True

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """(modified, bytes, path) of all files, half-written ones included."""
        for path in self._folder.glob("*"):
            try:
                found = path.lstat()
            except FileNotFoundError:  # another worker removed it
                continue
            yield found.st_mtime, found.st_size, path

    def _check_file(self, path: Path) -> None:
        """Raise Unfit for what must not even be opened: a pipe blocks, a huge file fills memory."""
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise Unfit("no regular file")
        if found.st_size > self._max_bytes:
            raise Unfit(f"{found.st_size} bytes, over the budget of {self._max_bytes}")

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("prefix_file_not_removed", file=path.name, reason=str(error))


def _key_digest(key: PrefixKey) -> str:
    return digest(asdict(key))[:32]


def _identity(key: PrefixKey, ids: Sequence[int]) -> dict[str, Any]:
    """All that decides the bits of an entry. The key has no software and no machine in it."""
    device = torch.device(key.device)
    return {
        "format": FORMAT,
        "key": asdict(key),
        "ids": digest(list(ids)),
        **library_versions(),
        "code": code_digest(),
        "hardware": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def _read(path: Path, key: PrefixKey, ids: tuple[int, ...], engine: str) -> Stored:
    with open_regular(path) as opened, safe_open(_name_of(opened, path), framework="pt") as file:
        about = _about(file.metadata() or {})
        for field, ours in _identity(key, ids).items():
            if about.get(field) != ours:
                raise Unfit(f"another {field}")
        # The file is mapped into memory; a copy outlives it, and no longer depends on the disk.
        kv = _rebuilt(about["layers"], lambda name: file.get_tensor(name).to(key.device, copy=True))
    layers: list[Any] = kv.layers
    for layer in layers:
        shapes = [tuple(tensor.shape) for tensor in (layer.keys, layer.values)]
        if any(len(shape) != 4 or shape[0] != 1 or shape[2] > len(ids) for shape in shapes):
            raise Unfit("another shape")
    if tensors.checksum(kv) != about["checksum"]:
        raise Unfit("another checksum")
    entry = PrefixEntry(
        key=key,
        ids=ids,
        nbytes=tensors.nbytes(kv),
        checksum=about["checksum"],
        prefill_s=about["prefill_s"],
        kv=kv,
        loaded=True,
    )
    return Stored(
        entry=entry, parity=_parity(about["parity"]) if about["engine"] == engine else None
    )


def _name_of(opened: BufferedReader, path: Path) -> Path:
    """A name for the very file that is open: safetensors opens it by name, once for its header and
    again for the tensors, and another worker may remove or replace it at any time.
    """
    name = Path(f"/dev/fd/{opened.fileno()}")
    return name if name.exists() else path


def _parity(found: dict[str, Any]) -> Parity:
    parity = Parity(**found)
    kinds = (type(parity.checked_tokens), type(parity.max_logit_error), type(parity.seconds))
    if parity.outcome not in get_args(Outcome) or kinds != (int, float, float):
        raise Unfit("another kind of check")
    return parity


def _about(metadata: dict[str, str]) -> dict[str, Any]:
    """What the header says, if it is ours and whole."""
    text = metadata.get("about", "")
    if metadata.get("digest") != digest(text):
        raise Unfit("no header of ours")
    about = loads(text)
    if not isinstance(about, dict):
        raise Unfit("no header of ours")
    return about


def _layers(kv: Any) -> list[dict[str, int]]:
    """For each layer what its tensors do not say: nothing, or a sliding layer's two numbers."""
    found = []
    for layer in kv.layers if type(kv) is DynamicCache else ():
        if type(layer) is DynamicSlidingWindowLayer:
            found.append({"window": layer.sliding_window, "seen": layer.cumulative_length})
        elif type(layer) is DynamicLayer:
            found.append({})
        else:  # convolution and recurrent states, indexes: no format for them yet
            raise Unfit(f"no format for a {type(layer).__name__}")
        if not layer.is_initialized:
            raise Unfit("a layer without keys of its own")
    if not found:
        raise Unfit(f"no format for a {type(kv).__name__}")
    return found


def _tensors(kv: Any) -> dict[str, Tensor]:
    """Keys and values of each layer, [1, key-value heads, positions kept, head width]."""
    return {
        f"{index}.{part}": getattr(layer, part)
        for index, layer in enumerate(kv.layers)
        for part in ("keys", "values")
    }


def _rebuilt(layers: list[dict[str, int]], tensor: Callable[[str], Tensor]) -> DynamicCache:
    """The cache that `DynamicCache(config)` becomes in a prefill, with these tensors in it.

    Source: `transformers.cache_utils` 5.24. `update` would copy everything once more, and count
    a sliding layer's positions from those it kept.
    """
    kv: Any = DynamicCache()
    kv.layer_class_to_replicate = None  # all layers are there, none is to be added on use
    for index, about in enumerate(layers):
        layer: Any
        if about:
            layer = DynamicSlidingWindowLayer(about["window"])
            layer.cumulative_length = about["seen"]
        else:
            layer = DynamicLayer()  # type: ignore[no-untyped-call]
        keys, values = tensor(f"{index}.keys"), tensor(f"{index}.values")
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        kv.layers.append(layer)
    return kv  # type: ignore[no-any-return]


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
