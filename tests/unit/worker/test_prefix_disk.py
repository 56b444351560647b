"""Entries on disk: the same to the bit when they come back, refused when they are not."""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from safetensors.torch import save_file
from transformers import DynamicCache

from tests.support.made_entries import made_entry
from tests.support.tiny_models import WINDOW, answer, key_for, random_ids, tiny_engine, tiny_model
from worker.engine.parity import Parity
from worker.prefix import disk, tensors
from worker.prefix.disk import PrefixStore
from worker.prefix.entry import PrefixEntry, PrefixKey
from worker.versions import library_versions

PREFIX = random_ids(64, seed=1)
JOB = PREFIX + random_ids(20, seed=2)
PARITY = Parity(
    outcome="identical", checked_tokens=16, first_difference=None, max_logit_error=1e-7, seconds=0.5
)
# The size of the file of one entry as they are here lies between these two.
ENTRY_BYTES, FILE_BYTES = 32_768, 36_000
REPOSITORY = Path(__file__).parents[3]


class Log:
    """The lines that the store wrote."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, _level: str) -> Callable[..., None]:
        return lambda event, **given: self.lines.append((event, given))

    def reasons(self, event: str) -> list[str]:
        return [given["reason"] for name, given in self.lines if name == event]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr(disk, "log", log)
    return log


@pytest.fixture
def store(tmp_path: Path) -> PrefixStore:
    return PrefixStore(tmp_path / "cache" / "prefixes", max_bytes=10**6)


def prefill(
    architecture: str = "llama",
    ids: tuple[int, ...] = PREFIX,
    dtype: torch.dtype = torch.float32,
    **changes: str,
) -> PrefixEntry:
    model = tiny_model(architecture, dtype=dtype)
    engine = tiny_engine(architecture, dtype=dtype)
    return replace(engine.prefill(key_for(model, **changes), ids), prefill_s=1.25)


def save(store: PrefixStore, entry: PrefixEntry, parity: Parity = PARITY) -> Path:
    """Store it; returns its file."""
    store.save(entry, parity, engine="reference")
    return store._path(entry.key, entry.ids)


def load(store: PrefixStore, entry: PrefixEntry) -> PrefixEntry | None:
    stored = store.load(entry.key, entry.ids, engine="reference")
    return None if stored is None else stored.entry


@pytest.mark.parametrize(
    ("architecture", "tokens", "dtype"),
    [
        ("llama", 64, torch.float32),
        ("llama", 64, torch.bfloat16),
        ("llama", 1, torch.float16),
        ("mistral", 64, torch.float32),  # the window has moved on
        ("mistral", WINDOW - 1, torch.float32),  # the window is just full
        ("mistral", 7, torch.float32),
        ("gemma3", 64, torch.float32),  # a sliding layer and a full one
        ("gpt2", 64, torch.float32),
    ],
)
def test_what_comes_back_is_what_was_stored(
    store: PrefixStore, architecture: str, tokens: int, dtype: torch.dtype
) -> None:
    """Invariant 4: same bits, same limits, and the same greedy continuation as the entry computed
    here, which is that of the plain path."""
    assert WINDOW < 64
    entry = prefill(architecture, PREFIX[:tokens], dtype)
    save(store, entry)
    loaded = load(store, entry)
    assert loaded is not None
    assert (loaded.loaded, entry.loaded) == (True, False)
    for field in ("key", "ids", "nbytes", "checksum", "prefill_s"):
        assert getattr(loaded, field) == getattr(entry, field)
    assert loaded.audit()
    assert tensors.checksum(loaded.fork()) == entry.checksum
    assert tensors.capacity(loaded.kv) == tensors.capacity(entry.kv)
    assert loaded.kv.get_seq_length() == tokens
    engine = tiny_engine(architecture, dtype=dtype)
    for length in (1, 20):
        job = entry.ids + random_ids(length, seed=length)
        fresh = answer(engine, job, entry, max_new_tokens=40, min_new_tokens=40)
        again = answer(engine, job, loaded, max_new_tokens=40, min_new_tokens=40)
        assert again.token_ids == fresh.token_ids
        if dtype == torch.float32:
            plain = answer(engine, job, max_new_tokens=40, min_new_tokens=40)
            assert again.token_ids == plain.token_ids
    assert loaded.audit()


def test_loaded_tensors_do_not_depend_on_the_file(store: PrefixStore) -> None:
    """An entry outlives its file, whatever is done to that."""
    entry = prefill()
    path = save(store, entry)
    loaded = load(store, entry)
    assert loaded is not None
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert loaded.audit()


@pytest.mark.parametrize("architecture", ["qwen3_next", "bamba", "mamba"])
def test_caches_of_other_kinds_are_not_stored(
    store: PrefixStore, log: Log, architecture: str
) -> None:
    """Recurrent and convolution states have no format: nothing is stored, and that is said."""
    entry = prefill(architecture)
    assert not save(store, entry).exists()
    assert load(store, entry) is None
    (reason,) = log.reasons("prefix_not_stored")
    assert "no format" in reason


def _grown(entry: PrefixEntry) -> PrefixEntry:
    layer = entry.kv.layers[1]
    layer.keys = torch.cat([layer.keys, layer.keys[:, :, :1]], dim=2)
    return entry


def _with_a_new_attribute(entry: PrefixEntry) -> PrefixEntry:
    entry.kv.layers[0].scale = 2.0
    return replace(entry, checksum=tensors.checksum(entry.kv))


def _growing_by_use(entry: PrefixEntry) -> PrefixEntry:
    kv = DynamicCache(ddp_cache_data=[(la.keys, la.values) for la in entry.kv.layers])
    kv.layer_class_to_replicate = type(kv.layers[0])
    return replace(entry, kv=kv, checksum=tensors.checksum(kv))


def _with_an_empty_layer(entry: PrefixEntry) -> PrefixEntry:
    entry.kv.layers[1].reset()
    return replace(entry, checksum=tensors.checksum(entry.kv))


@pytest.mark.parametrize(
    "change", [_grown, _with_a_new_attribute, _growing_by_use, _with_an_empty_layer]
)
def test_what_would_not_come_back_the_same_is_not_stored(
    store: PrefixStore, log: Log, change: Callable[[PrefixEntry], PrefixEntry]
) -> None:
    """An entry changed since its prefill, or with state that the file has no place for."""
    entry = change(prefill())
    assert not save(store, entry).exists()
    assert len(log.reasons("prefix_not_stored")) == 1


@pytest.mark.parametrize("field", [field.name for field in fields(PrefixKey)])
def test_each_part_of_the_key_keeps_files_apart(store: PrefixStore, log: Log, field: str) -> None:
    """Invariant 5 on disk: another tenant, version, weights, tokenizer, adapter, dtype, device."""
    entry = prefill()
    path = save(store, entry)
    other = replace(entry.key, **{field: "meta" if field == "device" else "other"})
    assert store.load(other, entry.ids, engine="reference") is None
    assert store.load(entry.key, entry.ids[:-1], engine="reference") is None
    assert path.exists()
    assert not log.reasons("prefix_file_refused")


@pytest.mark.parametrize("library", ["torch", "transformers"])
def test_other_software_has_other_files(
    store: PrefixStore, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upgrade everything is computed anew; after a step back the old files are there."""
    entry = prefill()
    save(store, entry)
    with monkeypatch.context() as upgraded:
        versions = library_versions() | {library: "99.0.0"}
        upgraded.setattr(disk, "library_versions", lambda: versions)
        assert load(store, entry) is None
        save(store, entry)
        assert load(store, entry) is not None
    assert load(store, entry) is not None
    assert store.usage().files == 2
    store.remove(entry.key)
    assert store.usage().files == 0


