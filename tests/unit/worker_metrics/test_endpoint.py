"""The HTTP server: one page, a port of its own, and clear words when it cannot have it."""

from __future__ import annotations

import errno
import http.client
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from prometheus_client import CollectorRegistry

from contract.errors import Conflict, SettingsError
from tests.support.scraped import Scraped
from worker.metrics import endpoint
from worker.metrics.endpoint import Endpoint
from worker.metrics.exporter import Exporter


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    with closing(Exporter(host="127.0.0.1", port=0, model_name="tiny")) as made:
        yield made


def get(address: str, path: str, *, method: str = "GET") -> tuple[int, str]:
    with closing(http.client.HTTPConnection(address, timeout=5)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_serves_metrics_before_the_model_is_loaded(exporter: Exporter) -> None:
    """With what is known by then, and the process's own numbers."""
    page = Scraped.over_http(exporter.address)
    assert page("build_info", model_name="tiny") == 1
    assert page("attempts_total", end="ended") == 0
    assert "process_resident_memory_bytes" in page.names()


def test_has_no_series_of_when_series_were_made(exporter: Exporter) -> None:
    """The library makes one for each otherwise."""
    names = Scraped.over_http(exporter.address).names()
    assert [name for name in names if name.endswith("_created")] == []


@pytest.mark.parametrize("path", ["/", "/metric", "/metrics/x", "/favicon.ico", "/../etc/passwd"])
def test_everything_else_is_not_found(exporter: Exporter, path: str) -> None:
    """And says where the metrics are."""
    status, text = get(exporter.address, path)
    assert status == 404
    assert "/metrics" in text


def test_only_reads(exporter: Exporter) -> None:
    assert get(exporter.address, "/metrics", method="POST")[0] == 404


def test_a_port_that_is_taken_is_a_conflict(exporter: Exporter) -> None:
    """With the address and what to do."""
    port = int(exporter.address.rpartition(":")[2])
    with pytest.raises(Conflict, match="--metrics-port") as caught:
        Exporter(host="127.0.0.1", port=port, model_name="tiny")
    assert f"127.0.0.1:{port}" in str(caught.value)


def test_a_port_is_free_again_after_close() -> None:
    """A worker that is started anew gets it, although old connections are not yet forgotten."""
    first = Exporter(host="127.0.0.1", port=0, model_name="tiny")
    Scraped.over_http(first.address)
    first.close()
    port = int(first.address.rpartition(":")[2])
    with closing(Exporter(host="127.0.0.1", port=port, model_name="tiny")) as second:
        assert second.address == first.address


@pytest.mark.parametrize("host", ["203.0.113.1", "no such host"])
def test_an_address_of_no_interface_is_a_bad_setting(host: str) -> None:
    """Whether it is somebody else's or no address at all."""
    with pytest.raises(SettingsError, match="--metrics-host"):
        Endpoint(CollectorRegistry(), host=host, port=0)


def test_a_port_that_is_not_ours_to_open_is_a_bad_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those under 1024 are for a user; the tests may run as root."""

    def refuse(_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(endpoint.TCPServer, "server_bind", refuse)
    with pytest.raises(SettingsError, match="--metrics-port"):
        Endpoint(CollectorRegistry(), host="127.0.0.1", port=80)


def test_a_silent_client_neither_blocks_others_nor_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut off after a while; scrapes are answered meanwhile."""
    assert endpoint._Handler.timeout == endpoint.PATIENCE_S
    monkeypatch.setattr(endpoint._Handler, "timeout", 0.3)
    with (
        closing(Endpoint(CollectorRegistry(), host="127.0.0.1", port=0)) as served,
        socket.create_connection(("127.0.0.1", served.port), timeout=5) as silent,
    ):
        assert get(f"127.0.0.1:{served.port}", "/metrics")[0] == 200
        assert silent.recv(1) == b""


def test_serves_on_ipv6() -> None:
    """Where there is any."""
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        served = Endpoint(CollectorRegistry(), host="::1", port=0)
    except SettingsError:
        pytest.skip("no IPv6 on the loopback interface")
    with closing(served):
        assert get(f"[::1]:{served.port}", "/metrics")[0] == 200
