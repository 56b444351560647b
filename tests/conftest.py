"""Services and models for the tests. What is missing skips locally and fails in CI."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import redis
import structlog

from contract.errors import PrefillqError
from contract.model_folder import ModelFolder, read_model_folder
from contract.model_store import find_model
from contract.redis_client import connect
from contract.settings import Settings
from local.redis_server import EmbeddedRedis
from tests.support.kernels import share_kernels
from tests.support.markers import leaks
from tests.support.tiny import make_tiny_llama
from worker.openmp import wait_passively

wait_passively()  # the suite's workers and its own torch share the cores
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs that way, and the commands under test would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

REAL_MODEL = "smollm2-135m-instruct"
# A database of its own on a Redis that is shared: tests empty it.
TEST_DATABASE = 15


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """No log of any test holds what a test planted where users write (tests.support.markers)."""
    report = yield
    if report.when == "teardown" and report.passed:
        found = leaks(item._report_sections, getattr(item, "funcargs", {}).get("tmp_path"))
        if found:
            report.outcome = "failed"
            report.longrepr = f"a log or stderr holds {', '.join(found)}"
    return report


def _missing(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The Redis named by PREFILLQ_REDIS_URL (its database 15), else an embedded one."""
    given = os.environ.get("PREFILLQ_REDIS_URL")
    if given:
        yield f"{given.rsplit('/', 1)[0] if given.count('/') > 2 else given}/{TEST_DATABASE}"
        return
    try:
        server = EmbeddedRedis().start()
    except PrefillqError as error:
        _missing(str(error))
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> Settings:
    """Settings for an empty database and a cache folder with nothing but compiled kernels."""
    chosen = Settings(redis_url=redis_url, cache_dir=tmp_path / "cache", lease_s=6.0)
    share_kernels(chosen.cache_dir)
    with connect(chosen) as client:
        client.flushdb()
    return chosen


@pytest.fixture
def client(settings: Settings) -> Iterator[redis.Redis]:
    """A connection to that database."""
    with connect(settings) as connection:
        yield connection


@pytest.fixture(scope="session")
def smollm2() -> ModelFolder:
    """The real SmolLM2-135M-Instruct, fetched once with `prefillq models fetch`."""
    given = os.environ.get("PREFILLQ_TEST_MODEL")
    if given:
        return read_model_folder(REAL_MODEL, Path(given))
    try:
        return find_model(REAL_MODEL, Settings())
    except PrefillqError as error:
        _missing(str(error))


@pytest.fixture(scope="session")
def tiny_llama(smollm2: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A small random Llama with SmolLM2's tokenizer."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    return make_tiny_llama(folder, tokenizer_from=smollm2.path)


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """Log set-up is global; a test that changes it leaves it as it was."""
    root = logging.getLogger()
    handlers, level, config = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**config)
    structlog.contextvars.clear_contextvars()
