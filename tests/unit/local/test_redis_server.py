"""The embedded Redis starts, keeps its data, says why it failed, and never outlives its owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from contract.errors import PrefillqError
from local import redis_server
from local.redis_server import EmbeddedRedis, find_redis_binary
from tests.unit.local.processes import alive, wait_until


@pytest.fixture
def binary() -> Path:
    found = find_redis_binary()
    if found is None:
        pytest.skip("no redis-server on this machine")
    return found


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which servers make their own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def server(binary: Path, temporary: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as running:
        yield running


def client(server: EmbeddedRedis) -> redis.Redis:
    return redis.Redis.from_url(server.url, decode_responses=True)


def fake_binary(folder: Path, script: str) -> Path:
    path = folder / "redis-server"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_runs_with_the_settings_of_the_real_deployment(server: EmbeddedRedis) -> None:
    """Loopback only, append-only file, nothing evicted."""
    with client(server) as connection:
        wanted = {
            "bind": "127.0.0.1",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "protected-mode": "yes",
        }
        assert {name: connection.config_get(name)[name] for name in wanted} == wanted


def test_extra_settings_are_passed_on(binary: Path, temporary: Path) -> None:
    """A test can ask for a small Redis to see it run full."""
    with EmbeddedRedis(config={"maxmemory": "3mb"}) as server, client(server) as connection:
        assert connection.config_get("maxmemory")["maxmemory"] == str(3 * 2**20)


def test_stop_ends_the_process_and_removes_the_folder(binary: Path, temporary: Path) -> None:
    """Nothing remains, and stopping twice is harmless."""
    server = EmbeddedRedis().start()
    pid = server.pid
    assert list(temporary.iterdir())
    server.stop()
    server.stop()
    assert not alive(pid)
    assert list(temporary.iterdir()) == []


def test_an_error_in_the_block_stops_it_too(binary: Path, temporary: Path) -> None:
    """The context manager cleans up whatever happens inside."""
    server = EmbeddedRedis().start()
    pid = server.pid
    with pytest.raises(KeyboardInterrupt), server:
        raise KeyboardInterrupt
    assert not alive(pid)
    assert list(temporary.iterdir()) == []


def test_restart_keeps_address_and_data(server: EmbeddedRedis) -> None:
    """An orderly restart loses nothing and clients find it where it was."""
    with client(server) as connection:
        connection.set("kept", "yes")
        url, pid = server.url, server.pid
        server.restart()
        assert (server.url, connection.get("kept")) == (url, "yes")
        assert server.pid != pid


def test_kill_is_a_crash_and_start_recovers(server: EmbeddedRedis) -> None:
    """After SIGKILL nothing answers; started again, what was written to the file is there."""
    with client(server) as connection:
        connection.set("kept", "yes")
        pid = server.pid
        server.kill()
        assert not alive(pid)
        with pytest.raises(redis.ConnectionError):
            connection.ping()
        server.start()
        assert connection.get("kept") == "yes"


def test_a_taken_port_is_tried_again(
    binary: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When another process takes the port first, the next free one serves."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free_port = redis_server._free_port
        ports = iter([taken.getsockname()[1]])
        monkeypatch.setattr(redis_server, "_free_port", lambda: next(ports, None) or free_port())
        with EmbeddedRedis() as server, client(server) as connection:
            assert connection.ping()
            assert server.url.split(":")[-1] != f"{taken.getsockname()[1]}/0"


def test_a_failed_start_shows_the_log_and_leaves_nothing(
    temporary: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason stands in the error, not in a file that is gone."""
    broken = fake_binary(tmp_path_factory.mktemp("bin"), "echo 'Fatal: bad moon'; exit 1")
    monkeypatch.setattr(redis_server, "_binary_or_error", lambda: broken)
    with pytest.raises(PrefillqError, match="bad moon"):
        EmbeddedRedis().start()
    assert list(temporary.iterdir()) == []


def test_a_silent_server_is_given_up_in_time(
    temporary: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that never answers is ended after the limit."""
    silent = fake_binary(tmp_path_factory.mktemp("bin"), "exec sleep 60")
    monkeypatch.setattr(redis_server, "_binary_or_error", lambda: silent)
    started = time.monotonic()
    with pytest.raises(PrefillqError, match="did not start"):
        EmbeddedRedis(timeout_s=0.3).start()
    assert time.monotonic() - started < 10
    assert list(temporary.iterdir()) == []


def test_no_binary_is_an_error_that_says_what_to_do(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three ways out are named, and no folder is made."""
    monkeypatch.setattr(redis_server, "_candidates", list)
    with pytest.raises(PrefillqError) as caught:
        EmbeddedRedis().start()
    for way_out in ("prefillq[dev]", "redis-server", "PREFILLQ_REDIS_URL"):
        assert way_out in caught.value.remedy
    assert list(temporary.iterdir()) == []


def test_a_binary_that_cannot_run_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package's binary for another system does not hide the one on PATH."""
    good = fake_binary(tmp_path, "exit 0")
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"\x7fELF not for here")
    foreign.chmod(0o755)
    monkeypatch.setattr(redis_server, "_candidates", lambda: [tmp_path / "missing", foreign, good])
    assert find_redis_binary() == good


def test_the_server_on_path_is_found_without_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the dev extra the system's server serves."""
    on_path = fake_binary(tmp_path, "exit 0")
    monkeypatch.setattr(redis_server, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis_binary() == on_path


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, "thread"])
def test_the_server_does_not_outlive_a_killed_owner(
    binary: Path, tmp_path: Path, how: signal.Signals | str
) -> None:
    """kill -9 of the owner takes the server and its folder along; a thread's end does not."""
    script = (
        "import sys, threading, time\n"
        "from local.redis_server import EmbeddedRedis\n"
        "server = EmbeddedRedis()\n"
        "thread = threading.Thread(target=server.start)\n"
        "thread.start(); thread.join()\n"
        "print(server.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert alive(pid), "the server must live on when the thread that started it ends"
        if isinstance(how, signal.Signals):
            owner.send_signal(how)
        else:
            owner.communicate()
        owner.wait(20)
    assert wait_until(lambda: not alive(pid))
    assert wait_until(lambda: list(tmp_path.iterdir()) == [])


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_one_by_hand_runs_until_it_is_told_to_end(binary: Path, how: signal.Signals) -> None:
    """`make redis`: at the port that was asked for, and a second one there says why not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "local", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == f"PREFILLQ_REDIS_URL=redis://127.0.0.1:{port}/0\n"
        with redis.Redis(port=port) as connection:
            assert connection.ping()
            second = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (second.returncode, second.stdout) == (1, "")
            assert "Address already in use" in second.stderr
            first.send_signal(how)
            assert first.wait(20) == 0
            with pytest.raises(redis.ConnectionError):
                connection.ping()
