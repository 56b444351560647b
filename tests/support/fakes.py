"""Fake workers as processes: started, paused, killed and stopped one by one, each with a log."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from contract.settings import Settings
from local.workers import WorkerProcess

_ROOT = Path(__file__).parents[2]
_COMMAND = (sys.executable, "-m", "tests.support.fake_worker")


class FakeWorker(WorkerProcess):
    """`python -m tests.support.fake_worker` as a child process.

    `options` are those of its command line beside `--model`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        model: Path,
        log_path: Path,
        options: Sequence[str] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        super().__init__(
            settings,
            log_path=log_path,
            options=["--model", str(model), *options],
            env={"PYTHONPATH": path, **(env or {})},
            command=_COMMAND,
            ready_s=60.0,
        )

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Its log lines of one event."""
        return log_lines(self.log_path, event)


class StartFake(Protocol):
    """Starts a fake worker with these options; `settings` other than the pool's, if given."""

    def __call__(
        self, *options: str, ready: bool = True, settings: Settings | None = None
    ) -> FakeWorker: ...


@contextmanager
def fake_workers(settings: Settings, model: Path, folder: Path) -> Iterator[StartFake]:
    """Fake workers, numbered as they are started; all are gone after the block."""
    with ExitStack() as stack:
        count = 0

        def start(*options: str, ready: bool = True, settings: Settings = settings) -> FakeWorker:
            nonlocal count
            count += 1
            worker = FakeWorker(
                settings, model=model, log_path=folder / f"worker-{count}.log", options=options
            ).start()
            stack.callback(worker.stop, grace_s=20.0)
            if ready:
                worker.wait_ready()
            return worker

        yield start


def log_lines(path: Path, event: str) -> list[dict[str, Any]]:
    """The JSON lines of one event in a worker's log."""
    found = []
    for text in path.read_text("utf-8", errors="replace").splitlines():
        if text[:1] == "{":
            try:
                line = json.loads(text)
            except ValueError:  # its process was killed while it wrote
                continue
            if line.get("event") == event:
                found.append(line)
    return found
