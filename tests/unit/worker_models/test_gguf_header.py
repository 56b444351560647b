"""GGUF files whose header promises more than the file holds."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from contract.errors import ModelError
from contract.settings import Settings
from tests.fuzz.judge import bounded
from worker.models import fetch_model
from worker.models.gguf_header import check_gguf

END = b"GGUF" + struct.pack("<I", 3)


def _counts(tensors: int, keys: int) -> bytes:
    return END + struct.pack("<QQ", tensors, keys)


def _text(text: bytes, *, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


def _array(kind: int, count: int, *, nested: int = 0) -> bytes:
    head = _counts(0, 1) + _text(b"k") + struct.pack("<I", 9)
    return head + struct.pack("<IQ", 9, 1) * nested + struct.pack("<IQ", kind, count)


def _layers(count: int) -> bytes:
    return (
        _counts(0, 2)
        + _text(b"general.architecture")
        + struct.pack("<I", 8)
        + _text(b"llama")
        + _text(b"llama.block_count")
        + struct.pack("<II", 4, count)
    )


BAD = {
    "nothing": b"",
    "another file": b"PK\3\4" + b"\0" * 100,
    "big-endian": b"GGUF" + struct.pack(">I", 3) + b"\0" * 100,
    "version 9": b"GGUF" + struct.pack("<I", 9) + b"\0" * 100,
    "cut in its counts": END + b"\0" * 7,
    "2**63 tensors": _counts(2**63, 0),
    "2**63 keys": _counts(0, 2**63),
    "a key of 2**60 bytes": _counts(0, 1) + _text(b"", length=2**60),
    "a key longer than the file": _counts(0, 1) + _text(b"ab", length=1000),
    "a value of no type": _counts(0, 1) + _text(b"k") + struct.pack("<I", 99),
    "an array of 2**60 bytes": _array(0, 2**60),
    "an array of 2**60 texts": _array(8, 2**60),
    "an array longer than the file": _array(10, 1_000_000) + b"\0" * 64,
    "arrays in arrays": _array(9, 1, nested=20),
    "2**31 layers": _layers(2**31),
    "a tensor of 2**60 numbers": _counts(1, 0) + _text(b"t") + struct.pack("<IQIQ", 1, 2**60, 0, 0),
    "a tensor of 2**20 dimensions": _counts(1, 0) + _text(b"t") + struct.pack("<I", 2**20),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", BAD)
def test_what_lies_about_its_size_is_refused_at_once(name: str, tmp_path: Path) -> None:
    """Before the library counts to 2**60, and by `models fetch` too, which keeps nothing."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(BAD[name])
    with bounded(seconds=2, mib=100), pytest.raises(ModelError, match="no whole GGUF file"):
        check_gguf(path)
    settings = Settings(cache_dir=tmp_path / "cache")
    with pytest.raises(ModelError, match="no whole GGUF file"):
        fetch_model(str(path), settings)
    assert not settings.models_dir.exists()


@pytest.mark.timeout(20)
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Nor a device read."""
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "device.gguf").symlink_to("/dev/zero")
    for name in ("pipe.gguf", "device.gguf"):
        with pytest.raises(ModelError, match=r"not a regular file|cannot become a model"):
            fetch_model(str(tmp_path / name), Settings(cache_dir=tmp_path / "cache"))


def _write(path: Path, fill: Callable[[gguf.GGUFWriter], None]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_whole_files_pass(tmp_path: Path) -> None:
    """Every type of value that the library writes, arrays in arrays aside."""

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_block_count(1)
        writer.add_array("texts", ["a", "é" * 1000, ""])
        writer.add_array("numbers", list(range(1000)))
        writer.add_array("floats", [0.5, 1.5])
        writer.add_bool("yes", True)
        for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
            getattr(writer, f"add_{name}")(name, 5)
        writer.add_float32("f", 0.5)
        writer.add_float64("d", 0.5)
        writer.add_chat_template("{{ messages }}" * 100)
        writer.add_tensor("blk.0.w", np.zeros((3, 5), dtype=np.float32))
        writer.add_tensor("one", np.zeros(7, dtype=np.float16))

    path = tmp_path / "good.gguf"
    _write(path, fill)
    check_gguf(path)
    whole = path.read_bytes()
    for length in (3, 20, 100, 500):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            check_gguf(path)
