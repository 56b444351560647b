"""Real worker processes: every job once, with the right version, and nobody else's words."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract import keys
from contract.celery_app import make_celery, ring
from contract.errors import JobFailed
from contract.model_folder import ModelFolder
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import CacheState, JobState
from contract.worker_reports import list_workers
from local.workers import WorkerProcess
from producer.client import Producer
from producer.handle import JobHandle
from templates.fill import fill
from templates.registry import Registry
from templates.tokenizer import TemplateTokenizer
from templates.version import PublishedVersion
from tests.support.templates import RULES, make_spec, publish

Start = Callable[..., WorkerProcess]
JOBS = 60


def _log_lines(path: Path, event: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in path.read_text("utf-8").splitlines() if line[:1] == "{")
    return [line for line in lines if line.get("event") == event]


class Oracle:
    """The plain path in this process: no cache, no queue, the same model."""

    def __init__(self, model: ModelFolder) -> None:
        import torch

        from worker.engine.reference import ReferenceEngine
        from worker.model import load_model

        loaded = load_model(model, device=torch.device("cpu"), dtype=torch.float32)
        self._tokenizer = TemplateTokenizer.load(model.path)
        self._engine = ReferenceEngine(loaded)

    def token_ids(self, version: PublishedVersion, note: str) -> tuple[int, ...]:
        from worker.engine.base import GenerationRequest

        ids = fill(version.compiled, {"note": note}, self._tokenizer).ids
        return self._engine.generate(
            GenerationRequest(ids=ids, generation=version.spec.generation)
        ).token_ids


def test_sixty_jobs_over_two_workers_and_three_templates(
    producer: Producer,
    registry: Registry,
    settings: Settings,
    client: Client,
    tiny_llama: ModelFolder,
    start_worker: Start,
) -> None:
    """60 results, each committed once, with its version, equal to the plain path's tokens.

    The oracle's answers differ from job to job, so an answer that came from another job's
    marker, another version or a damaged cache would not be equal.
    """
    versions = [
        publish(registry, make_spec("notes", rules=RULES), tiny_llama),
        publish(registry, make_spec("notes", rules=RULES + " Be brief."), tiny_llama),
        publish(registry, make_spec("letters", rules="Answer politely. " + RULES), tiny_llama),
        publish(registry, make_spec("notes", tenant="globex", rules=RULES), tiny_llama),
    ]
    workers = [start_worker(ready=False), start_worker(ready=False)]
    for worker in workers:
        worker.wait_ready()
    jobs = {}
    for number in range(JOBS):
        version = versions[number % len(versions)]
        note = f"marker-{number:02} {hashlib.sha256(bytes([number])).hexdigest()[:24]}"
        jobs[producer.submit(str(version.ref), {"note": note}).id] = (version, note)
    handles = [producer.handle(job_id) for job_id in jobs]
    assert len(list(producer.wait(handles, timeout=120))) == JOBS
    results = {handle.id: handle.result(timeout=5) for handle in handles}

    oracle = Oracle(tiny_llama)
    expected = {job_id: oracle.token_ids(*job) for job_id, job in jobs.items()}
    assert len(set(expected.values())) == JOBS, "the model must tell the markers apart"
    assert {job_id: result.token_ids for job_id, result in results.items()} == expected
    for job_id, (version, _) in jobs.items():
        result = results[job_id]
        assert result.ref == version.ref
        assert result.attempt == 1
        if result.cache.state is CacheState.HIT:
            assert result.usage.cached_tokens == len(version.compiled.prefix_ids)
        else:
            assert result.cache.reason == "cold"

    descriptions = list_workers(client, settings)
    assert {result.worker for result in results.values()} == {d["id"] for d in descriptions}
    cold = sum(result.cache.reason == "cold" for result in results.values())
    assert cold <= len(versions) * len(workers)
    assert {v["parity"] for d in descriptions for v in d["versions"]} == {"identical"}
    for worker in workers:
        assert worker.stop() == 0
    finished = Counter(
        line["job_id"] for worker in workers for line in _log_lines(worker.log_path, "job_finished")
    )
    assert finished == Counter(dict.fromkeys(jobs, 1))


def test_template_published_while_a_worker_runs_is_picked_up(
    producer: Producer, registry: Registry, tiny_llama: ModelFolder, start_worker: Start
) -> None:
    """Case Q20: a new template's jobs run within 5 s, without a restart."""
    start_worker()
    publish(registry, make_spec("late"), tiny_llama)
    result = producer.submit("acme/late", {"note": "hello"}).result(timeout=30)
    assert result.status is JobState.SUCCEEDED
    assert result.timings.queue_s < 5


def test_job_waits_for_a_worker_with_its_own_weights(
    producer: Producer,
    registry: Registry,
    tiny_llama: ModelFolder,
    start_worker: Start,
) -> None:
    """A version of other weights is not handed to a worker that cannot run it, nor failed."""
    other = replace(tiny_llama, model_digest="e" * 64)
    publish(registry, make_spec("ours"), tiny_llama)
    publish(registry, make_spec("theirs"), other)
    start_worker()
    theirs = producer.submit("acme/theirs", {"note": "hello"})
    ours = producer.submit("acme/ours", {"note": "hello"})
    assert ours.result(timeout=30).status is JobState.SUCCEEDED
    assert theirs.status() is JobState.QUEUED


