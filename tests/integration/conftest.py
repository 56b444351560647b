"""Real workers on a real Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from contract.model_folder import ModelFolder
from contract.redis_client import Client
from contract.settings import Settings
from local.workers import WorkerProcess
from producer.client import Producer
from templates.registry import Registry


@pytest.fixture
def registry(client: Client, settings: Settings) -> Registry:
    return Registry(client, settings)


@pytest.fixture
def producer(settings: Settings) -> Iterator[Producer]:
    with Producer(settings) as opened:
        yield opened


@pytest.fixture
def start_worker(
    settings: Settings, tiny_llama: ModelFolder, tmp_path: Path
) -> Iterator[Callable[..., WorkerProcess]]:
    """Start worker processes that serve the tiny model; all are stopped after the test."""
    with ExitStack() as stack:
        count = 0

        def start(*options: str, ready: bool = True, **env: str) -> WorkerProcess:
            nonlocal count
            count += 1
            process = WorkerProcess(
                settings,
                log_path=tmp_path / f"worker-{count}.log",
                options=["--model", str(tiny_llama.path), "--threads", "1", *options],
                env={"PREFILLQ_AUDIT": "1", **env},
            )
            process.start()
            stack.callback(process.stop)
            if ready:
                process.wait_ready()
            return process

        yield start
