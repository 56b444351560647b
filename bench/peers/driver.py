"""A peer's process as the bench holds it. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from bench.peers.protocol import Answer, Load, Work
from contract.errors import PrefillqError

ROOT = Path(__file__).parents[2]
_QUIT_S = 5.0


class PeerFailed(PrefillqError):
    """A peer's process crashed, hung, said something else than an answer, or gave up."""

    code: ClassVar[str] = "peer_failed"


class Peer:
    """One peer, from its start to `close`; a failure other than a refused request ends it.

    `command` must serve `bench.peers.protocol` on its standard streams. Its standard error is kept
    in a file, whose last lines are in every error. Not thread-safe.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._unread = b""
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
                start_new_session=True,  # so that close() reaches what the peer itself started
            )
        except OSError as error:
            self._stderr.close()
            raise PeerFailed(
                f"peer {name} does not start",
                given=f"{command[0]}: {error.strerror}",
                remedy="Run 'python -m bench.peers.setup'.",
            ) from error
        assert self._process.stdin is not None  # noqa: S101 - both are pipes
        assert self._process.stdout is not None  # noqa: S101
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of the peer's process, which also leads its process group."""
        return self._process.pid

    def load(self, load: Load, *, timeout_s: float) -> str:
        """Make the peer ready; the answer names versions and settings. Raises PeerFailed."""
        return str(self._call({"op": "load", **asdict(load)}, timeout_s)["note"])

    def run(self, work: Work, *, timeout_s: float) -> Answer:
        """Have the jobs done. Raises PeerFailed."""
        answer = self._call({"op": "run", **asdict(work)}, timeout_s)
        try:
            return Answer(**answer)
        except TypeError as error:
            raise self._failed("answered something else", given=sorted(answer)) from error

    def close(self) -> None:
        """Ask it to quit and end it when it does not; safe to call twice."""
        if self._stderr.closed:
            return
        with contextlib.suppress(OSError):  # it may be dead already
            self._requests.write(b'{"op": "quit"}\n')
            self._requests.flush()
        with contextlib.suppress(OSError):
            self._requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_QUIT_S)
        self._kill()
        self._answers.close()
        self._stderr.close()

    def _call(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        if self._stderr.closed:
            raise PeerFailed(f"peer {self.name} is closed", remedy="Start it again.")
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
        except OSError as error:
            raise self._failed("is gone", given=self._exit()) from error
        line = self._line(time.monotonic() + timeout_s, f"{timeout_s:g} s for {request['op']}")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise self._failed("answered what is no JSON", given=line[:80]) from error
        if not isinstance(answer, dict):
            raise self._failed("answered something else", given=line[:80])
        if "error" in answer:
            raise PeerFailed(f"peer {self.name} refused", given=answer["error"])
        return answer

    def _line(self, deadline: float, limit: str) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self._failed("did not answer in time", expected=limit)
                received = os.read(self._answers.fileno(), 1 << 20)
                if not received:
                    raise self._failed("is gone", given=self._exit())
                self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _failed(self, what: str, *, given: object = None, expected: object = None) -> PeerFailed:
        """The error to raise; the process is ended, since nothing it says can be trusted now."""
        self._kill()
        self._stderr.seek(0)
        last = self._stderr.read().decode("utf-8", "replace").splitlines()[-5:]
        self.close()
        return PeerFailed(
            f"peer {self.name} {what}",
            given=given,
            expected=expected,
            remedy="It said last: " + " | ".join(last) if last else "",
        )

    def _exit(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"exit status {self._process.wait(_QUIT_S)}"
        return "its output closed"

    def _kill(self) -> None:
        # Once it was waited for, its id may belong to somebody else.
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
