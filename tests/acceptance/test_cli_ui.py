"""`prefillq ui` as users run it: where it listens, what it says, how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from contract.settings import Settings
from tests.support.tcp import closed_port_url
from ui import cli

# The command by its own import, so that it need not have been installed.
_RUN = "from producer.cli import main; from ui.cli import ui; main.add_command(ui); main()"


@contextmanager
def _serving(settings: Settings, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the address that it printed."""
    clean = {key: value for key, value in os.environ.items() if "PREFILLQ" not in key}
    with subprocess.Popen(
        [sys.executable, "-c", _RUN, "ui", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean, "PREFILLQ_REDIS_URL": settings.redis_url, "PYTHONWARNINGS": "error"},
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def _answer(url: str, path: str = "/", **headers: str) -> tuple[int, str]:
    address = urlsplit(url)
    connection = HTTPConnection(str(address.hostname), address.port or 0, timeout=30)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, body


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_serves_until_a_signal(settings: Settings, number: signal.Signals) -> None:
    """The address on stdout and talk on stderr; status 0, also with a page open."""
    with _serving(settings) as (process, url):
        assert url.startswith("http://127.0.0.1:")
        status, body = _answer(url)
        assert (status, "Overview" in body) == (200, True)
        address = urlsplit(url)
        with socket.create_connection((str(address.hostname), address.port)) as stream:
            stream.sendall(b"GET /live/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"text/event-stream" in stream.recv(4096)
            process.send_signal(number)
            out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")
    assert err == "prefillq: serving the page; Ctrl-C ends it\n"


def test_address_as_json(settings: Settings) -> None:
    """One value, as soon as it can be opened."""
    with _serving(settings, "--json") as (_, line):
        status, _ = _answer(json.loads(line)["url"])
        assert status == 200


def test_redis_need_not_be_there(settings: Settings) -> None:
    """The page is the place to see that it is away."""
    away = settings.model_copy(update={"redis_url": closed_port_url()})
    with _serving(away) as (_, url):
        status, body = _answer(url)
    assert (status, "Redis does not answer" in body) == (503, True)


def test_names(settings: Settings) -> None:
    """Addresses and localhost are answered, other names only when they are allowed."""
    with _serving(settings, "--allow-host", "page.example") as (_, url):
        assert _answer(url, Host="page.example")[0] == 200
        assert _answer(url, Host="localhost:1")[0] == 200
        assert _answer(url, Host="evil.example")[0] == 421
        own = socket.gethostname()
        if own not in ("", "localhost"):
            assert _answer(url, Host=own)[0] == 421


def test_other_machines_only_on_request(settings: Settings) -> None:
    """With a warning that says who may read what then."""
    with _serving(settings, "--host", "0.0.0.0", "--show-text") as (process, url):  # noqa: S104
        assert url.startswith("http://0.0.0.0:")
        assert _answer(url.replace("0.0.0.0", "127.0.0.1"))[0] == 200  # noqa: S104
        process.terminate()
        _, err = process.communicate(timeout=20)
    assert "whoever reaches it can read jobs with their variables and answers" in err


def test_a_port_that_is_taken(settings: Settings) -> None:
    """Exit status 7, as for a worker's metrics: a line that says what to do, and no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with _serving(settings, "--port", port) as (process, line):
            _, err = process.communicate(timeout=20)
    assert (process.returncode, line) == (7, "")
    assert err.startswith("prefillq: the port is taken")
    assert "Choose another --port" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("host", ["no.such.host.invalid", "300.1.1.1", "x" * 300])
def test_an_address_that_is_none(settings: Settings, host: str) -> None:
    """One line that says what to do."""
    ran = CliRunner().invoke(cli.ui, ["--host", host, "--port", "0"], obj=settings)
    assert type(ran.exception).__name__ == "InvalidInput"
    assert len(str(ran.exception)) < 400


def test_what_is_not_installed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the extra."""
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == "uvicorn" else name)
    ran = CliRunner().invoke(cli.ui, [], obj=settings)
    assert "pip install 'prefillq[ui]'" in str(ran.exception)


def test_no_torch(settings: Settings) -> None:
    """The page needs neither torch nor what trains or runs a model."""
    code = (
        "import sys, ui.app, ui.cli, ui.server; "
        "print([name for name in ('torch', 'transformers', 'celery') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
