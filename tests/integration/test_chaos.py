"""A short chaos run: everything is broken once, and every job is accounted for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from contract.model_folder import ModelFolder
from tests.chaos.plan import Act

_ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(400)
def test_nothing_is_lost_and_nothing_done_twice(tiny_llama: ModelFolder, tmp_path: Path) -> None:
    """Kills, pauses, cuts and restarts of each kind; `make chaos` is the long one."""
    command = [sys.executable, "-m", "tests.chaos", "--minutes", "0.4", "--seed", "4", "--json"]
    options = ["--model", str(tiny_llama.path), "--keep", str(tmp_path)]
    done = subprocess.run(
        [*command, *options], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["faults"] == []
    assert done.returncode == 0
    jobs = report["jobs"]
    assert (report["lost"], report["twice"]) == (0, 0)
    assert sum(jobs["outcomes"].values()) == jobs["accepted"] > 50
    assert jobs["outcomes"]["succeeded"] > 25
    assert set(report["deeds"]) == set(Act)
    assert report["kills"]["workers"] >= 2
