"""The line that says how long a worker took to be ready."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from structlog.testing import capture_logs

from worker import age
from worker.celery_worker import CatalogStep


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="a system without /proc")
def test_age_is_that_of_the_process() -> None:
    """With all that came before the module was loaded."""
    code = "import time; time.sleep(0.5); from worker.age import *; print(process_age_s())"
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    took_s = time.monotonic() - begun
    assert 0.5 <= float(done.stdout) <= took_s + 0.02  # /proc counts hundredths


def test_without_proc_it_is_that_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.setattr(age, "_STAT", Path("/nowhere/stat"))
    monkeypatch.setattr(age, "_IMPORTED", time.monotonic() - 2.0)
    assert 2.0 <= age.process_age_s() < 60.0


def test_a_worker_is_ready_once() -> None:
    """The step starts again after each lost connection, which is no start of a worker."""
    service = SimpleNamespace(serving=[])
    consumer = MagicMock()
    consumer.app.prefillq_service = service
    consumer.app.amqp.queues.consume_from = {}
    step = CatalogStep(consumer)
    with capture_logs() as lines:
        step.start(consumer)
        step.stop(consumer)
        step.start(consumer)
    [line] = [line for line in lines if line["event"] == "worker_ready"]
    assert line["seconds"] == pytest.approx(age.process_age_s(), abs=5.0)
