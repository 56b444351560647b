"""Real workers on a real Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from contract.job_store import JobStore
from contract.model_folder import ModelFolder
from contract.records import RedisJobStore
from contract.redis_client import Client
from contract.settings import Settings
from local.workers import WorkerProcess
from producer.client import Producer
from templates.registry import Registry
from tests.support.logins import Logins, split_store
from tests.support.two_tenants import TwoTenants, two_tenants


@pytest.fixture
def registry(admin_client: Client, admin_settings: Settings) -> Registry:
    return Registry(admin_client, admin_settings)


@pytest.fixture
def producer(producer_settings: Settings) -> Iterator[Producer]:
    with Producer(producer_settings) as opened:
        yield opened


@pytest.fixture
def open_store(
    producer_client: Client, worker_client: Client, logins: Logins
) -> Callable[[Settings], JobStore]:
    """Make a job store; with `--acl` producers' calls are a producer's and workers' a worker's."""

    def make(settings: Settings) -> JobStore:
        if not logins.restricted:
            return RedisJobStore(worker_client, settings)
        store: JobStore = split_store(
            settings, (producer_client, logins.producer), (worker_client, logins.worker)
        )
        return store

    return make


@pytest.fixture
def start_worker(
    worker_settings: Settings, tiny_llama: ModelFolder, tmp_path: Path
) -> Iterator[Callable[..., WorkerProcess]]:
    """Start worker processes that serve the tiny model; all are stopped after the test."""
    with ExitStack() as stack:
        count = 0

        def start(*options: str, ready: bool = True, **env: str) -> WorkerProcess:
            nonlocal count
            count += 1
            process = WorkerProcess(
                worker_settings,
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


@pytest.fixture(scope="module")
def tenants_of_module() -> Iterator[TwoTenants]:
    """On a Redis of their own, which leaves it to its users' rights what they may do."""
    open_to = {"enable-debug-command": "yes", "enable-module-command": "yes"}
    with two_tenants(**open_to) as made:
        yield made


@pytest.fixture
def tenants(tenants_of_module: TwoTenants) -> Iterator[TwoTenants]:
    """Two tenants with their users. Nothing may have been refused to them in the end; a test that
    provokes refusals resets the log."""
    tenants_of_module.operator.acl_log_reset()
    yield tenants_of_module
    assert tenants_of_module.operator.acl_log() == []
