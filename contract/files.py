"""Opening files that others made: regular ones only, and never more of them than was asked for.

A path may name a FIFO, which blocks who opens it, or a device, which never ends. Both are an
`OSError` here, like a file that is not there.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader, FileIO
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file for reading. Raises OSError, for what is no regular file too."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error), _printable(path)) from error
    kind = stat.S_IFMT(os.fstat(handle).st_mode)
    if kind == stat.S_IFREG:
        return BufferedReader(FileIO(handle))
    os.close(handle)
    what = _KINDS.get(kind, "something else")
    raise OSError(errno.EINVAL, f"it is {what}, not a regular file", _printable(path))


def read_bytes(path: str | Path, *, max_bytes: int) -> bytes:
    """The content of a regular file. Raises OSError, for a file that is too large too."""
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes} bytes", _printable(path))
    return content


def read_text(path: str | Path, *, max_bytes: int) -> str:
    """As `read_bytes`, decoded from UTF-8; a byte order mark at the start is no text.

    Raises OSError, and UnicodeDecodeError, which is a ValueError.
    """
    return read_bytes(path, max_bytes=max_bytes).decode("utf-8-sig")


def write_text(path: str | Path, text: str) -> None:
    """Write a file, or to a pipe that somebody reads. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o666)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), _printable(path)) from error
    with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
        os.set_blocking(handle, True)  # it was for the opening alone
        file.write(text)


def is_folder(path: Path) -> bool:
    """True for a folder; False for a path that no file can have, too."""
    try:
        return path.is_dir()
    except OSError:  # a name that is too long, a loop of links, no permission
        return False


def is_file(path: Path) -> bool:
    """True for a regular file; False for a path that no file can have, too."""
    try:
        return path.is_file()
    except OSError:
        return False


def _printable(path: str | Path) -> str:
    return str(path).replace("\0", "\\0")
