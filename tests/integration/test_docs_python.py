"""The code of docs/python.md runs as it stands: on a real Redis, or with the fixture it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from contract.settings import Settings
from templates.registry import Registry
from tests.support.answering import Answering
from tests.support.published import COMPILED, MODEL, make_spec

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python( test)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(bool(mark), code) for mark, code in BLOCK.findall((ROOT / "docs/python.md").read_text())]


def run(*command: str, settings: Settings, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "error",
            "PREFILLQ_REDIS_URL": settings.redis_url,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("number", range(sum(not test for test, _ in BLOCKS)))
def test_a_program_of_the_page_runs(
    registry: Registry,
    producer_settings: Settings,
    worker_settings: Settings,
    tmp_path: Path,
    number: int,
) -> None:
    """To its end, and says something."""
    registry.publish(make_spec(name="support-triage"), COMPILED, MODEL)
    code = [code for test, code in BLOCKS if not test][number]
    (tmp_path / "program.py").write_text(code, "utf-8")
    with Answering(worker_settings):
        assert run("program.py", settings=producer_settings, folder=tmp_path)


def test_the_tests_of_the_page_pass(settings: Settings, tmp_path: Path) -> None:
    """As a project's own would, with the fixture from the entry point."""
    [code] = [code for test, code in BLOCKS if test]
    (tmp_path / "test_page.py").write_text(code, "utf-8")
    installed = any(point.name == "prefillq" for point in entry_points(group="pytest11"))
    by_name = [] if installed else ["-p", "producer.pytest_plugin"]
    said = run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", *by_name, "."),
        settings=settings,
        folder=tmp_path,
    )
    assert "3 passed" in said


def test_the_page_has_programs() -> None:
    """So that nothing passes for want of blocks."""
    assert len(BLOCKS) == 5