def test_removing_takes_one_keys_files(store: PrefixStore) -> None:
    """Another tenant's prefix of the same version stays."""
    entry = made_entry()
    mine = save(store, entry)
    theirs = save(store, replace(entry, key=replace(entry.key, tenant="globex")))
    store.remove(entry.key)
    assert (mine.exists(), theirs.exists()) == (False, True)


def test_the_check_counts_for_the_engine_it_was_made_with(store: PrefixStore) -> None:
    """What the greedy check found comes back whole, and for another engine not at all."""
    parity = replace(PARITY, outcome="within_tolerance", first_difference=3)
    entry = prefill()
    save(store, entry, parity)
    own = store.load(entry.key, entry.ids, engine="reference")
    others = store.load(entry.key, entry.ids, engine="other")
    assert own is not None
    assert others is not None
    assert (own.parity, others.parity) == (parity, None)


# Damage. Each takes the file and the bytes of another entry's, and leaves something else there.


def _cut(share: float) -> Callable[[Path, bytes], None]:
    return lambda path, _: os.truncate(path, int(path.stat().st_size * share))


def _flip(at: Callable[[bytes], int], bit: int = 0) -> Callable[[Path, bytes], None]:
    def damage(path: Path, _: bytes) -> None:
        data = bytearray(path.read_bytes())
        data[at(bytes(data))] ^= 1 << bit
        path.write_bytes(data)

    return damage


