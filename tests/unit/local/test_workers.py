"""WorkerProcess starts, waits for, stops and guards its process; a stand-in plays the worker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contract.errors import PrefillqError, TimedOut
from contract.settings import Settings
from local import workers
from local.workers import WorkerProcess
from tests.unit.local.processes import alive, wait_until

HOST = socket.gethostname()


class Nothing:
    """A connection that is only closed."""

    def close(self) -> None:
        pass


def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> WorkerProcess:
    """A worker process that runs `script`; nobody has reported yet."""
    monkeypatch.setattr(workers, "_COMMAND", (sys.executable, "-c", script))
    monkeypatch.setattr(workers, "connect", lambda _: Nothing())
    monkeypatch.setattr(workers, "list_workers", lambda *_: [])
    settings = Settings(redis_url="redis://127.0.0.1:1/0", cache_dir=tmp_path, lease_s=7)
    return WorkerProcess(
        settings,
        log_path=tmp_path / "log",
        options=["--x", "1"],
        env={"PREFILLQ_AUDIT": "1"},
        ready_s=20,
    )


SLEEP = "import time; print('up', flush=True); time.sleep(600)"
POLITE = f"import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); {SLEEP}"
DEAF = f"import signal; signal.signal(15, signal.SIG_IGN); {SLEEP}"


def wait_up(worker: WorkerProcess) -> None:
    assert wait_until(lambda: "up" in worker.log_tail())


def test_gets_the_settings_the_options_and_what_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child sees our settings as variables, its options as arguments, its output in the log."""
    worker = make(
        tmp_path,
        monkeypatch,
        "import os, sys; print(*sys.argv[1:])\n"
        "names = 'REDIS_URL', 'CACHE_DIR', 'LEASE_S', 'AUDIT'\n"
        "print(*(os.environ[f'PREFILLQ_{name}'] for name in names))",
    )
    worker.start()
    assert worker.process is not None
    assert worker.process.wait(20) == 0
    assert worker.log_tail().splitlines() == [
        "--x 1",
        f"redis://127.0.0.1:1/0 {tmp_path} 7.0 1",
    ]
    assert worker.stop() == 0


def test_ready_is_the_report_of_this_very_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker's report is not taken, nor one of the same pid on another host."""
    worker = make(tmp_path, monkeypatch, SLEEP)
    asked = 0

    def reports(_client: object, _settings: Settings) -> list[dict[str, Any]]:
        nonlocal asked
        asked += 1
        others = [
            {"id": "other pid", "host": HOST, "pid": worker.pid + 1},
            {"id": "other host", "host": "elsewhere", "pid": worker.pid},
        ]
        mine = {"id": "mine", "host": HOST, "pid": worker.pid}
        return others if asked < 3 else [*others, mine]

    monkeypatch.setattr(workers, "list_workers", reports)
    with worker:
        assert asked == 3
        assert worker.wait_ready()["id"] == "mine"
        pid = worker.pid
        assert alive(pid)
    assert not alive(pid)


def test_a_worker_that_ends_early_is_an_error_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code and the last lines say why, at once."""
    worker = make(tmp_path, monkeypatch, "print('bad moon'); raise SystemExit(4)")
    with pytest.raises(PrefillqError, match="exit code 4") as caught, worker:
        pass
    assert "bad moon" in str(caught.value)


def test_a_silent_worker_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the limit it is an error, and no process is left."""
    worker = make(tmp_path, monkeypatch, SLEEP)
    worker._ready_s = 0.3
    with pytest.raises(TimedOut, match="did not report"), worker:
        pass
    assert not alive(worker.pid)


@pytest.mark.parametrize(
    ("script", "grace_s", "code"), [(POLITE, 20.0, 5), (DEAF, 0.2, -signal.SIGKILL)]
)
def test_stop_asks_first_and_insists_after_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, grace_s: float, code: int
) -> None:
    """SIGTERM, then SIGKILL; a second stop gives the same code."""
    worker = make(tmp_path, monkeypatch, script).start()
    wait_up(worker)
    assert worker.stop(grace_s=grace_s) == code
    assert worker.stop() == code


def test_kill_does_not_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like an out-of-memory killer."""
    worker = make(tmp_path, monkeypatch, POLITE).start()
    wait_up(worker)
    worker.kill()
    assert worker.stop() == -signal.SIGKILL


def test_stopping_what_never_started_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clean-up code need not know how far it came; asking for the pid is an error."""
    worker = make(tmp_path, monkeypatch, SLEEP)
    worker.kill()
    assert worker.stop() == 0
    with pytest.raises(PrefillqError, match="not started"):
        _ = worker.pid


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_does_not_outlive_a_killed_owner(tmp_path: Path, how: signal.Signals) -> None:
    """Whatever ends the owner, the worker gets SIGTERM and is gone soon."""
    script = (
        "import sys; from pathlib import Path\n"
        "from contract.settings import Settings; from local import workers\n"
        "workers._COMMAND = (sys.executable, '-c', 'import time; time.sleep(600)')\n"
        "worker = workers.WorkerProcess(Settings(), log_path=Path(sys.argv[1])).start()\n"
        "print(worker.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert alive(pid)
        owner.send_signal(how)
        owner.wait(20)
    assert wait_until(lambda: not alive(pid))
