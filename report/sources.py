"""The lines of log files: plain or gzip, of any length, cut short or not.

Nothing is held but one line, and of a line no more than `MAX_LINE_BYTES`.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from typing import BinaryIO

from contract.console import one_line
from contract.errors import InvalidInput
from contract.files import open_regular

MAX_LINE_BYTES = 2**16  # a job's line has under 2 KiB
STDIN = "-"
_GZIP = b"\x1f\x8b"


@dataclass(slots=True, kw_only=True)
class Reading:
    """What was read, and what of it could not be."""

    files: list[str] = field(default_factory=list)
    lines: int = 0
    unreadable: int = 0  # lines that speak of a job and cannot be read
    too_long: int = 0  # lines over MAX_LINE_BYTES, which were passed over
    broken: list[str] = field(default_factory=list)  # where and why reading ended early
    twice: list[str] = field(default_factory=list)  # files that were read already


def read_sources(
    names: Sequence[str], reading: Reading, *, advance: Callable[[int], None] = lambda _: None
) -> Iterator[bytes]:
    """All lines of these files, "-" for stdin. `advance` gets the bytes read of each file so far.

    A file that is given twice is read once. Raises InvalidInput for what cannot be opened.
    """
    seen: set[tuple[int, int]] = set()
    before = 0
    for name in names:
        shown = "stdin" if name == STDIN else one_line(name, limit=200)
        with _opened(name, shown) as file:
            status = os.fstat(file.fileno())
            here = (status.st_dev, status.st_ino)
            if here in seen:
                reading.twice.append(shown)
                continue
            seen.add(here)
            reading.files.append(shown)
            for line in _lines(file, shown, reading):
                yield line
                if reading.lines % 4096 == 0 and name != STDIN:
                    advance(before + file.tell())
            before += status.st_size
            advance(before)


def _opened(name: str, shown: str) -> BufferedReader:
    try:
        if name == STDIN:
            return open(sys.stdin.fileno(), "rb", closefd=False)
        return open_regular(name)
    except OSError as error:
        raise InvalidInput(
            "the log cannot be read",
            given=f"{shown}: {error.strerror}",
            remedy="Pipe it in with - if it is no regular file.",
        ) from error


def _lines(file: BufferedReader, shown: str, reading: Reading) -> Iterator[bytes]:
    zipped = file.peek(2)[:2] == _GZIP
    stream: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=file) if zipped else file
    try:
        yield from _bounded(stream, reading)
    except (EOFError, zlib.error, OSError) as error:  # OSError: a disk's, and gzip's own
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reading.broken.append(f"{shown}: {one_line(words, limit=120)}")


def _bounded(stream: BinaryIO | gzip.GzipFile, reading: Reading) -> Iterator[bytes]:
    while line := stream.readline(MAX_LINE_BYTES):
        reading.lines += 1
        if len(line) < MAX_LINE_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE_BYTES)
        reading.too_long += 1
