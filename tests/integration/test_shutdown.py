"""A worker that is told to end: what fits in the grace period ends, the rest goes back."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from contract.model_folder import ModelFolder
from contract.types import JobState
from local.workers import WorkerProcess
from producer.client import Producer
from producer.handle import JobHandle
from templates.registry import Registry
from tests.support.templates import make_spec, publish

Start = Callable[..., WorkerProcess]
LONG = {"max_new_tokens": 1800, "min_new_tokens": 1800}  # several seconds


def _running(job: JobHandle) -> None:
    deadline = time.monotonic() + 60
    while job.status() is JobState.QUEUED and time.monotonic() < deadline:
        time.sleep(0.02)
    assert job.status() is JobState.RUNNING


def _ended(worker: WorkerProcess, within_s: float) -> int:
    assert worker.process is not None
    return worker.process.wait(within_s)


def _assert_returned(job: JobHandle, worker: WorkerProcess) -> None:
    view = job.view()
    assert (view.state, view.job.attempt) == (JobState.QUEUED, 0)
    log = worker.log_path.read_text("utf-8")
    assert "jobs_returned" in log
    assert "Traceback" not in log


def test_job_over_the_grace_period_goes_back_and_runs_elsewhere_at_once(
    producer: Producer, registry: Registry, tiny_llama: ModelFolder, start_worker: Start
) -> None:
    """Case Q9: exit 0, the job queued with its attempt not counted; the next worker has it."""
    publish(registry, make_spec("long", generation=LONG), tiny_llama)
    first = start_worker(PREFILLQ_WORKER_START_GRACE="0.5")
    job = producer.submit("acme/long", {"note": "hello"})
    _running(job)
    assert first.process is not None
    first.process.terminate()
    assert _ended(first, 10) == 0
    _assert_returned(job, first)
    start_worker()
    ready = time.monotonic()
    _running(job)
    assert time.monotonic() - ready < 3, "its message came back with it"
    result = job.result(timeout=60)
    assert (result.status, result.attempt) == (JobState.SUCCEEDED, 1)


@pytest.mark.parametrize(
    "signals",
    [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT), (signal.SIGQUIT,)],
    ids=lambda signals: "-".join(s.name for s in signals),
)
def test_second_signal_returns_all_jobs_at_once(
    signals: tuple[signal.Signals, ...],
    producer: Producer,
    registry: Registry,
    tiny_llama: ModelFolder,
    start_worker: Start,
) -> None:
    """Also Ctrl-C twice; no traceback, and nothing is lost."""
    publish(registry, make_spec("long", generation=LONG), tiny_llama)
    worker = start_worker(PREFILLQ_WORKER_START_GRACE="3600")
    job = producer.submit("acme/long", {"note": "hello"})
    _running(job)
    assert worker.process is not None
    for number in signals:
        worker.process.send_signal(number)
        time.sleep(0.3)
    assert _ended(worker, 10) == 0
    _assert_returned(job, worker)


def test_worker_that_drains_takes_no_job(
    producer: Producer, registry: Registry, tiny_llama: ModelFolder, start_worker: Start
) -> None:
    """While one job is finished, another that comes in waits for a worker that stays."""
    publish(registry, make_spec("long", generation=LONG), tiny_llama)
    worker = start_worker()
    running = producer.submit("acme/long", {"note": "hello"})
    _running(running)
    assert worker.process is not None
    worker.process.terminate()
    time.sleep(0.3)
    waiting = producer.submit("acme/long", {"note": "later"})
    assert _ended(worker, 60) == 0
    assert running.status() is JobState.SUCCEEDED
    view = waiting.view()
    assert (view.state, view.job.fence) == (JobState.QUEUED, 0)
    start_worker()
    assert waiting.result(timeout=60).attempt == 1
