"""The integration suite logs in as the users of `prefillq tenants`: a part of it on every run.

All of it: `pytest --acl tests/integration` (CONTRIBUTING.md).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each call of the store and the registry, catalog, janitor and presence, a producer against a Redis
# that goes away, one in an event loop, a stream, and two real worker processes.
PART = (
    "test_records.py",
    "test_outcomes.py",
    "test_registry.py",
    "test_rollouts.py",
    "test_submit_and_moves.py",
    "test_moved_and_scored.py",
    "test_catalog.py",
    "test_janitor.py",
    "test_presence.py",
    "test_producer.py",
    "test_async_producer.py::test_jobs_are_submitted_rung_for_and_answered",
    "cases/test_streaming.py::test_pieces_come_while_the_job_runs_and_come_to_its_text",
    "cases/test_rollouts_at_work.py::test_a_good_version_takes_over_by_itself",
    "test_worker.py::test_sixty_jobs_over_two_workers_and_three_templates",
)


@pytest.mark.unrestricted("this starts such a run")
@pytest.mark.timeout(600)
def test_a_part_of_the_suite_passes_under_restricted_users() -> None:
    """Nothing fails, and nothing was refused to a user who needed it."""
    env = {name: value for name, value in os.environ.items() if name != "PREFILLQ_REDIS_URL"}
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--acl", "-q", "-p", "no:cacheprovider"),
            *(f"tests/integration/{part}" for part in PART),
        ],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-5000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed is not None
    assert int(passed[1]) > 150
