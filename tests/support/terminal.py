"""Commands whose talk goes to a terminal, as when a person runs them."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

from tests.support.command_line import CommandLine


def on_terminal(command_line: CommandLine, *arguments: str | Path) -> tuple[int, str]:
    """The exit status, and what was written to the terminal that is its stderr."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command_line.command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**command_line.environment, "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"},
        cwd=command_line.folder,
    ) as process:
        os.close(theirs)
        shown = b""
        while piece := _read(ours):
            shown += piece
        os.close(ours)
        return process.wait(timeout=60), shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # EIO: nobody has the other end any more
        return b""
