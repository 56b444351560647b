"""A guard acts when its owner dies, whatever the way, and not otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from local.guard import Guard, start_guarded
from tests.unit.local.processes import alive, wait_until

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
SLEEPER = [sys.executable, "-c", SLEEP]
DEAF = [sys.executable, "-c", f"import signal; signal.signal(15, signal.SIG_IGN); {SLEEP}"]


def owner_of(pid: int, folder: Path, grace_s: int) -> subprocess.Popen[bytes]:
    """A process that has made a guard and lives until it is ended."""
    script = (
        "import sys; from pathlib import Path; from local.guard import Guard\n"
        f"guard = Guard(pid={pid}, grace_s={grace_s}, folder=Path({str(folder)!r}))\n"
        "print('guarded', flush=True); sys.stdin.read()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def line_of(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize(
    ("command", "grace_s", "code"),
    [
        (SLEEPER, 0, -signal.SIGKILL),
        (SLEEPER, 10, -signal.SIGTERM),
        (DEAF, 1, -signal.SIGKILL),
    ],
)
@pytest.mark.parametrize("how", [signal.SIGKILL, None])
def test_process_and_folder_go_with_the_owner(
    tmp_path: Path, command: list[str], grace_s: int, code: int, how: signal.Signals | None
) -> None:
    """Killed or simply ended, the owner takes them along: asked first where there is grace."""
    folder = tmp_path / "with space"
    folder.mkdir()
    (folder / "file").touch()
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as child,
        owner_of(child.pid, folder, grace_s) as owner,
    ):
        assert line_of(child) == b"up\n"
        assert line_of(owner) == b"guarded\n"
        assert alive(child.pid)
        assert folder.exists()
        if how is not None:
            owner.send_signal(how)
        owner.communicate(timeout=10)
        assert child.wait(10) == code
        assert wait_until(lambda: not folder.exists(), seconds=5 + grace_s)


def test_a_released_guard_does_nothing(tmp_path: Path) -> None:
    """Neither when it is released, nor when its pipe has closed, nor the second time."""
    with subprocess.Popen(SLEEPER, stdout=subprocess.PIPE) as child:
        guard = Guard(pid=child.pid, folder=tmp_path)
        guard.release()
        guard.release()
        time.sleep(0.3)  # that nothing happens cannot be polled for
        assert child.poll() is None
        assert tmp_path.exists()
        child.kill()


def test_a_guard_of_a_folder_alone_ends_no_process(tmp_path: Path) -> None:
    """Without a pid only the folder goes."""
    folder = tmp_path / "folder"
    folder.mkdir()
    guard = Guard(folder=folder)
    os.close(guard._pipe)  # as the kernel does when the owner dies
    assert wait_until(lambda: not folder.exists())
    assert tmp_path.exists()


def test_releasing_a_guard_that_was_killed_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who ends every shell on the machine does not break an orderly stop."""
    monkeypatch.setattr("local.guard._SCRIPT", "exit 0")
    Guard(folder=tmp_path).release()


def test_a_guard_that_cannot_start_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No guard, no silence; and no descriptor is left open."""
    before = len([*Path("/dev/fd").iterdir()])
    monkeypatch.setattr("local.guard._SCRIPT", "exit 3")
    with pytest.raises(subprocess.CalledProcessError):
        Guard(folder=tmp_path)
    assert len([*Path("/dev/fd").iterdir()]) == before


def test_a_guarded_command_begins_with_an_empty_input_and_words_as_they_are() -> None:
    """Whatever is in them; its pid is the one that is guarded."""
    command = [
        sys.executable,
        "-c",
        "import sys, os; print(sys.stdin.read(), sys.argv, os.getpid())",
    ]
    words = ["two words", "$HOME", "'", ""]
    process, guard = start_guarded([*command, *words], stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=20)
    assert out.decode().split() == f" {['-c', *words]} {process.pid}".split()
    guard.release()


def test_nothing_begins_without_its_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever dies between the two, or fails, leaves no process behind."""
    begun = tmp_path / "begun"
    before = len([*Path("/dev/fd").iterdir()])
    monkeypatch.setattr("local.guard._SCRIPT", "exit 3")
    with pytest.raises(subprocess.CalledProcessError):
        start_guarded(["/bin/sh", "-c", f"touch {begun}; sleep 600"])
    time.sleep(0.3)  # that nothing happens cannot be polled for
    assert not begun.exists()
    assert len([*Path("/dev/fd").iterdir()]) == before
