"""What was promised and what was seen, in files that no Redis and no kill can change.

One line of JSON an event, on disk before the caller goes on. Each process has a file of its own.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any, Self

Entry = dict[str, Any]


class Ledger:
    """Appends to one file; a process that was killed goes on with the file it left."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("ab")
        if self._file.tell():
            self._file.write(b"\n")  # ends a line that was cut short; an empty line is none

    def write(self, event: str, **fields: Any) -> None:
        """Add an entry; on disk when this returns."""
        line = json.dumps({"event": event, "at": time.time(), **fields}).encode() + b"\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_ledger(path: Path) -> list[Entry]:
    """The entries in order, without one that a kill cut short."""
    if not path.exists():
        return []
    entries = []
    for line in path.read_bytes().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        entries.append(entry)
    return entries
