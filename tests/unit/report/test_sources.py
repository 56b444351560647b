"""Files as they come: gzip or not, cut short, with lines without end, given twice."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path

import pytest

from contract.errors import InvalidInput
from report.collect import NoJobs, collect
from report.sources import MAX_LINE_BYTES, Reading, read_sources
from report.totals import Totals, Wanted
from tests.support.job_lines import job_line


def _collect(*paths: Path) -> tuple[Totals, Reading]:
    return collect([str(path) for path in paths], Wanted())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "worker.txt"


def test_plain_and_gzip_are_the_same(log: Path, tmp_path: Path) -> None:
    """Also when rotated logs were packed one by one and put together; no name says which."""
    log.write_bytes(job_line() * 3)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(job_line()) + gzip.compress(job_line() * 2))
    assert _collect(log)[0].jobs == 3
    assert _collect(packed)[0].jobs == 3
    assert _collect(log, packed)[0].jobs == 6


def test_last_line_cut_short(log: Path) -> None:
    """A worker that was killed while it wrote."""
    log.write_bytes(job_line() * 2 + job_line()[:-9])
    totals, reading = _collect(log)
    assert (totals.jobs, reading.unreadable, reading.broken) == (2, 1, [])


def test_last_line_without_its_end(log: Path) -> None:
    """It is whole, only the line break is not there yet."""
    log.write_bytes(job_line() + job_line().rstrip())
    assert _collect(log)[0].jobs == 2


def test_gzip_cut_short(log: Path) -> None:
    """What could be unpacked counts, and it is said where reading ended."""
    log.write_bytes(gzip.compress(b"".join(job_line(job_id=str(n)) for n in range(2000)))[:-200])
    totals, reading = _collect(log)
    assert 0 < totals.jobs < 2000
    assert "worker.txt" in reading.broken[0]


@pytest.mark.parametrize("damage", [b"\0" * 50, b"\xff" * 50])
def test_gzip_damaged(log: Path, damage: bytes) -> None:
    """Likewise."""
    packed = gzip.compress(b"".join(job_line(job_id=str(n)) for n in range(20_000)))
    log.write_bytes(packed[:-100] + damage + packed[-50:])
    totals, reading = _collect(log)
    assert totals.jobs
    assert len(reading.broken) == 1


def test_lines_without_end_take_no_memory(log: Path) -> None:
    """100 MB between two line breaks, packed to 100 KB: passed over, and those around it read."""
    with gzip.open(log, "wb") as file:
        file.write(job_line())
        for _ in range(100):
            file.write(b'"job_finished"' + b"x" * 2**20)
        file.write(b"\n" + job_line())
    tracemalloc.start()
    try:
        totals, reading = _collect(log)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (totals.jobs, reading.too_long, reading.unreadable) == (2, 1, 0)
    assert peak < 2**21


@pytest.mark.parametrize("over", [-1, 0, 1, MAX_LINE_BYTES])
def test_longest_line(log: Path, over: int) -> None:
    """Lines about as long as the limit are counted once, on whichever side of it they are."""
    line = job_line(worker="")
    line = job_line(worker="x" * (MAX_LINE_BYTES + over - len(line)))
    log.write_bytes(line + job_line())
    totals, reading = _collect(log)
    assert (reading.lines, totals.jobs + reading.too_long) == (2, 2)
    assert reading.too_long == (over > 0)


def test_file_given_twice_is_read_once(log: Path, tmp_path: Path) -> None:
    """Under another name too; else every job would count double."""
    log.write_bytes(job_line())
    link = tmp_path / "link"
    link.symlink_to(log)
    totals, reading = _collect(log, link, log)
    assert totals.jobs == 1
    assert len(reading.twice) == 2


def test_no_jobs_says_why(log: Path) -> None:
    """Empty, other lines only, a terminal's lines, or a gzip file that is none."""
    for content, words in (
        (b"", "0 lines"),
        (b"hello\n" * 3, "3 lines"),
        (b"[info] job_finished tenant=acme\n", "1 that speak of jobs"),
        (b"\x1f\x8bnonsense", "worker.txt"),
    ):
        log.write_bytes(content)
        with pytest.raises(NoJobs) as caught:
            _collect(log)
        assert words in str(caught.value)
        assert caught.value.exit_code == 1


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A pipe that nobody writes to would be waited on for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidInput):
            list(read_sources([str(path)], Reading()))


def test_progress_ends_at_the_size(log: Path) -> None:
    """Of all files together."""
    log.write_bytes(b"\n" * 10_000)
    seen: list[int] = []
    list(read_sources([str(log)], Reading(), advance=seen.append))
    assert seen[-1] == 10_000
    assert seen == sorted(seen)