def test_message_rung_twice_gives_one_result(
    producer: Producer,
    registry: Registry,
    settings: Settings,
    tiny_llama: ModelFolder,
    start_worker: Start,
) -> None:
    """Case Q4: two workers get the same message; one runs the job, the other is refused."""
    version = publish(registry, make_spec("twice"), tiny_llama)
    job = producer.submit("acme/twice", {"note": "hello"})
    app = make_celery(settings)
    for _ in range(5):
        ring(app, keys.queue("acme", "twice", version.model_digest), job.id)
    app.close()
    workers = [start_worker(ready=False), start_worker(ready=False)]
    job.result(timeout=60)
    deadline = time.monotonic() + 20
    refused = 0
    while refused < 5 and time.monotonic() < deadline:
        refused = sum(len(_log_lines(w.log_path, "job_refused")) for w in workers)
        time.sleep(0.1)
    finished = sum(len(_log_lines(w.log_path, "job_finished")) for w in workers)
    assert (finished, refused) == (1, 5)


LONG = {"max_new_tokens": 1800, "min_new_tokens": 1800}
LEASE_S = 4.0  # the shortest there is
# Outlasts it on a fast machine too.
LONGEST = {"max_new_tokens": 3000, "min_new_tokens": 3000}


def _claimed(job: JobHandle) -> None:
    deadline = time.monotonic() + 60
    while job.status() is JobState.QUEUED and time.monotonic() < deadline:
        time.sleep(0.02)
    assert job.status() is JobState.RUNNING


def test_job_longer_than_its_lease_runs_once_also_while_its_worker_shuts_down(
    producer: Producer, registry: Registry, tiny_llama: ModelFolder, start_worker: Start
) -> None:
    """Cases Q3 and Q9: the lease is renewed in the record and at the broker, to the job's end.

    A second worker stands ready to take the job, and the first is told to stop half-way.
    """
    publish(registry, make_spec("long", generation=LONGEST), tiny_llama)
    pair = [start_worker(ready=False, PREFILLQ_LEASE_S=str(LEASE_S)) for _ in range(2)]
    ids = [worker.wait_ready()["id"] for worker in pair]
    job = producer.submit("acme/long", {"note": "hello"})
    _claimed(job)
    first = pair[ids.index(job.view().worker)]
    [second] = [worker for worker in pair if worker is not first]
    started = time.monotonic()
    assert first.stop(grace_s=120) == 0
    shutdown_s = time.monotonic() - started
    result = job.result(timeout=5)
    time.sleep(2)  # a message that was restored would reach the second worker by now
    second.stop()
    assert (result.status, result.attempt) == (JobState.SUCCEEDED, 1)
    assert shutdown_s > LEASE_S, "the job must outlast its lease to show anything"
    assert len(_log_lines(first.log_path, "job_finished")) == 1
    assert not _log_lines(second.log_path, "job_refused")
    assert not _log_lines(second.log_path, "job_finished")


def test_cancel_while_queued_and_while_running(
    producer: Producer, registry: Registry, tiny_llama: ModelFolder, start_worker: Start
) -> None:
    """Case Q15: a queued job never starts; a running one stops between steps."""
    publish(
        registry,
        make_spec("long", generation=LONG),
        tiny_llama,
    )
    queued = producer.submit("acme/long", {"note": "never"})
    assert queued.cancel() is JobState.CANCELLED
    running = producer.submit("acme/long", {"note": "stopped"})
    worker = start_worker()
    _claimed(running)
    assert running.cancel() is JobState.RUNNING
    with pytest.raises(JobFailed) as caught:
        running.result(timeout=30)
    assert caught.value.result.status is JobState.CANCELLED
    assert caught.value.result.usage.completion_tokens < 1800
    ran = {line["job_id"] for line in _log_lines(worker.log_path, "job_finished")}
    assert queued.id not in ran


def test_killed_workers_job_is_run_again_by_another(
    producer: Producer, registry: Registry, tiny_llama: ModelFolder, start_worker: Start
) -> None:
    """Case Q1: after kill -9 the message comes back within a lease and a sweep; one result."""
    publish(
        registry,
        make_spec("long", generation={"max_new_tokens": 1500, "min_new_tokens": 1500}),
        tiny_llama,
    )
    job = producer.submit("acme/long", {"note": "hello"})
    first = start_worker()
    _claimed(job)
    first.kill()
    start_worker()
    result = job.result(timeout=90)
    assert result.status is JobState.SUCCEEDED
    assert result.attempt == 2


def test_unloadable_model_ends_the_worker_with_a_clear_error(
    settings: Settings, tmp_path: Path
) -> None:
    """A model that is not there: exit code 1 and the remedy on stderr, not a traceback."""
    worker = WorkerProcess(
        settings, log_path=tmp_path / "log", options=["--model", "no-such-model"]
    ).start()
    assert worker.process is not None
    assert worker.process.wait(60) == 1
    text = worker.log_path.read_text("utf-8")
    assert "prefillq models fetch" in text
    assert "Traceback" not in text
