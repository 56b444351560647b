"""TLS to Redis with certificates of our own making: records, broker, worker and commands.

The TLS is Python's, in front of a Redis that was built without it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract import keys
from contract.celery_app import make_celery, ring
from contract.errors import NotFound, RedisUnreachable
from contract.model_folder import ModelFolder
from contract.redis_client import connect, errors_explained
from contract.settings import Settings
from contract.types import JobState
from local.redis_server import EmbeddedRedis, find_redis_binary
from local.workers import WorkerProcess
from producer import AsyncProducer, Producer
from producer.bell import CeleryBell, Ring
from templates.registry import Registry
from tests.support.certificates import Authority, openssl_is_there
from tests.support.command_line import CommandLine
from tests.support.kernels import share_kernels
from tests.support.templates import make_spec, publish
from tests.support.tls_proxy import TlsProxy


@dataclass(frozen=True, kw_only=True)
class Secured:
    """A Redis behind TLS, and in clear on another port for the test's own use."""

    server: EmbeddedRedis
    proxy: TlsProxy
    authority: Authority
    folder: Path

    def settings(self, host: str = "localhost", **changes: Any) -> Settings:
        given = {"redis_ca_file": self.authority.ca, "lease_s": 6.0} | changes
        url = f"rediss://{host}:{self.proxy.port}/0"
        return Settings(redis_url=url, cache_dir=self.folder / "cache", **given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    if not openssl_is_there() or find_redis_binary() is None:
        reason = "no openssl command or no redis-server"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return Authority(folder, "test-authority")


@contextmanager
def secured_redis(
    folder: Path, authority: Authority, *, client_ca: Path | None = None
) -> Iterator[Secured]:
    issued = authority.issue("server", san="DNS:localhost")
    with EmbeddedRedis() as server, TlsProxy(server.url, issued, client_ca=client_ca) as proxy:
        yield Secured(server=server, proxy=proxy, authority=authority, folder=folder)


@pytest.fixture(scope="module")
def secured(folder: Path, authority: Authority) -> Iterator[Secured]:
    with secured_redis(folder, authority) as made:
        yield made


def ping(settings: Settings) -> bool:
    with connect(settings) as client, errors_explained(settings):
        return bool(client.ping())


def rings(settings: Settings) -> None:
    bell = CeleryBell(settings)
    try:
        bell.ring([Ring(queue="acme/triage/x", job_id="acme." + "0" * 32)])
    finally:
        bell.close()


def test_records_and_broker_speak_tls(secured: Secured) -> None:
    """With the authority's certificate as the CA file."""
    settings = secured.settings()
    assert ping(settings)
    app = make_celery(settings)
    ring(app, "acme/triage/x", "acme.1")
    app.close()
    with connect(settings) as client:
        assert client.llen(keys.messages("acme/triage/x")) == 1
        assert client.delete(keys.messages("acme/triage/x")) == 1


def asks_in_a_loop(settings: Settings) -> None:
    async def scenario() -> None:
        async with AsyncProducer(settings) as producer:
            with pytest.raises(NotFound):
                await producer.handle("acme." + "0" * 32).status()

    asyncio.run(scenario())


def test_the_producer_of_event_loops_speaks_tls(secured: Secured) -> None:
    """With the same settings."""
    asks_in_a_loop(secured.settings())


@pytest.mark.parametrize(
    "use", [ping, rings, asks_in_a_loop], ids=["records", "broker", "event loop"]
)
@pytest.mark.parametrize("trouble", ["system", "other authority", "other name"])
def test_a_server_that_is_not_vouched_for_is_refused(
    secured: Secured, folder: Path, use: Any, trouble: str
) -> None:
    """By an unknown authority, or for another host: nothing is sent, and the error says why."""
    settings = {
        "system": lambda: secured.settings(redis_ca_file=None),
        "other authority": lambda: secured.settings(redis_ca_file=Authority(folder, "other").ca),
        "other name": lambda: secured.settings("127.0.0.1"),
    }[trouble]()
    with pytest.raises(RedisUnreachable, match="PREFILLQ_REDIS_CA_FILE") as caught:
        use(settings)
    assert "CERTIFICATE_VERIFY_FAILED" in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_server_without_tls_is_an_error_in_time(secured: Secured) -> None:
    """rediss:// to a port that speaks in clear, where Redis waits for the rest of a command."""
    settings = secured.settings()
    plain_port = secured.server.url.rpartition(":")[2]
    settings = settings.model_copy(update={"redis_url": f"rediss://localhost:{plain_port}"})
    with pytest.raises(RedisUnreachable):
        ping(settings)


def test_in_clear_nothing_comes_through(secured: Secured) -> None:
    """redis:// to the TLS port ends in time."""
    with pytest.raises(RedisUnreachable):
        ping(Settings(redis_url=f"redis://localhost:{secured.proxy.port}/0"))


def test_a_server_that_asks_for_a_certificate_gets_one(folder: Path, authority: Authority) -> None:
    """Records and broker show the same; without one the connection is refused."""
    ours = authority.issue("client", san="DNS:client")
    with secured_redis(folder, authority, client_ca=authority.ca) as made:
        with pytest.raises(RedisUnreachable):
            ping(made.settings())
        shown = made.settings(redis_cert_file=ours.cert, redis_key_file=ours.key)
        assert ping(shown)
        rings(shown)


def test_a_job_goes_its_whole_way_over_tls(
    secured: Secured, tiny_llama: ModelFolder, tmp_path: Path
) -> None:
    """Template, submit, worker process, notice, result; and a command, by its variables."""
    settings = secured.settings()
    share_kernels(settings.cache_dir)
    worker = WorkerProcess(
        settings,
        log_path=tmp_path / "worker.log",
        options=["--model", str(tiny_llama.path), "--threads", "1"],
    )
    with connect(settings) as client, worker, Producer(settings) as producer:
        publish(Registry(client, settings), make_spec("secured"), tiny_llama)
        job = producer.submit("acme/secured", {"note": "hello"})
        assert job.result(timeout=60).status is JobState.SUCCEEDED
        ran = CommandLine(settings=settings, folder=tmp_path).run(
            "result", job.id, "--json", PREFILLQ_REDIS_CA_FILE=str(settings.redis_ca_file)
        )
        assert ran.json["status"] == "succeeded"
        clients: Any = client.client_list()
        assert 4 < len(clients) <= secured.proxy.connections, "somebody connected in clear"