def _digit_after(name: str) -> Callable[[bytes], int]:
    """Where the header's value of this name begins."""
    return lambda data: data.index(name.encode()) + len(name)


def _header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path, bytes], None]:
    """Write another header over an intact body, with a digest that fits it."""

    def damage(path: Path, _: bytes) -> None:
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        about = json.loads(header["__metadata__"]["about"])
        change(about)
        text = disk.canonical_json(about)
        header["__metadata__"] = {"about": text, "digest": disk.digest(text)}
        written = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(written)) + written + data[8 + length :])

    return damage


def _unsigned(path: Path, _: bytes) -> None:
    save_file({"0.keys": torch.ones(2), "0.values": torch.ones(2)}, path)


DAMAGE: dict[str, tuple[Callable[[Path, bytes], object], str]] = {
    "empty": (_cut(0), "deserializing header"),
    "cut in its header": (_cut(0.02), "deserializing header"),
    "cut in its body": (_cut(0.6), "deserializing header"),
    "one byte short": (
        lambda path, _: os.truncate(path, path.stat().st_size - 1),
        "deserializing header",
    ),
    "one byte long": (
        lambda path, _: os.truncate(path, path.stat().st_size + 1),
        "deserializing header",
    ),
    "a flipped length": (_flip(lambda _: 0), "deserializing header"),
    "a flipped bit in the ids": (_flip(_digit_after('ids\\":\\"')), "no header of ours"),
    "a flipped bit in prefill_s": (_flip(_digit_after('prefill_s\\":')), "no header of ours"),
    "a flipped bit in the tensors": (_flip(lambda data: len(data) // 2), "another checksum"),
    "a flipped sign in the tensors": (_flip(lambda data: len(data) - 1, 7), "another checksum"),
    "another tenant's file": (lambda path, other: path.write_bytes(other), "another key"),
    "no safetensors": (lambda path, _: path.write_text("hello " * 99), "deserializing header"),
    "safetensors of others": (_unsigned, "no header of ours"),
    "a newer format": (_header(lambda about: about.update(format=disk.FORMAT + 1)), "another form"),
    "other ids": (_header(lambda about: about.update(ids="0" * 64)), "another ids"),
    "other libraries": (_header(lambda about: about.update(torch="1.0")), "another torch"),
    "another machine": (_header(lambda about: about.update(hardware="abacus")), "another hardware"),
    "a lacking layer": (_header(lambda about: about["layers"].pop()), "another checksum"),
    "a layer too many": (_header(lambda about: about["layers"].append({})), "2.keys"),
    "another window": (_header(lambda about: about["layers"][0].update(window=8)), "checksum"),
    "other positions": (_header(lambda about: about["layers"][0].update(seen=9)), "checksum"),
    "an unknown field": (_header(lambda about: about["parity"].update(more=1)), "more"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused_and_removed(store: PrefixStore, log: Log, damage: str) -> None:
    """Whatever is not what was stored is no entry; it is said, deleted, and can be stored anew."""
    entry = prefill("mistral")
    path = save(store, entry)
    other = save(store, prefill("mistral", tenant="globex")).read_bytes()
    spoil, expected = DAMAGE[damage]
    spoil(path, other)
    assert load(store, entry) is None
    (reason,) = log.reasons("prefix_file_refused")
    assert expected in reason
    assert not path.exists()
    save(store, entry)
    assert load(store, entry) is not None


def test_any_flipped_bit_is_refused(store: PrefixStore, log: Log) -> None:
    """No byte of a file is there without a check: 400 places, half of them in the header."""
    entry = prefill()
    path = save(store, entry)
    good = path.read_bytes()
    header = 8 + struct.unpack("<Q", good[:8])[0]
    places = {*range(0, header, header // 200), *range(header, len(good), len(good) // 200)}
    for place in places:
        data = bytearray(good)
        data[place] ^= 1 << (place % 8)
        path.write_bytes(data)
        assert load(store, entry) is None, place
    assert len(log.reasons("prefix_file_refused")) == len(places) >= 400


def test_a_folder_that_cannot_be_read_is_no_damage(
    store: PrefixStore, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of file handles, no permission: the file stays for the next time."""
    entry = prefill()
    path = save(store, entry)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as broken:
        broken.setattr(disk, "safe_open", refuse)
        assert load(store, entry) is None
    assert log.reasons("prefix_not_loaded") == ["[Errno 13] Permission denied"]
    assert path.exists()
    with monkeypatch.context() as broken:
        broken.setattr(os, "utime", refuse)  # as in a folder that can only be read
        assert load(store, entry) is not None


# The budget.


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_the_least_recently_used_files_leave_first(tmp_path: Path) -> None:
    """Loading counts as use; the folder ends within its budget."""
    store = PrefixStore(tmp_path, max_bytes=3 * FILE_BYTES)
    entries = [made_entry(f"v{number}") for number in range(4)]
    paths = []
    for number, entry in enumerate(entries[:3]):
        paths.append(save(store, entry))
        age(paths[-1], 30 - number)
    assert load(store, entries[0]) is not None
    paths.append(save(store, entries[3]))
    assert [path.exists() for path in paths] == [True, False, True, True]
    usage = store.usage()
    assert (usage.files, usage.max_bytes) == (3, 3 * FILE_BYTES)
    assert usage.bytes == sum(path.stat().st_size for path in paths if path.exists())
    assert usage.bytes <= usage.max_bytes
    assert ENTRY_BYTES < usage.bytes / 3 < FILE_BYTES


def test_a_smaller_budget_is_met_at_the_next_save(tmp_path: Path) -> None:
    """A worker that starts with less space makes it."""
    large = PrefixStore(tmp_path, max_bytes=10 * FILE_BYTES)
    for number in range(5):
        age(save(large, made_entry(f"v{number}")), 60)
    small = PrefixStore(tmp_path, max_bytes=2 * FILE_BYTES)
    newest = made_entry("v9")
    save(small, newest)
    assert small.usage().files == 2
    assert load(small, newest) is not None


def test_the_header_counts_too(tmp_path: Path) -> None:
    """A budget that two entries would fit, but not their two files, keeps one."""
    store = PrefixStore(tmp_path, max_bytes=ENTRY_BYTES + FILE_BYTES - 2000)
    age(save(store, made_entry("v1")), 60)
    newest = save(store, made_entry("v2"))
    assert list(tmp_path.iterdir()) == [newest]


def test_an_entry_larger_than_the_budget_pushes_none_out(tmp_path: Path, log: Log) -> None:
    """It could not stay anyway."""
    store = PrefixStore(tmp_path, max_bytes=FILE_BYTES)
    small = made_entry()
    save(store, small)
    large = made_entry(tokens=200)
    assert not save(store, large).exists()
    (reason,) = log.reasons("prefix_not_stored")
    assert "do not fit" in reason
    assert load(store, small) is not None


# What can go wrong while writing.


@contextmanager
def no_space() -> Iterator[None]:
    """Files end at 20,000 bytes for this process, as on a disk that is full.

    Not a fixture: pytest's own output may be a longer file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_harmless(store: PrefixStore, log: Log) -> None:
    """A write that fails half-way is said, and leaves nothing behind."""
    entry = prefill()
    with no_space():
        path = save(store, entry)
    assert len(log.reasons("prefix_not_stored")) == 1
    assert list(path.parent.iterdir()) == []
    assert load(store, entry) is None


def test_a_folder_that_cannot_be_made_is_harmless(tmp_path: Path, log: Log) -> None:
    """No place to write is said, and listings show nothing."""
    (tmp_path / "file").write_text("in the way")
    store = PrefixStore(tmp_path / "file" / "prefixes", max_bytes=10**6)
    entry = prefill()
    save(store, entry)
    assert len(log.reasons("prefix_not_stored")) == 1
    assert load(store, entry) is None
    assert store.usage().files == 0


def test_only_the_user_can_read(store: PrefixStore) -> None:
    """Keys and values tell what a tenant wrote: 0700 and 0600 under the widest umask."""
    before = os.umask(0)
    try:
        path = save(store, prefill())
    finally:
        os.umask(before)
    assert [oct(p.stat().st_mode & 0o777) for p in (path.parent, path)] == ["0o700", "0o600"]


CHILD = """
import sys, time
from pathlib import Path
import torch
from tests.support.made_entries import made_entry
from worker.engine.parity import Parity
from worker.prefix import disk

torch.set_num_threads(1)
store = disk.PrefixStore(Path(sys.argv[1]), max_bytes=10**6)
entry = made_entry()
parity = Parity(
    outcome="identical", checked_tokens=1, first_difference=None, max_logit_error=0.0, seconds=0.0
)
print("ready", flush=True)
sys.stdin.readline()

def hang(*_, **__):
    print("hanging", flush=True)
    time.sleep(600)

def half(tensors, path, metadata=None):
    whole(tensors, path, metadata=metadata)
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: len(data) // 2])
    hang()

if sys.argv[2] == "half written":
    whole, disk.save_file = disk.save_file, half
if sys.argv[2] == "not renamed":
    disk._fsync = hang
for _ in range(10):
    store.save(entry, parity, engine="reference")
print("done", flush=True)
"""


class Child:
    """Another worker that saves the same entry."""

    def __init__(self, folder: Path, how: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == word:
                return
        pytest.fail(f"ended before it said {word!r}")

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_two_workers_may_save_the_same_entry_at_once(tmp_path: Path, log: Log) -> None:
    """Whoever loads meanwhile gets the whole entry or none, and one file is left."""
    store = PrefixStore(tmp_path, max_bytes=10**6)
    entry = made_entry()
    loads = []
    with Child(tmp_path, "plain") as one, Child(tmp_path, "plain") as two:
        for child in (one, two):
            child.wait_for("ready")
        for child in (one, two):
            child.go()
        while one.process.poll() is None or two.process.poll() is None:
            loads.append(load(store, entry))
            save(store, entry)
        assert one.process.returncode == two.process.returncode == 0
    assert sum(found is not None and found.audit() for found in loads) >= 3
    assert all(found is None or found.checksum == entry.checksum for found in loads)
    assert [line for line in log.lines if line[0] != "prefix_stored"] == []
    assert [path.suffix for path in tmp_path.iterdir()] == [disk.SUFFIX]


@pytest.mark.parametrize("how", ["removed", "replaced by a shorter one"])
def test_a_file_that_goes_while_it_is_read_is_read_to_its_end(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Another worker needs room, or stores the entry too: between the header and the tensors."""
    store = PrefixStore(tmp_path, max_bytes=10**6)
    entry = made_entry()
    path = save(store, entry)
    from_file = torch.UntypedStorage.from_file
    went = []

    def from_file_late(*args: Any, **more: Any) -> Any:
        went.append(path)
        path.unlink()
        if how != "removed":
            path.write_bytes(b"short")
        return from_file(*args, **more)

    monkeypatch.setattr(torch.UntypedStorage, "from_file", from_file_late)
    found = load(store, entry)
    assert went == [path], "safetensors opens the file a second time"
    assert found is not None
    assert found.checksum == entry.checksum
    assert {event for event, _ in log.lines} <= {"prefix_stored", "prefix_file_not_touched"}


@pytest.mark.parametrize("moment", ["half written", "not renamed"])
def test_killed_while_saving_leaves_nothing_that_is_read(
    tmp_path: Path, log: Log, moment: str
) -> None:
    """After kill -9 there is no entry; what was left behind goes once it is old enough."""
    store = PrefixStore(tmp_path, max_bytes=10**6)
    entry = made_entry()
    with Child(tmp_path, moment) as child:
        child.wait_for("ready")
        child.go()
        child.wait_for("hanging")
        child.process.send_signal(signal.SIGKILL)
        child.process.wait(30)
    assert load(store, entry) is None
    assert log.lines == []
    (left,) = tmp_path.iterdir()
    assert (store.usage().files, store.usage().bytes) == (0, left.stat().st_size)
    path = save(store, entry)
    assert left.exists(), "it could be another worker's, at work"
    age(left, disk.LEFT_BEHIND_S + 1)
    save(store, entry)
    assert list(tmp_path.iterdir()) == [path]
    assert load(store, entry) is not None


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "huge", "loop"])
def test_files_that_are_none_are_refused_unopened(store: PrefixStore, log: Log, kind: str) -> None:
    """A pipe would block the worker, and a file over the budget fill its memory."""
    entry = made_entry(tokens=4)
    path = store._path(entry.key, entry.ids)
    path.parent.mkdir(parents=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path)
        case "folder":
            path.mkdir()
        case "huge":
            with path.open("wb") as file:
                file.truncate(10**6 + 1)
    assert store.load(entry.key, entry.ids, engine="reference") is None
    assert log.reasons("prefix_file_refused")
    assert store.usage().files == (1 if kind == "folder" else 0)


def _with_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite what the file says of itself, with a digest that fits."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    about = json.loads(header["__metadata__"]["about"])
    text = json.dumps(change(about))
    header["__metadata__"] = {"about": text, "digest": disk.digest(text)}
    changed = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(changed)) + changed + data[8 + length :])


@pytest.mark.parametrize(
    "change",
    [
        lambda _: [],
        lambda _: None,
        lambda about: {**about, "layers": 5},
        lambda about: {**about, "layers": [5]},
        lambda about: {**about, "layers": [{"window": "x", "seen": 1}] * 2},
        lambda about: {**about, "layers": [{}] * 50},
        lambda about: {**about, "layers": []},
        lambda about: {**about, "checksum": None},
        lambda about: {**about, "parity": {**about["parity"], "outcome": "fine"}},
        lambda about: {**about, "parity": {**about["parity"], "seconds": "x"}},
        lambda about: {**about, "parity": []},
        lambda about: {**about, "ids": []},
    ],
)
def test_a_header_that_was_made_up_is_refused(
    store: PrefixStore, log: Log, change: Callable[[dict[str, Any]], object]
) -> None:
    """Its digest is no signature: whoever may write there can make one."""
    entry = made_entry(tokens=4)
    path = save(store, entry)
    _with_header(path, lambda about: about)
    assert load(store, entry) is not None
    _with_header(path, change)
    assert load(store, entry) is None
    assert len(log.reasons("prefix_file_refused")) == 1
    assert not path.exists()


def test_tensors_of_another_shape_are_refused(store: PrefixStore, log: Log) -> None:
    """Also where their checksum is in order."""
    entry = made_entry(tokens=64)
    longer = replace(entry, ids=entry.ids[:4])
    store.save(longer, PARITY, engine="reference")
    assert load(store, longer) is None
    assert log.reasons("prefix_file_refused") == ["another shape"]
