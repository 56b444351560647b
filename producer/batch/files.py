"""The two files of a batch: an input that stays as it is, and an output of its own."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from contract.errors import Conflict, InvalidInput
from contract.files import open_regular
from producer.batch.lines import chunks_of, lines_of

T = TypeVar("T")

STDIO = "-"


class InputChanged(Conflict):
    """The input is another now; what is written is of the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An input, which is read several times: named, checked and run."""

    file: IO[bytes]
    name: str
    opened: tuple[int, int]  # its size and when it was changed, as they were then

    def chunks(self) -> Iterator[bytes]:
        """All of it, in pieces."""
        self.file.seek(0)
        return self._same(chunks_of(self.file))

    def lines(self, *, max_bytes: int) -> Iterator[bytes]:
        """Its lines, of longer ones the beginning. Both raise InputChanged once it is."""
        self.file.seek(0)
        return self._same(lines_of(self.file, max_bytes=max_bytes))

    def _same(self, parts: Iterable[T]) -> Iterator[T]:
        for part in parts:
            self._check()
            yield part
        self._check()

    def _check(self) -> None:
        if _stamp(self.file) != self.opened:
            raise InputChanged(
                "the batch file was changed while it was read",
                given=self.name,
                expected="one file from the first look to the last",
                remedy="Its results so far are those of the file as it was. Give a copy that "
                "nobody writes, and another output.",
            )


def place_of(out: Path) -> str:
    """Where results are, in words."""
    return "on stdout" if str(out) == STDIO else f"in {out}"


@contextmanager
def open_source(name: str) -> Iterator[Source]:
    """The input, `-` for stdin. Raises InvalidInput when it cannot be read."""
    if name == STDIO:
        with tempfile.TemporaryFile() as spool:
            try:
                shutil.copyfileobj(sys.stdin.buffer, spool)
                spool.flush()
            except OSError as error:
                raise InvalidInput(
                    "stdin cannot be kept",
                    given=error.strerror,
                    remedy="Make room in the folder for temporary files (TMPDIR), or give a file.",
                ) from error
            yield Source(file=spool, name="stdin", opened=_stamp(spool))
        return
    try:
        file = open_regular(name)
    except OSError as error:
        raise InvalidInput(
            "the batch file cannot be read",
            given=f"{name}: {error.strerror}",
            remedy="Pipe it in with - if it is no regular file.",
        ) from error
    with file:
        yield Source(file=file, name=name, opened=_stamp(file))


@contextmanager
def open_output(out: Path, source: Source) -> Iterator[IO[bytes]]:
    """The output, for reading and writing, and kept from other processes; `-` for stdout, which
    can only be written.

    Raises InvalidInput for what cannot be written, Conflict for one that is in use.
    """
    if str(out) == STDIO:
        yield sys.stdout.buffer
        return
    try:
        out.touch()
        file = out.open("r+b")
    except (OSError, ValueError) as error:  # a ValueError for a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(
            "the output file cannot be written",
            given=f"{out}: {reason}",
            remedy="Give --output a path that this user may write to.",
        ) from error
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidInput(
                "the output is no regular file",
                given=out,
                remedy="Give --output a file's path: a run that was cut off goes on from it.",
            )
        if os.path.sameopenfile(file.fileno(), source.file.fileno()):
            raise Conflict(
                "the output file is the batch file itself",
                given=out,
                remedy="Name another with -o.",
            )
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(
                "the output file is in use",
                given=out,
                remedy="Wait for the other batch, or name another file with -o.",
            ) from error
        except OSError as error:  # a file system without locks
            raise InvalidInput(
                "the output file cannot be kept from other batches",
                given=f"{out}: {error.strerror}",
                remedy="Name one on a disk of this machine with -o.",
            ) from error
        yield file


def _stamp(file: IO[bytes]) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns
