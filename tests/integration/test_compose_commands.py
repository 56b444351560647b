"""Commands and checks of docker-compose.yml as plain processes: what its containers would run.

Addresses and folders of the containers become this machine's; all else is as the file says. Of
Prometheus only the check is tried here, and Grafana not at all.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

from contract import keys
from contract.model_folder import ModelFolder
from contract.redis_client import connect
from contract.settings import Settings
from local.guard import start_guarded
from local.redis_server import find_redis_binary
from producer.client import Producer
from templates.registry import Registry
from tests.support.kernels import share_kernels
from tests.support.programs import missing, program
from tests.support.prometheus import prometheus
from tests.support.tcp import free_port
from tests.support.templates import make_spec, publish
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
PORTS = {"redis": 6379, "worker": 9464, "ui": 8650, "flower": 5555}

pytestmark = pytest.mark.unrestricted("the file's Redis has one user")


class Services:
    """The file's services on this machine, started one by one, each with a log in `folder`."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.ports = {name: free_port() for name in PORTS}
        self.folder = folder
        text = (ROOT / "docker-compose.yml").read_text("utf-8")
        text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda m: variables.get(m[1], m[2]), text)
        text = text.replace("redis://redis:", "redis://127.0.0.1:")
        text = text.replace("/etc/flower", str(ROOT / "deploy" / "flower"))
        text = text.replace("/var/cache/prefillq", str(folder / "cache"))
        for name, port in PORTS.items():
            text = text.replace(str(port), str(self.ports[name]))
        self.all: dict[str, Any] = yaml.safe_load(text)["services"]
        beside = str(Path(sys.executable).parent)  # prefillq, celery and python itself
        self._environment = {**os.environ, "PATH": f"{beside}:{os.environ['PATH']}"}
        self._stack = ExitStack()

    def start(self, name: str, *more: str, binary: str | None = None) -> None:
        """Its command, with another binary if given and `more` options behind it, until healthy."""
        service = self.all[name]
        first, *words = service["command"]
        with (self.folder / f"{name}.log").open("wb") as log:
            process, guard = start_guarded(
                [binary or first, *words, *more],
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self._environment, **service.get("environment", {})},
            )
        self._stack.callback(guard.release)
        self._stack.callback(process.wait, 30)
        self._stack.callback(process.terminate)
        until(lambda: process.poll() is not None or self.healthy(name), 120, what=f"{name} is well")
        assert process.poll() is None, (self.folder / f"{name}.log").read_text("utf-8")

    def healthy(self, name: str) -> bool:
        """Whether its check passes; where that is wget's, by asking the same."""
        kind, *words = self.all[name]["healthcheck"]["test"]
        assert kind == "CMD"
        if words[0] == "wget":
            return bool(get(words[-1]))
        if words[0] == "redis-cli":  # which the package with the server does not bring
            port = self.ports["redis"]
            words = [sys.executable, "-c", f"import redis; redis.Redis(port={port}).{words[1]}()"]
        return not subprocess.run(
            words, capture_output=True, timeout=20, check=False, env=self._environment
        ).returncode

    def get(self, name: str, path: str) -> str:
        return get(f"http://127.0.0.1:{self.ports[name]}{path}")

    def close(self) -> None:
        """End all, the last one first."""
        self._stack.close()


def get(url: str) -> str:
    """The page; "" where nobody answers."""
    try:
        with urlopen(url, timeout=10) as answer:  # noqa: S310 - http, on this machine
            text: str = answer.read().decode("utf-8")
            return text
    except URLError:
        return ""


@pytest.fixture
def services(tmp_path: Path, tiny_llama: ModelFolder) -> Iterator[Services]:
    """With a small model in the place of the default one."""
    share_kernels(tmp_path / "cache")
    made = Services(tmp_path, MODEL=str(tiny_llama.path), FLOWER_QUEUES="acme/other/0123456789ab")
    try:
        yield made
    finally:
        made.close()


def test_they_run_and_are_healthy(services: Services, tiny_llama: ModelFolder) -> None:
    """Redis keeps jobs, Flower and the page show a job that waits, and the worker answers it."""
    redis_server = find_redis_binary() or missing("there is no redis-server on this machine")
    port = str(services.ports["redis"])
    services.start("redis", "--port", port, binary=str(redis_server))
    settings = Settings(redis_url=f"redis://127.0.0.1:{port}/0")
    with connect(settings) as client, Producer(settings) as producer:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        publish(Registry(client, settings), make_spec("notes"), tiny_llama)
        job = producer.submit("acme/notes", {"note": "The parcel came."})

        services.start("ui")
        assert "acme/notes" in services.get("ui", "/queues")
        services.start("flower")
        queue = keys.queue("acme", "notes", tiny_llama.model_digest)
        assert flower_shows(services) == {queue: 1, "acme/other/0123456789ab": 0, "_unused": 0}

        services.start("worker")
        assert job.result(timeout=60).text
        assert flower_shows(services)[queue] == 0
        until(
            lambda: 'status="succeeded"' in services.get("worker", "/metrics"),
            what="the job is counted",
        )
    image = services.all["flower"]["image"]
    assert image == f"mher/flower:{version('flower')}", "what ran here is what the file names"


def flower_shows(services: Services) -> dict[str, int]:
    """Queues and their lengths on Flower's page."""
    page = services.get("flower", "/broker")
    cells = re.findall(r"<td[^>]*>\s*([^<]*?)\s*</td>", page)
    return {name: int(length) for name, length in zip(cells[::6], cells[1::6], strict=True)}


def test_prometheus_passes_its_check(tmp_path: Path) -> None:
    """Asked as the file asks it; what it does is in test_prometheus."""
    with prometheus(program("prometheus"), tmp_path, []) as there:
        [*_, url] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"][
            "prometheus"
        ]["healthcheck"]["test"]
        assert "Healthy" in get(url.replace("http://127.0.0.1:9090", there.url))
