"""A Redis that speaks TLS itself, where one is installed: the whole way of a job.

The packages that bring a redis-server for tests are built without TLS, Debian's is built with it,
so this needs `apt-get install redis-server`. What TLS has to hold is tested in test_tls.py without
it.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.errors import RedisUnreachable
from contract.model_folder import ModelFolder
from contract.redis_client import connect
from contract.settings import Settings
from contract.types import JobState
from producer import Producer
from templates.registry import Registry
from tests.support.certificates import Authority, Issued, openssl_is_there
from tests.support.fakes import fake_workers
from tests.support.pretend import pretend_model
from tests.support.templates import make_spec, publish
from tests.support.waiting import until


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if not openssl_is_there():
        pytest.skip("no openssl command")
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(params=["no", "yes"], ids=["anybody", "certificate"])
def settings(
    request: pytest.FixtureRequest, authority: Authority, tmp_path: Path
) -> Iterator[Settings]:
    """Of a Redis with no port in clear, which asks its clients for a certificate or not."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on PATH")
    port, server = _free_port(), authority.issue("server", san="DNS:localhost")
    given: dict[str, str] = {
        "port": "0",
        "tls-port": str(port),
        "tls-cert-file": str(server.cert),
        "tls-key-file": str(server.key),
        "tls-ca-cert-file": str(authority.ca),
        "tls-auth-clients": request.param,
        "save": "",
        "dir": str(tmp_path),
    }
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    log = tmp_path / "redis.log"
    with log.open("wb") as out:
        process = subprocess.Popen([binary, *words], stdout=out)
    ours: Issued | None = None
    if request.param == "yes":
        ours = authority.issue("client", san="DNS:client")
    settings = Settings(
        redis_url=f"rediss://localhost:{port}/0",
        redis_ca_file=authority.ca,
        redis_cert_file=ours and ours.cert,
        redis_key_file=ours and ours.key,
        cache_dir=tmp_path / "cache",
    )
    try:
        until(lambda: process.poll() is not None or _answers(port))
        if process.poll() is not None:
            said = log.read_text("utf-8")
            assert "TLS support" in said or "Bad directive" in said, said
            pytest.skip("the redis-server on PATH was built without TLS")
        yield settings
    finally:
        process.terminate()
        process.wait(10)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


def test_jobs_go_their_whole_way(settings: Settings, smollm2: ModelFolder, tmp_path: Path) -> None:
    """Template, submits, worker, notices, results."""
    (tmp_path / "model").mkdir()
    model = pretend_model(tmp_path / "model", tokenizer_from=smollm2.path)
    with (
        connect(settings) as client,
        Producer(settings) as producer,
        fake_workers(settings, model.path, tmp_path) as start,
    ):
        publish(Registry(client, settings), make_spec("notes"), model)
        start()
        jobs = producer.submit_many("acme/notes", [{"note": str(n)} for n in range(20)])
        ended = {job.result(timeout=60).status for job in producer.wait(jobs, timeout=60)}
    assert ended == {JobState.SUCCEEDED}


def test_whoever_has_no_certificate_is_refused_where_one_is_asked_for(settings: Settings) -> None:
    """And an unknown authority's server everywhere."""
    bare = settings.model_copy(update={"redis_cert_file": None, "redis_key_file": None})
    unknown = settings.model_copy(update={"redis_ca_file": None})
    refused = [unknown] if settings.redis_cert_file is None else [bare, unknown]
    for other in refused:
        with Producer(other) as producer, pytest.raises(RedisUnreachable):
            producer.submit("acme/notes", {"note": "x"})
