"""Services and models for the tests. What is missing skips locally and fails in CI."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

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
from tests.support.listeners import listeners
from tests.support.logins import Logins, enter_tenants, refusals, restricted_users
from tests.support.markers import leaks
from tests.support.programs import missing
from tests.support.tiny import make_tiny_llama
from worker.openmp import wait_passively

wait_passively()  # the suite's workers and its own torch share the cores
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs that way, and the commands under test would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

REAL_MODEL = "smollm2-135m-instruct"
# A database of its own on a Redis that is shared: tests empty it.
TEST_DATABASE = 15


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--acl",
        action="store_true",
        help="log in as the Redis users of 'prefillq tenants'; a command refused fails its test",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--acl"):
        for item in items:
            if marker := item.get_closest_marker("unrestricted"):
                item.add_marker(pytest.mark.skip(reason=marker.args[0]))


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


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The Redis named by PREFILLQ_REDIS_URL (its database 15), else an embedded one."""
    given = os.environ.get("PREFILLQ_REDIS_URL")
    if given and os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.exit("one Redis for several test processes; add PROCESSES=0 to 'make test'", 2)
    if given:
        yield f"{given.rsplit('/', 1)[0] if given.count('/') > 2 else given}/{TEST_DATABASE}"
        return
    try:
        server = EmbeddedRedis().start()
    except PrefillqError as error:
        missing(str(error))
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture(scope="session")
def logins(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Logins]:
    """Who plays which part: the one user there is, or restricted ones with `--acl`."""
    if not request.config.getoption("--acl"):
        yield Logins.everyone(redis_url)
        return
    settings = Settings(redis_url=redis_url)
    with connect(settings) as client, restricted_users(client, settings) as made:
        yield made


@pytest.fixture
def settings(redis_url: str, logins: Logins, tmp_path: Path) -> Iterator[Settings]:
    """Settings for an empty database and a cache folder with nothing but compiled kernels.

    They log in as an operator. In the end nobody listens any more, who would be counted in the
    next test, and with `--acl` nothing was refused to the others.
    """
    chosen = Settings(redis_url=redis_url, cache_dir=tmp_path / "cache", lease_s=6.0)
    share_kernels(chosen.cache_dir)
    with connect(chosen) as client:
        client.flushdb()
        if logins.restricted:
            enter_tenants(client)
            refusals(client)
        yield chosen
        assert not logins.restricted or refusals(client) == []
        assert listeners(client) == [], "the test left somebody who listens to notices"


@pytest.fixture
def client(settings: Settings) -> Iterator[redis.Redis]:
    """An operator's connection to that database."""
    with connect(settings) as connection:
        yield connection


def _logged_in(settings: Settings, logins: Logins, url: str) -> Settings:
    """Other users of the suite's own Redis; a test with a Redis of its own has one user for all."""
    if not logins.restricted or settings.redis_url != logins.operator:
        return settings
    return settings.model_copy(update={"redis_url": url})


@pytest.fixture
def producer_settings(settings: Settings, logins: Logins) -> Settings:
    """The same as `settings`, for one who submits."""
    return _logged_in(settings, logins, logins.producer)


@pytest.fixture
def admin_settings(settings: Settings, logins: Logins) -> Settings:
    """The same as `settings`, for one who publishes templates."""
    return _logged_in(settings, logins, logins.admin)


@pytest.fixture
def worker_settings(settings: Settings, logins: Logins) -> Settings:
    """The same as `settings`, for a worker."""
    return _logged_in(settings, logins, logins.worker)


@pytest.fixture
def producer_client(producer_settings: Settings) -> Iterator[redis.Redis]:
    """A producer's connection."""
    with connect(producer_settings) as connection:
        yield connection


@pytest.fixture
def admin_client(admin_settings: Settings) -> Iterator[redis.Redis]:
    """A tenant admin's connection."""
    with connect(admin_settings) as connection:
        yield connection


@pytest.fixture
def worker_client(worker_settings: Settings) -> Iterator[redis.Redis]:
    """A worker's connection."""
    with connect(worker_settings) as connection:
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
        missing(str(error))


@pytest.fixture(scope="session")
def tiny_llama(smollm2: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A small random Llama with SmolLM2's tokenizer."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    return make_tiny_llama(folder, tokenizer_from=smollm2.path)


@pytest.fixture(scope="session", autouse=True)
def _loggers_keep_no_set_up() -> Iterator[None]:
    """A module's logger that kept one test's set-up would hide its lines from `capture_logs` after.

    Services set it up once, and keep it for speed.
    """
    configure = structlog.configure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            structlog,
            "configure",
            lambda **given: configure(**given | {"cache_logger_on_first_use": False}),
        )
        yield


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
