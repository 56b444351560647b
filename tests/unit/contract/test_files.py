"""Files that are none: pipes, devices, folders, endless ones."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from pathlib import Path

import pytest

from contract.files import is_folder, open_regular, read_bytes, read_text, write_text
from tests.fuzz.judge import bounded


def _make(kind: str, folder: Path) -> Path:
    path = folder / kind
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))
        case "loop":
            path.symlink_to(path)
    return path


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("pipe", "a pipe"),
        ("folder", "a folder"),
        ("device", "a device"),
        ("socket", "No such device"),  # cannot even be opened
        ("loop", "Too many"),
        ("missing", "No such file"),
    ],
)
def test_what_is_no_regular_file_is_an_error_at_once(tmp_path: Path, kind: str, word: str) -> None:
    """Nothing waits for a pipe's writer, or reads a device that never ends."""
    with pytest.raises(OSError, match=word):
        open_regular(_make(kind, tmp_path))


def test_the_error_says_what_it_is(tmp_path: Path) -> None:
    """Where the system's own words are read, ours are too."""
    with pytest.raises(OSError, match="pipe") as caught:
        open_regular(_make("pipe", tmp_path))
    assert caught.value.strerror == "it is a pipe, not a regular file"
    assert caught.value.filename == str(tmp_path / "pipe")


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_names_that_no_file_has_are_errors_of_the_same_kind(path: str) -> None:
    """Not the ValueError that Python has for the first."""
    with pytest.raises(OSError, match=r"null|long"):
        open_regular(path)
    with pytest.raises(OSError, match=r"null|long"):
        write_text(path, "")
    assert not is_folder(Path(path))


def test_no_more_is_read_than_was_asked_for(tmp_path: Path) -> None:
    """A file of a terabyte, most of it a hole, is refused without being read."""
    path = tmp_path / "large"
    path.write_bytes(b"x" * 100)
    assert read_bytes(path, max_bytes=100) == b"x" * 100
    with path.open("r+b") as file:
        file.truncate(2**40)
    with bounded(mib=50), pytest.raises(OSError, match="more than 100 bytes") as caught:
        read_bytes(path, max_bytes=100)
    assert caught.value.errno == errno.EFBIG


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    """At the start; elsewhere it is a character like others."""
    path = tmp_path / "marked"
    path.write_bytes(b"\xef\xbb\xbfa\xef\xbb\xbf")
    assert read_text(path, max_bytes=100) == "a\ufeff"


@pytest.mark.timeout(10)
def test_a_pipe_without_a_reader_is_not_waited_for(tmp_path: Path) -> None:
    """With one, the text goes through, however long."""
    path = _make("pipe", tmp_path)
    with pytest.raises(OSError, match="No such device"):
        write_text(path, "x")
    got: list[bytes] = []
    # Opened here, so that there is a reader before the writer looks for one.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def read() -> None:
        select.select([handle], [], [])  # without a writer, a read would be told of the end
        os.set_blocking(handle, True)
        with os.fdopen(handle, "rb") as file:
            got.append(file.read())

    reader = threading.Thread(target=read)
    reader.start()
    write_text(path, "é" * 200_000)
    reader.join()
    assert len(b"".join(got)) == 400_000
