"""What a batch remembers, and that it stays small whatever is in the files."""

from __future__ import annotations

import errno
import io
import json
import os
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from contract.errors import Conflict, InvalidInput
from contract.types import CacheInfo, CacheState, JobState, Result, VersionRef
from producer.batch import seen
from producer.batch.files import open_output, open_source
from producer.batch.formats import OWN, Format
from producer.batch.lines import BadLine, BatchLine, lines_of, read_lines
from producer.batch.openai_lines import OPENAI
from producer.batch.results import Output, longest_line
from producer.batch.seen import Indexes, Names
from tests.fuzz.judge import bounded

BATCH = "0123456789abcdef"
REF = VersionRef(tenant="acme", template="triage", version=1, digest="d" * 64)


def _anything(_template: str, _variables: Mapping[str, Any], _key: str | None) -> None:
    """A template that takes all."""


def _bad(_template: str, _variables: Mapping[str, Any], _key: str | None) -> None:
    raise InvalidInput("$.ticket is missing") from ValueError("x" * 10)


def test_a_name_belongs_to_the_line_that_had_it_first() -> None:
    """Over many growths of the table, long names and odd ones too."""
    names = Names()
    given = [f"n{number}" for number in range(5000)] + ["", "\ud800", "ä" * 512, "ä" * 511]
    for line, name in enumerate(given):
        assert names.first(name, line) == line
    for line, name in enumerate(given):
        assert names.first(name, 10**6) == line


def test_a_name_costs_no_more_than_it_says() -> None:
    """200,000 of 512 characters each: 5 MB, where they themselves are 100."""
    tracemalloc.start()
    try:
        names = Names()
        for number in range(200_000):
            names.first(f"{number:0512}", number)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 200_000 * 25


def test_indexes_are_those_that_were_added() -> None:
    """And cost a bit each."""
    indexes, added = Indexes(), {0, 7, 8, 1000, 123_456, seen.MAX_LINES - 1}
    for index in added:
        indexes.add(index)
    near = {index + step for index in added for step in (-1, 0, 1)} - {-1}
    assert {index for index in near if index in indexes} == added
    assert len(indexes.bits) <= seen.MAX_LINES // 8
    with pytest.raises(InvalidInput, match="too many lines"):
        indexes.add(seen.MAX_LINES)


