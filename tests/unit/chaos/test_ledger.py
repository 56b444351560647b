"""The ledger of a chaos run outlives the kill of its writer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.chaos.ledger import Ledger, read_ledger

_WRITER = """
import os, signal, sys
from pathlib import Path
from tests.chaos.ledger import Ledger
Ledger(Path(sys.argv[1])).write("accepted", job_id="j1")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_entry_is_there_when_its_writer_was_killed(tmp_path: Path) -> None:
    """Nothing waits in a buffer."""
    path = tmp_path / "ledger.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", _WRITER, str(path)], cwd=Path(__file__).parents[3], check=False
    )
    assert done.returncode == -9
    [entry] = read_ledger(path)
    assert (entry["event"], entry["job_id"]) == ("accepted", "j1")
    assert entry["at"] > 0


def test_cut_line_costs_only_itself(tmp_path: Path) -> None:
    """The next life's first entry does not end up in it."""
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.write("one")
    path.write_bytes(path.read_bytes() + b'{"event": "tw')
    with Ledger(path) as ledger:
        ledger.write("three")
    assert [entry["event"] for entry in read_ledger(path)] == ["one", "three"]


def test_no_file_is_an_empty_ledger(tmp_path: Path) -> None:
    """A producer that never came to write has promised nothing."""
    assert read_ledger(tmp_path / "none.jsonl") == []
