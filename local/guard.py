"""What we started goes when we do, however we die: kill -9 runs no handler of ours."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

# A shell in the background reads from a pipe whose other end only we hold, and which the kernel
# closes with us. A line says that there is nothing left to do. (A parent-death signal would
# follow the thread that started the process.) Fd 3, because a background command has no stdin.
_SCRIPT = """
exec 3<&0
{
  read -r _ <&3 && exit
  pid=$1 left=$2 folder=$3
  if [ -n "$pid" ]; then
    [ "$left" -eq 0 ] || kill -TERM "$pid"
    while [ "$left" -gt 0 ] && kill -0 "$pid"; do sleep 1; left=$((left - 1)); done
    kill -KILL "$pid"
  fi
  [ -z "$folder" ] || rm -rf -- "$folder"
} &
"""

# Becomes the command once a line comes, and ends when none can come any more.
_WHEN_TOLD = 'read -r _ || exit 143; exec "$@" < /dev/null'


class Guard:
    """Ends a process and removes a folder when this process dies before `release`.

    The process gets SIGTERM and, `grace_s` whole seconds later, SIGKILL; with 0 only SIGKILL.
    """

    def __init__(
        self, *, pid: int | None = None, grace_s: int = 0, folder: Path | None = None
    ) -> None:
        what = (str(pid or ""), str(grace_s), str(folder or ""))
        read_end, self._pipe = os.pipe()
        try:
            subprocess.run(  # noqa: S603
                ["/bin/sh", "-c", _SCRIPT, "guard", *what],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is not for it
                check=True,
            )
        except BaseException:
            self.release()
            raise
        finally:
            os.close(read_end)

    def release(self) -> None:
        """Call it off, once what was guarded is gone. A second call does nothing."""
        pipe, self._pipe = self._pipe, -1
        if pipe < 0:
            return
        with suppress(BrokenPipeError):  # the guard itself was killed
            os.write(pipe, b"\n")
        os.close(pipe)


def start_guarded(
    command: Sequence[str], *, grace_s: int = 0, folder: Path | None = None, **options: Any
) -> tuple[subprocess.Popen[bytes], Guard]:
    """A process and its guard, for `subprocess.Popen`'s options but `stdin`, which is empty.

    The command begins when the guard stands, so that there is no moment at which our death would
    leave it behind.
    """
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb", buffering=0) as tell:
        try:
            process = subprocess.Popen(  # noqa: S603
                ["/bin/sh", "-c", _WHEN_TOLD, "sh", *command], stdin=read_end, **options
            )
        finally:
            os.close(read_end)
        try:
            guard = Guard(pid=process.pid, grace_s=grace_s, folder=folder)
        except BaseException:
            tell.close()
            process.wait()
            raise
        with suppress(BrokenPipeError):  # it was killed meanwhile
            tell.write(b"\n")
    return process, guard
