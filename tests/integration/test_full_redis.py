"""A worker outlives a Redis that refuses writes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from contract.model_folder import ModelFolder
from contract.redis_client import connect
from contract.settings import Settings
from contract.types import JobState
from local.redis_server import EmbeddedRedis
from local.workers import WorkerProcess
from producer.client import Producer
from templates.registry import Registry
from tests.support.kernels import share_kernels
from tests.support.templates import make_spec, publish

FULL_S = 4.0


def test_worker_outlives_a_full_redis_and_no_job_is_lost(
    tiny_llama: ModelFolder, tmp_path: Path
) -> None:
    """Case Q22: at maxmemory the worker goes on trying, and every job is answered afterwards."""
    with EmbeddedRedis() as server:
        settings = Settings(redis_url=server.url, cache_dir=tmp_path, lease_s=6.0)
        share_kernels(tmp_path)
        worker = WorkerProcess(
            settings,
            log_path=tmp_path / "worker.log",
            options=["--model", str(tiny_llama.path), "--threads", "1"],
        )
        with connect(settings) as client, worker, Producer(settings) as producer:
            publish(Registry(client, settings), make_spec("full"), tiny_llama)
            first = producer.submit("acme/full", {"note": "before"})
            assert first.result(timeout=60).status is JobState.SUCCEEDED
            os.kill(worker.pid, signal.SIGSTOP)  # so that the jobs meet a full Redis
            jobs = [producer.submit("acme/full", {"note": f"job {n}"}) for n in range(3)]
            client.config_set("maxmemory", client.info("memory")["used_memory"] - 100_000)
            os.kill(worker.pid, signal.SIGCONT)
            time.sleep(FULL_S)
            worker.check_alive()
            assert [job.status() for job in jobs] != [JobState.SUCCEEDED] * 3
            client.config_set("maxmemory", 0)
            for job in producer.wait(jobs, timeout=90):
                assert job.result(timeout=5).status is JobState.SUCCEEDED
        assert "OutOfMemoryError" in worker.log_path.read_text("utf-8")
