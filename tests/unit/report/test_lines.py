"""Lines of a log: ours are read, others passed over, damaged ones refused, odd values left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.types import (
    CacheInfo,
    CacheState,
    JobError,
    JobState,
    Result,
    Timings,
    Usage,
    VersionRef,
)
from report.lines import JobLine, TriedLaterLine, Unreadable, WarmedLine, read_line
from tests.support.job_lines import T0, job_line, logged

RESULT = Result(
    job_id="acme." + "0" * 32,
    ref=VersionRef(tenant="acme", template="triage", version=3, digest="d"),
    status=JobState.FAILED,
    usage=Usage(prompt_tokens=12, completion_tokens=3, cached_tokens=7),
    cache=CacheInfo(state=CacheState.MISS, reason="ids_differ_at=17"),
    timings=Timings(queue_s=0.25, decode_s=1.5, total_s=2.0),
    model="tiny",
    device="cuda:0",
    worker="host-1",
    attempt=2,
    batch_size=8,
    error=JobError(code="device_lost", message="secret words"),
)


def _job(raw: bytes) -> JobLine:
    line = read_line(raw)
    assert isinstance(line, JobLine)
    return line


def test_what_a_worker_logs_is_read() -> None:
    """The real line of `log_finished`, every field that reports use."""
    [raw] = logged([RESULT])
    line = _job(raw)
    assert (line.address, line.version, line.status) == ("acme/triage", "3", "failed")
    assert (line.model, line.device, line.worker) == ("tiny", "cuda:0", "host-1")
    assert (line.cache_state, line.cache_reason) == ("miss", "ids_differ_at")
    assert (line.prompt_tokens, line.cached_tokens, line.completion_tokens) == (12, 7, 3)
    assert (line.attempt, line.batch_size, line.error) == (2, 8, "device_lost")
    assert (line.seconds["queue_s"], line.seconds["decode_s"]) == (0.25, 1.5)
    assert line.seconds["total_s"] == 2.0
    assert line.bad_values == 0
    assert line.at is not None


@pytest.mark.parametrize(
    "raw",
    [
        b"\n",
        b"Loading weights: 100%\n",
        b'{"event": "rung_again", "level": "info"}\n',
        b'{"event": "other", "action": "job_finished"}\n',
        b'{"event": "job_fin',
    ],
)
def test_other_lines_are_none(raw: bytes) -> None:
    """Those of libraries, of other events, and ours cut short before they say what they are."""
    assert read_line(raw) is None


@pytest.mark.parametrize(
    "raw",
    [
        b'{"event": "job_finished", "tenant": "acm',
        job_line()[:-20] + job_line(),
        b"[" * 100_000 + b'"job_finished"',
        b'{"event": "job_finished"' + b',"a":{"b":' * 50_000,
        b'{"event": "job_finished", "attempt": ' + b"9" * 5_000 + b"}",
        b'["job_finished"]',
        b'{"log": "job_finished"}',
        b"2026-11-30 02:00 [info] job_finished tenant=acme",
        job_line(leave_out=["tenant"]),
        job_line(leave_out=["template"]),
        job_line(leave_out=["version"]),
        job_line(leave_out=["status"]),
        job_line(status="running"),
        job_line(status=["succeeded"]),
        job_line(tenant={"a": 1}),
        job_line(version=True),
        job_line(version=10**30),
        job_line(version=-1),
    ],
)
def test_damaged_lines_are_refused(raw: bytes) -> None:
    """They speak of a job, so that leaving them out must not go unsaid."""
    with pytest.raises(Unreadable):
        read_line(raw)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -0.001, 4e7, True, "1.0", [1], {}, 10**400]
)
def test_values_that_cannot_be_are_left_out(value: Any) -> None:
    """And counted: as 0 they would better every average."""
    line = _job(job_line(total_s=value))
    assert "total_s" not in line.seconds
    assert line.bad_values == 1


@pytest.mark.parametrize("value", [float("nan"), -1, 2**50, 0.5, True, "7"])
def test_counts_that_cannot_be_are_left_out(value: Any) -> None:
    """As well."""
    line = _job(job_line(completion_tokens=value))
    assert line.completion_tokens is None
    assert line.bad_values == 1


def test_whole_floats_are_counts() -> None:
    """Some collectors write every number as a float."""
    line = _job(job_line(completion_tokens=7.0))
    assert (line.completion_tokens, line.bad_values) == (7, 0)


def test_more_cached_than_prompt_is_left_out() -> None:
    """Else the share would be over 100 %."""
    line = _job(job_line(prompt_tokens=10, cached_tokens=11))
    assert (line.cached_tokens, line.bad_values) == (None, 1)


def test_fields_may_be_missing() -> None:
    """Of an older release, or dropped on the way; missing is not bad."""
    line = _job(
        b'{"event":"job_finished","tenant":"a","template":"b","version":1,"status":"failed"}'
    )
    assert (line.at, line.seconds, line.prompt_tokens, line.attempt) == (None, {}, None, None)
    assert line.bad_values == 0


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-30T02:00:00Z", T0),
        ("2026-11-30T02:00:00", T0),
        ("2026-11-30T03:00:00+01:00", T0),
        ("0001-01-01T00:00:00+14:00", None),
        ("9999-12-31T23:59:59Z", None),
        ("yesterday", None),
        ("", None),
        (17, None),
    ],
)
def test_times(text: Any, moment: float | None) -> None:
    """With any offset, without one in UTC; what is none is no time and no reason to lose a job."""
    line = _job(job_line(timestamp=text))
    assert line.at == moment
    assert line.bad_values == (moment is None)


def test_names_are_short_and_print() -> None:
    """No control codes, line breaks, marks that turn the text around, or halves of characters."""
    line = _job(job_line(tenant="a\x1b[31m\n\u202eb", template="x" * 10**4, worker="\ud800"))
    assert line.tenant == "a [31m  b"
    assert len(line.template) == 80
    assert line.worker == " "


def test_text_before_and_around_a_line() -> None:
    """`docker compose logs` puts a name before it, Windows a carriage return behind."""
    assert _job(b"worker-1  | " + job_line().rstrip() + b"\r\n").tenant == "acme"
    assert _job(b"\xef\xbb\xbf" + job_line()).tenant == "acme"


def test_bytes_that_are_no_text() -> None:
    """A broken character in one field spoils that field alone."""
    assert _job(job_line(worker="WORKER").replace(b"WORKER", b"\xff\xfe")).tenant == "acme"


def test_warmed_and_tried_later() -> None:
    """The two other events, as the worker writes them."""
    warmed = {"event": "version_warmed", "version": "acme/triage@3", "prefill_s": 1.5}
    line = read_line(json.dumps(warmed).encode())
    assert line == WarmedLine(
        at=None, tenant="acme", address="acme/triage", version="3", prefill_s=1.5
    )
    assert read_line(json.dumps({**warmed, "prefill_s": 0.0}).encode()) is None
    later = {"event": "job_tried_later", "job_id": "acme." + "0" * 32, "error": "nan"}
    assert read_line(json.dumps(later).encode()) == TriedLaterLine(
        at=None, tenant="acme", error="nan"
    )
