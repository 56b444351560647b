"""A real worker in a process of its own, started and stopped like a user would."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from contract.errors import PrefillqError, TimedOut
from contract.redis_client import connect
from contract.settings import Settings
from contract.worker_reports import list_workers
from local.guard import Guard, start_guarded

_COMMAND = (sys.executable, "-m", "producer", "worker", "start")
_PASSED_ON = (
    "redis_url",
    "redis_ca_file",
    "redis_cert_file",
    "redis_key_file",
    "cache_dir",
    "lease_s",
    "result_ttl_s",
    "max_result_bytes",
    "max_attempts",
    "dead_ttl_s",
)
_GRACE_S = 10  # from SIGTERM to SIGKILL, for a worker whose owner died


class WorkerProcess:
    """`prefillq worker start` as a child process; its log goes to a file.

    Use as a context manager: the block begins once the worker reports itself, with its model
    loaded and what it was to warm warmed, and the process is gone after it. The worker connects
    to its queues a moment later; jobs submitted before that wait for it there.

    A worker does not outlive the process that started it, even when that is killed.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        log_path: Path,
        options: Sequence[str] = (),
        env: dict[str, str] | None = None,
        ready_s: float = 180.0,
        command: Sequence[str] | None = None,  # another worker than `prefillq worker start`
    ) -> None:
        self._command = command
        self._settings = settings
        self._options = options
        self._env = env or {}
        self._ready_s = ready_s
        self.log_path = log_path
        self.process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    def start(self) -> Self:
        """Start the process without waiting for it."""
        with self.log_path.open("ab") as log:
            self.process, self._guard = start_guarded(
                [*(self._command or _COMMAND), *self._options],
                grace_s=_GRACE_S,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    **{
                        f"PREFILLQ_{name.upper()}": str(value)
                        for name in _PASSED_ON
                        if (value := getattr(self._settings, name)) is not None
                    },
                    **self._env,
                },
                start_new_session=True,  # Ctrl-C reaches us; we stop it in order
            )
        return self

    @property
    def pid(self) -> int:
        return self._running().pid

    def wait_ready(self) -> dict[str, Any]:
        """Wait until it reports itself; returns what `prefillq worker list` would show.

        Raises PrefillqError when it ends instead, TimedOut after `ready_s`.
        """
        process = self._running()
        me = (socket.gethostname(), process.pid)
        client = connect(self._settings)
        deadline = time.monotonic() + self._ready_s
        try:
            while time.monotonic() < deadline:
                self.check_alive()
                for description in list_workers(client, self._settings):
                    if (description.get("host"), description.get("pid")) == me:
                        return description
                time.sleep(0.1)
        finally:
            client.close()
        raise TimedOut(
            "the worker did not report in time",
            expected=f"within {self._ready_s:g} s",
            given=self.log_tail(),
        )

    def check_alive(self) -> None:
        """Raise PrefillqError, with the end of its log, when the process has ended."""
        process = self._running()
        if process.poll() is not None:
            raise PrefillqError(
                f"the worker ended with exit code {process.returncode}", given=self.log_tail()
            )

    def stop(self, *, grace_s: float = 60.0) -> int:
        """SIGTERM, then SIGKILL after `grace_s`; returns the exit code."""
        if self.process is None:
            return 0
        self.process.terminate()
        self.resume()  # a paused process does not even notice
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self._wait()

    def kill(self) -> None:
        """SIGKILL, as an out-of-memory killer would."""
        if self.process is not None:
            self.process.kill()
            self._wait()

    def pause(self) -> None:
        """SIGSTOP: it stands still, its leases run on."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT; does nothing to a process that runs or has ended."""
        if self._running().poll() is None:
            os.kill(self.pid, signal.SIGCONT)

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        text = self.log_path.read_text("utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def _wait(self) -> int:
        code = self._running().wait()
        if self._guard is not None:
            self._guard.release()
        return code

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise PrefillqError("the worker was not started")
        return self.process

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
