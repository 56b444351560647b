"""The three standard streams, made such that a command can rely on them.

A shell can start a command without some of them (`>&-`). The next file or socket that is opened
then gets the number 0, 1 or 2, and whatever a library prints goes into it: into a model's weights
or a connection to Redis.
"""

from __future__ import annotations

import os
import sys
from typing import Literal, TextIO


def stand_in_for_closed() -> None:
    """Put /dev/null where a standard stream is missing. Nothing else may have been opened yet."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
    # Python leaves the names of missing streams empty.
    if sys.stdin is None:
        sys.stdin = _text(0, "r")
    if sys.stdout is None:
        sys.stdout = _text(1, "w")
    if sys.stderr is None:
        sys.stderr = _text(2, "w")


def print_anything() -> None:
    """A character that a terminal's or file's encoding lacks is escaped, and ends nothing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a test's stand-in may have none
            reconfigure(errors="backslashreplace")


def give_up(stream: TextIO) -> None:
    """Let what is still to be written to a stream that takes no more vanish.

    Python would try again at its end, print a traceback of that, and change the exit status.
    """
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # not a file at all
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


def _text(number: int, mode: Literal["r", "w"]) -> TextIO:
    return open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)
