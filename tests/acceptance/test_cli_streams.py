"""Streams that are closed, full or read by nobody, and impatient users."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from contract.settings import Settings
from producer.cli import INTERRUPTED, READER_GONE
from tests.support.command_line import CommandLine
from tests.support.tcp import closed_port_url


@pytest.fixture
def command_line(tmp_path: Path) -> CommandLine:
    """Commands that need no Redis."""
    settings = Settings(redis_url=closed_port_url(), cache_dir=tmp_path / "cache")
    return CommandLine(settings=settings, folder=tmp_path)


def _shell(
    command_line: CommandLine, line: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which "$@" is the command."""
    return subprocess.run(
        ["bash", "-c", line, "bash", *command_line.command(*arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=command_line.folder,
        env=command_line.environment,
    )


def test_a_reader_that_goes_gives_what_a_shell_expects(command_line: CommandLine) -> None:
    """`prefillq ... | head -1` under pipefail: 141, as for every tool that SIGPIPE ends."""
    line = 'set -o pipefail; "$@" | true; exit ${PIPESTATUS[0]}'
    # Whether the reader has gone before the writer writes is a matter of time; here it has.
    for arguments in (("completion", "zsh"), ("--help",)):
        ran = _shell(command_line, line, *arguments)
        assert (ran.returncode, ran.stderr) == (READER_GONE, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("completion", "bash"), 0),
        (("models", "list"), 0),
        (("status", "acme." + "0" * 32), 3),
        (("submit", "acme/x", "--vars", "-"), 1),
        (("nothing",), 2),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else str(value),
)
def test_closed_streams_change_no_exit_code(
    command_line: CommandLine, closed: str, arguments: tuple[str, ...], code: int
) -> None:
    """What cannot be written is not; what was asked for is done or not done all the same."""
    line = f'"$@" {closed}' if "<&-" in closed else f'"$@" {closed} < /dev/null'
    ran = _shell(command_line, line, *arguments)
    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr + ran.stdout


def test_what_is_opened_later_is_no_standard_stream(command_line: CommandLine) -> None:
    """Or what a library prints would end in a file, or in a connection to Redis."""
    line = 'exec "$0" -c "$CODE" >&- 2>&-'
    code = (
        "import os, sys; from producer.cli import main\n"
        "try: main(['completion', 'bash'])\n"
        "except SystemExit: pass\n"
        "handle = os.open('opened', os.O_CREAT | os.O_RDWR)\n"
        "os.write(1, b'printed by a library'); os.write(2, b'printed by a library')\n"
        "os.write(handle, str(handle).encode())\n"
    )
    command = command_line.command()[0]
    subprocess.run(
        ["bash", "-c", line, command],
        check=True,
        timeout=60,
        cwd=command_line.folder,
        env={
            **command_line.environment,
            "CODE": code,
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
    )
    text = (command_line.folder / "opened").read_text()
    assert text.isdecimal()
    assert int(text) > 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said(command_line: CommandLine) -> None:
    """On stderr, with exit status 1 and without a second failure at the interpreter's end.

    With --json stderr has no errors, and stdout takes none.
    """
    ran = _shell(command_line, '"$@" > /dev/full', "completion", "bash")
    assert ran.returncode == 1
    assert ran.stderr.startswith("prefillq: the output cannot be written; given: No space left")
    assert ran.stderr.count("\n") == 1
    ran = _shell(command_line, '"$@" > /dev/full', "completion", "bash", "--json")
    assert (ran.returncode, ran.stderr) == (1, "")


def test_characters_that_the_terminal_lacks_are_escaped(command_line: CommandLine) -> None:
    """A terminal of 1990 shows less, and ends nothing."""
    (command_line.folder / "日.yaml").write_text("a: 1")
    arguments = command_line.command("templates", "lint", "日.yaml")
    ran = subprocess.run(
        arguments,
        capture_output=True,
        timeout=60,
        check=False,
        cwd=command_line.folder,
        env={**command_line.environment, "PYTHONIOENCODING": "latin-1"},
    )
    assert ran.returncode == 5
    assert b"\\u65e5.yaml" in ran.stdout


def _interrupted(command_line: CommandLine, times: int) -> tuple[int, str]:
    """`batch -` waits for its input; each Ctrl-C comes when the one before was noticed."""
    with subprocess.Popen(
        command_line.command("batch", "-", "-o", "out.jsonl"),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=command_line.folder,
        env={**command_line.environment, "PYTHONFAULTHANDLER": "1"},
    ) as process:
        _wait_for_reading(process.pid)
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.02)
        _, talk = process.communicate(timeout=30)
        return process.returncode, talk


def _wait_for_reading(pid: int) -> None:
    """Until the process sleeps in a read of its stdin."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            call = Path(f"/proc/{pid}/syscall").read_text().split()
        except OSError:
            time.sleep(2)  # no such file here: long enough for the imports
            return
        if call[:2] == ["0", "0x0"]:
            return
        time.sleep(0.01)
    raise AssertionError("the command never read its input")


@pytest.mark.parametrize("times", [1, 2, 5])
def test_ctrl_c_is_no_traceback(command_line: CommandLine, times: int) -> None:
    """Once or impatiently often: 130, or the signal's own end, which a shell shows as 130."""
    code, talk = _interrupted(command_line, times)
    assert code in (INTERRUPTED, -signal.SIGINT), talk
    assert "Traceback" not in talk
    assert "Exception ignored" not in talk


@pytest.mark.timeout(60)
def test_pipes_and_devices_as_files_are_refused(command_line: CommandLine) -> None:
    """No command waits for a pipe's writer, or reads /dev/zero to its end."""
    pipe = command_line.folder / "pipe.yaml"
    os.mkfifo(pipe)
    for path in (str(pipe), "/dev/zero"):
        for arguments, code in (
            (("templates", "lint", path), 5),
            (("templates", "publish", path), 1),
            (("templates", "import", path), 1),
            (("batch", path, "-o", "out.jsonl"), 1),
            (("submit", "acme/x", "--vars", f"@{path}"), 1),
        ):
            ran = command_line.run(*arguments)
            assert ran.code == code, (arguments, ran.err)
            assert "not a regular file" in ran.out + ran.err