def test_a_batch_has_no_more_lines_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank ones count, for they have numbers."""
    monkeypatch.setattr(seen, "MAX_LINES", 3)
    good = b'{"variables": {}}\n'
    assert len(list(read_lines([good] * 3, template="acme/x", check=_anything))) == 3
    with pytest.raises(InvalidInput, match=r"too many lines.*Split"):
        list(read_lines([good, b"\n", b"\n", good], template="acme/x", check=_anything))


@pytest.mark.parametrize("index", [-1, seen.MAX_LINES, 10**300])
@pytest.mark.parametrize("format_", [OWN, OPENAI], ids=["own", "openai"])
def test_an_output_with_a_line_that_no_batch_has_is_somebody_elses(
    format_: Format, index: int
) -> None:
    """It is not made room for."""
    own = {"index": index, "batch": BATCH, "status": "failed"}
    openai = {
        "id": f"batch_req_{BATCH}_{index}",
        "custom_id": "a",
        "response": None,
        "error": {"code": "x"},
    }
    line = json.dumps(own if format_ is OWN else openai).encode() + b"\n"
    with bounded(seconds=10, mib=50), pytest.raises(Conflict, match="something else"):
        Output(io.BytesIO(line), BATCH, format_)


@pytest.mark.parametrize("ours", [True, False])
def test_an_output_whose_line_never_ends_is_not_read_whole(tmp_path: Path, ours: bool) -> None:
    """Also when it begins like one of ours; and it is left as it is."""
    path = tmp_path / "out.jsonl"
    with path.open("wb") as file:
        file.write(OWN.beginning if ours else b"x")
        file.truncate(2 * 2**30)  # of NULs, which take no room on the disk
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
    size = path.stat().st_size
    with bounded(seconds=60, mib=200), path.open("r+b") as file:  # noqa: SIM117
        with pytest.raises(Conflict, match="over 16842752 bytes"):
            Output(file, BATCH, max_bytes=longest_line(2 * 2**20))
    assert path.stat().st_size == size


def test_statuses_that_no_line_has_are_not_counted() -> None:
    """Each would be kept, however many and long."""
    line = b'{"index": 0, "batch": "%s", "status": "%s"}\n'
    with pytest.raises(Conflict, match="something else"):
        Output(io.BytesIO(line % (BATCH.encode(), b"running")), BATCH)
    Output(io.BytesIO(line % (BATCH.encode(), b"expired")), BATCH)


@pytest.mark.parametrize("length", [512, 513])
def test_an_id_has_a_longest_length(length: int) -> None:
    """It is kept with each bad line that is told."""
    text = json.dumps({"id": "ä" * length, "variables": {}}).encode()
    [line] = read_lines([text], template="acme/x", check=_anything)
    assert isinstance(line, BatchLine) is (length == 512)
    if isinstance(line, BadLine):
        assert "at most 512 characters" in str(line.error)


def test_bad_lines_that_are_told_keep_no_line() -> None:
    """Ten thousand are kept, and a line may have megabytes."""
    text = b'{"variables": {"a": "' + b"x" * 2**20 + b'"}}\n'
    kept = []
    with bounded(seconds=60, mib=100):
        for line in read_lines((text for _ in range(300)), template="acme/x", check=_bad):
            assert isinstance(line, BadLine)
            kept.append(line)
    assert len(kept) == 300


@pytest.mark.parametrize("size", [100, 10_000])
@pytest.mark.parametrize("format_", [OWN, OPENAI], ids=["own", "openai"])
def test_a_result_that_a_later_run_could_not_read_is_an_error(format_: Format, size: int) -> None:
    """Its line would end that run; the other results are kept."""
    result = Result(
        job_id="acme.1",
        ref=REF,
        status=JobState.SUCCEEDED,
        text="x" * size,
        cache=CacheInfo(state=CacheState.HIT),
    )
    line = BatchLine(index=3, id="a", template="acme/triage", variables={})
    file = io.BytesIO()
    output = Output(file, BATCH, format_, max_bytes=5000)
    output.write(line, result)
    file.seek(0)
    again = Output(file, BATCH, format_, max_bytes=5000)
    assert 3 in again.indexes
    assert again.summary.succeeded is (size == 100)
    written = json.loads(file.getvalue())
    if size > 5000:
        assert written["error"]["code"] == "record_damaged"
        assert "PREFILLQ_MAX_RESULT_BYTES" in json.dumps(written["error"])


@pytest.mark.parametrize(
    "odd",
    [
        Result(job_id="acme.1", ref=REF, status=JobState.RUNNING),
        Result(job_id="acme.1", ref=REF, status=JobState.SUCCEEDED, data=float("nan")),
        Result(job_id="acme.1", ref=REF, status=JobState.SUCCEEDED, data={1: {2, 3}}),
    ],
    ids=["goes on", "NaN", "no JSON"],
)
def test_a_result_that_makes_no_line_is_an_error(odd: Result) -> None:
    """A producer can write its records by hand."""
    file = io.BytesIO()
    Output(file, BATCH).write(
        BatchLine(index=0, id=None, template="acme/triage", variables={}), odd
    )
    written = json.loads(file.getvalue())
    assert (written["status"], written["error"]["code"]) == ("failed", "record_damaged")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"a\nb\n")
    return path


@pytest.mark.parametrize("change", ["appended", "rewritten"])
def test_an_input_that_changes_while_it_is_read_is_noticed(source: Path, change: str) -> None:
    """At the next line, also one that nobody has read yet; and by who reads it from the start."""
    with open_source(str(source)) as opened:
        lines = opened.lines(max_bytes=100)
        assert next(lines) == b"a\n"
        if change == "appended":
            with source.open("ab") as file:
                file.write(b"c\n")
        else:
            source.write_bytes(b"b\na\n")
            os.utime(source, ns=(0, 0))
        with pytest.raises(Conflict, match="was changed while it was read"):
            list(lines)
        with pytest.raises(Conflict, match="was changed while it was read"):
            list(opened.chunks())


def test_an_input_is_read_as_often_as_it_is_asked_for(source: Path) -> None:
    """From its start, whatever was read before."""
    with open_source(str(source)) as opened:
        for _ in range(2):
            assert list(opened.lines(max_bytes=100)) == [b"a\n", b"b\n"]
            assert b"".join(opened.chunks()) == b"a\nb\n"


def test_the_input_under_another_name_is_no_output(source: Path, tmp_path: Path) -> None:
    """A link to it, which might look like a torn line of ours."""
    link = tmp_path / "link.jsonl"
    link.hardlink_to(source)
    with open_source(str(source)) as opened:  # noqa: SIM117
        with pytest.raises(Conflict, match="the batch file itself"), open_output(link, opened):
            pass


def test_an_output_that_cannot_be_locked_is_not_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two batches would write it at once, on some file systems of a network."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    out = tmp_path / "out.jsonl"
    with open_source(str(source)) as opened:  # noqa: SIM117
        with pytest.raises(InvalidInput, match="No locks"), open_output(out, opened):
            pass
    assert out.read_bytes() == b""


def test_lines_of_any_length_are_cut_at_the_limit() -> None:
    """Two gigabytes without an end are one line of the limit's length."""

    class Endless(io.RawIOBase):
        left = 2 * 2**30

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            size = min(len(buffer), self.left)
            buffer[:size] = b"x" * size
            self.left -= size
            return size

    with bounded(seconds=60, mib=100):
        [line] = lines_of(io.BufferedReader(Endless(), 2**20), max_bytes=2**20)
    assert len(line) == 2**20 + 1
