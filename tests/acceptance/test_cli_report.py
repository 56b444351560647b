"""`prefillq report` as users run it. It needs no Redis, no model and no torch."""

from __future__ import annotations

import gzip
import os
import pty
import subprocess
from pathlib import Path

import pytest

from contract.settings import Settings
from tests.support.command_line import CommandLine
from tests.support.job_lines import at, job_line
from tests.support.tcp import closed_port_url


@pytest.fixture
def command_line(tmp_path: Path) -> CommandLine:
    """With no Redis to be reached."""
    return CommandLine(
        settings=Settings(cache_dir=tmp_path, redis_url=closed_port_url()), folder=tmp_path
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "worker.txt"
    path.write_bytes(
        b"Loading weights\n"
        + b"".join(job_line(timestamp=at(n), total_s=n + 1.0) for n in range(10))
        + job_line(tenant="globex", timestamp=at(20))
        + job_line()[:-30]
    )
    return path


def test_page_into_a_file(command_line: CommandLine, log: Path) -> None:
    """Nothing on stdout, what was done and what was odd on stderr."""
    ran = command_line.run("report", log, "-o", "report.html", "--price-per-hour", "2")
    assert (ran.code, ran.out) == (0, "")
    assert "report.html has the page, of 11 jobs" in ran.err
    assert "1 line: each speaks of a job and cannot be read" in ran.err
    page = (command_line.folder / "report.html").read_text("ascii")
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("<svg") == 7


def test_page_into_a_pipe(command_line: CommandLine, log: Path) -> None:
    """From stdin to stdout, with and without a dash."""
    for arguments in ((), ("-",), ("-", "-o", "-")):
        ran = command_line.run("report", *arguments, stdin=log.read_text())
        assert ran.code == 0
        assert ran.out.startswith("<!DOCTYPE html>")
        assert ran.out.endswith("</html>\n")


def test_numbers_as_json(command_line: CommandLine, log: Path, tmp_path: Path) -> None:
    """Of several workers' files together, packed or not; a page too when it is asked for."""
    other = tmp_path / "other.gz"
    other.write_bytes(gzip.compress(job_line(worker="host-2")))
    ran = command_line.run("report", log, other, "--json")
    assert ran.code == 0
    assert ran.json["summary"]["by_status"]["succeeded"] == 12
    assert {row["worker"] for row in ran.json["workers"]} == {"host-1", "host-2"}
    ran = command_line.run("report", log, "--json", "-o", "report.html")
    assert ran.json["summary"]["jobs"] == 11
    assert (command_line.folder / "report.html").stat().st_size > 50_000


@pytest.mark.parametrize(
    ("arguments", "jobs"),
    [
        (("--tenant", "globex"), 1),
        (("--template", "acme/*"), 10),
        (("--since", "2026-11-30T02:00:05"), 6),
        (("--until", "2026-11-30T03:00:05+01:00"), 5),
        (("--since", "2026-11-30"), 11),
    ],
)
def test_options_choose_jobs(
    command_line: CommandLine, log: Path, arguments: tuple[str, ...], jobs: int
) -> None:
    """By their end, UTC unless the time says otherwise."""
    assert command_line.run("report", log, *arguments, "--json").json["summary"]["jobs"] == jobs


def test_so_long_ago(command_line: CommandLine, log: Path) -> None:
    """`--since 1d` counts from now; from the environment as well."""
    from datetime import UTC, datetime, timedelta

    now = datetime.now(UTC)
    log.write_bytes(
        job_line(timestamp=(now - timedelta(hours=1)).isoformat())
        + job_line(timestamp=(now - timedelta(hours=3)).isoformat())
    )
    assert command_line.run("report", log, "--since", "2h", "--json").json["summary"]["jobs"] == 1
    ran = command_line.run("report", log, "--json", PREFILLQ_REPORT_SINCE="1d")
    assert ran.json["summary"]["jobs"] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("missing.log",),
        ("worker.txt", "--since", "soon"),
        ("worker.txt", "--since", "99999999999d"),
        ("worker.txt", "--price-per-hour", "nan"),
        ("worker.txt", "--price-per-hour", "-1"),
        ("worker.txt", "--since", "2026-12-01", "--until", "2026-11-01"),
    ],
    ids=" ".join,
)
def test_wrong_use_gives_2(
    command_line: CommandLine, log: Path, arguments: tuple[str, ...]
) -> None:
    """Nothing is read."""
    ran = command_line.run("report", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Usage:" in ran.err


def test_no_jobs_give_1(command_line: CommandLine) -> None:
    """With what to do, as JSON too; and no page is left behind."""
    ran = command_line.run("report", "-o", "report.html", stdin="hello\n")
    assert (ran.code, ran.out) == (1, "")
    assert "prefillq worker start 2> worker.log" in ran.err
    assert not (command_line.folder / "report.html").exists()
    ran = command_line.run("report", "--json", stdin="hello\n")
    assert (ran.code, ran.json["error"]) == (1, "no_jobs")


def test_page_that_cannot_be_written_gives_1(command_line: CommandLine, log: Path) -> None:
    """Named, with the reason."""
    ran = command_line.run("report", log, "-o", "nowhere/report.html")
    assert ran.code == 1
    assert "nowhere/report.html: No such file" in ran.err


def test_terminal_gets_no_page(command_line: CommandLine, log: Path) -> None:
    """100 KB of HTML there help nobody; numbers may go there."""
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            command_line.command("report", log),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env=command_line.environment,
            check=False,
            timeout=60,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 2
    assert b"-o report.html" in done.stderr


def test_without_the_plots(command_line: CommandLine, log: Path, tmp_path: Path) -> None:
    """The extra is named before anything is read; the numbers need no library."""
    hidden = tmp_path / "site"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['matplotlib'] = None\n")
    path = os.pathsep.join([str(hidden), os.environ.get("PYTHONPATH", "")])
    ran = command_line.run("report", log, "--json", "-o", "report.html", PYTHONPATH=path)
    assert (ran.code, ran.json["error"]) == (1, "missing_extra")
    assert "prefillq[report]" in ran.json["remedy"]
    assert command_line.run("report", log, "--json", PYTHONPATH=path).code == 0


def test_numbers_load_neither_plots_nor_torch(command_line: CommandLine, log: Path) -> None:
    """So that a report of a log is there at once, also where only producers are installed."""
    code = (
        "import sys; from report.cli import report\n"
        f"report.main([{str(log)!r}, '--json'], standalone_mode=False)\n"
        "print([m for m in ('matplotlib', 'torch', 'redis', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [
            *command_line.command()[:1],
            "-c",
            code,
        ],
        capture_output=True,
        text=True,
        check=True,
        env=command_line.environment,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "[]"
