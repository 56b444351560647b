"""The numbers of a report, each as counted by hand."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from contract.errors import PrefillqError
from report.lines import read_line
from report.totals import MAX_VERSIONS, Totals, Wanted
from tests.support.job_lines import at, job_line
from tests.unit.report.conftest import Report

COLD = {"cache_state": "miss", "cache_reason": "cold", "cached_tokens": 0, "prefill_s": 2.0}
FAILED = {"status": "failed", "error": "device_lost", "completion_tokens": 0, "batch_size": 0}


def _warmed(version: str = "acme/triage@1", prefill_s: float = 3.0) -> bytes:
    return (
        json.dumps({"event": "version_warmed", "version": version, "prefill_s": prefill_s}).encode()
        + b"\n"
    )


def _tried_later(error: str, job_id: str = "acme." + "0" * 32) -> bytes:
    line = {"event": "job_tried_later", "job_id": job_id, "error": error, "timestamp": at(5)}
    return json.dumps(line).encode() + b"\n"


def test_summary(report_of: Report) -> None:
    """Four jobs that ended over 9 s, the first of them submitted 1 s before its end: 10 s."""
    data = report_of(
        job_line(timestamp=at(9)),  # workers' files one after the other: not in order
        job_line(timestamp=at(0)),
        job_line(timestamp=at(3), worker="host-2", **FAILED),
        job_line(timestamp=at(4), template="other", status="expired", error="expired"),
        b"some other line\n",
    )
    assert data["summary"] == {
        "jobs": 4,
        "by_status": {"succeeded": 2, "failed": 1, "cancelled": 0, "expired": 1},
        "versions": 2,
        "workers": 2,
        "began": "2026-11-30T01:59:59.000+00:00",
        "ended": "2026-11-30T02:00:09.000+00:00",
        "span_s": 10.0,
        "jobs_per_s": 0.4,
        "prompt_tokens_per_s": 48.0,
        "completion_tokens_per_s": 3.0,
    }
    assert (data["input"]["lines"], data["input"]["job_lines"]) == (5, 4)
    assert data["errors"] == {"device_lost": 1, "expired": 1}


def test_latency(report_of: Report) -> None:
    """Totals 1 to 10 s of one version, 20 s of another; a failed job's 500 s are in neither."""
    lines = [job_line(total_s=float(n), ttft_s=n / 10) for n in range(1, 11)]
    lines.append(job_line(version=2, total_s=20.0, ttft_s=0.0))  # an answer without a token
    lines.append(job_line(total_s=500.0, **FAILED))
    latency = report_of(*lines)["latency"]
    assert latency["all"]["total_s"] == {
        "count": 11,
        "mean": round(75 / 11, 6),
        "p50": 6.0,
        "p90": 10.0,
        "p95": 20.0,
        "p99": 20.0,
        "max": 20.0,
    }
    first, second = latency["versions"]
    assert (first["version"], second["version"]) == ("acme/triage@1", "acme/triage@2")
    assert first["total_s"] == {
        "count": 10,
        "mean": 5.5,
        "p50": 5.0,
        "p90": 9.0,
        "p95": 10.0,
        "p99": 10.0,
        "max": 10.0,
    }
    assert (first["ttft_s"]["p50"], first["ttft_s"]["max"]) == (0.5, 1.0)
    assert second["ttft_s"]["count"] == 0
    assert second["ttft_s"]["p50"] is None
    assert latency["relative_error"] == 0.0


def test_latency_of_many_says_its_error(report_of: Report) -> None:
    """From the 1,001st value on."""
    assert report_of(*[job_line()] * 1_000)["latency"]["relative_error"] == 0.0
    assert report_of(*[job_line()] * 1_001)["latency"]["relative_error"] == 0.005


def test_stages(report_of: Report) -> None:
    """Means per job, and what of the total is in no stage: 1 - 0.9 and 3 - 2.9."""
    stages = report_of(job_line(), job_line(decode_s=2.5, total_s=3.0))["stages"]["all"]
    assert stages == {
        "jobs": 2,
        "queue_s": 0.1,
        "tokenize_s": 0.01,
        "verify_s": 0.02,
        "prefill_s": 0.0,
        "fork_s": 0.03,
        "suffix_prefill_s": 0.2,
        "decode_s": 1.5,
        "commit_s": 0.04,
        "other_s": pytest.approx(0.1),
        "total_s": 2.0,
    }


def test_cache(report_of: Report) -> None:
    """Three hits, two misses for two reasons, one that did not ask: 3 of 5."""
    off = {"cache_state": "off", "cache_reason": "not_asked_for", "cached_tokens": 0}
    cache = report_of(
        *[job_line()] * 3,
        job_line(**COLD),
        job_line(**{**COLD, "cache_reason": "ids_differ_at=17"}),
        job_line(version=2, **off),
    )["cache"]
    assert (cache["hits"], cache["misses"], cache["off"], cache["hit_ratio"]) == (3, 2, 1, 0.6)
    assert cache["miss_reasons"] == {"cold": 1, "ids_differ_at": 1}
    assert cache["off_reasons"] == {"not_asked_for": 1}
    assert [row["hit_ratio"] for row in cache["versions"]] == [0.6, None]


def test_tokens(report_of: Report) -> None:
    """Cached tokens are those that nobody computed again; a failed job's prompt counts too."""
    tokens = report_of(job_line(), job_line(**COLD), job_line(**FAILED))["tokens"]
    assert tokens["prompt_tokens"] == 360
    assert tokens["cached_tokens"] == 200
    assert tokens["completion_tokens"] == 20
    assert tokens["cached_share"] == round(200 / 360, 6)


def test_saved_by_the_runs_own_cold_prefills(report_of: Report) -> None:
    """Two cold prefills of 2 and 4 s, three hits that verified and forked for 0.05 s each."""
    data = report_of(
        job_line(**COLD), job_line(**{**COLD, "prefill_s": 4.0}), *[job_line()] * 3, price=7200.0
    )
    saved = data["saved"]
    assert saved["estimate"] is True
    assert saved["cached_tokens"] == 300
    assert saved["seconds"] == pytest.approx(3 * 3.0 - 3 * 0.05)
    assert saved["money"] == pytest.approx(2 * saved["seconds"])
    assert saved["tokens_without_estimate"] == 0


def test_saved_is_by_device(report_of: Report) -> None:
    """A GPU's hits are not worth a CPU's prefill."""
    saved = report_of(
        job_line(**COLD),
        job_line(device="cuda:0", **{**COLD, "prefill_s": 0.25}),
        job_line(device="cuda:0", verify_s=0.0, fork_s=0.0),
    )["saved"]
    assert saved["seconds"] == 0.25


def test_saved_by_warming_before_any_job(report_of: Report) -> None:
    """`--warm all`: no job is cold, but the worker said what the prefill took."""
    data = report_of(_warmed(), job_line(verify_s=0.0, fork_s=0.0))
    assert data["saved"]["seconds"] == 3.0
    data = report_of(_warmed(), job_line(**COLD), job_line(verify_s=0.0, fork_s=0.0))
    assert data["saved"]["seconds"] == 2.0  # the job's own line is on its own device


def test_saved_by_warming_with_long_names(report_of: Report) -> None:
    """A tenant and a template may have 64 characters each."""
    tenant, template = "a" * 64, "t" * 64
    data = report_of(
        _warmed(f"{tenant}/{template}@1"),
        job_line(tenant=tenant, template=template, verify_s=0.0, fork_s=0.0),
    )
    assert data["saved"]["seconds"] == 3.0


def test_what_is_warmed_takes_no_jobs_place(report_of: Report) -> None:
    """Workers that warm a thousand versions, and jobs of one."""
    many = [_warmed(f"acme/other-{n}@1") for n in range(2 * MAX_VERSIONS)]
    data = report_of(*many, _warmed(), job_line(verify_s=0.0, fork_s=0.0))
    assert [row["version"] for row in data["saved"]["versions"]] == ["acme/triage@1"]
    assert data["saved"]["seconds"] == 3.0


def test_means_of_any_number_take_no_memory() -> None:
    """As hostile lines would have it: each version on many devices, and each prefill another."""
    totals = Totals(Wanted())
    tracemalloc.start()
    try:
        for number in range(13_500):
            prefill_s = 1.0123 ** (number % 1500) * 1e-6
            fields: dict[str, Any] = {**COLD, "prefill_s": prefill_s, "device": f"d{number % 9}"}
            cold = read_line(job_line(**fields))
            warmed = read_line(_warmed(prefill_s=prefill_s))
            assert cold is not None
            assert warmed is not None
            totals.add(cold)
            totals.add(warmed)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 200_000


def test_saved_without_a_cold_prefill_is_unknown(report_of: Report) -> None:
    """Not 0: the prefix came from before the log, or from disk."""
    saved = report_of(job_line())["saved"]
    assert (saved["seconds"], saved["money"], saved["cached_tokens"]) == (None, None, 100)
    assert saved["tokens_without_estimate"] == 100
    saved = report_of(job_line(), _warmed("acme/other@1"))["saved"]
    assert saved["seconds"] is None


def test_cost(report_of: Report) -> None:
    """(0.03 + 0.2 + 0.5) / 4 a job, a cold one 2 s more; versions of a template together."""
    data = report_of(
        *[job_line()] * 2,
        job_line(version=2, **COLD),
        job_line(template="other", batch_size=1),
        price=36.0,
    )
    first, second = data["cost"]["templates"]
    assert first["template"] == "acme/triage"
    assert first["device_s"] == pytest.approx(3 * 0.1825 + 2.0)
    assert first["money"] == pytest.approx(first["device_s"] / 100)
    assert first["money_per_1000_jobs"] == pytest.approx(1000 * first["money"] / 3, abs=1e-5)
    assert (second["template"], second["device_s"]) == ("acme/other", 0.73)
    assert data["cost"]["device_s"] == pytest.approx(first["device_s"] + 0.73)
    assert data["cost"]["engine_s"] == pytest.approx(4 * 0.73 + 2.0)
    assert report_of(job_line())["cost"]["money"] is None


def test_batches_attempts_and_errors(report_of: Report) -> None:
    """In the order of numbers; a job at its third attempt had two beyond the first."""
    data = report_of(
        job_line(batch_size=16),
        job_line(batch_size=2, attempt=3),
        job_line(batch_size=2),
        job_line(attempt=2, **FAILED),
        *[_tried_later("nan")] * 2,
        _tried_later("device_lost"),
    )
    assert list(data["batch_sizes"].items()) == [("2", 2), ("16", 1)]
    assert data["attempts"] == {
        "by_number": {"1": 2, "2": 1, "3": 1},
        "beyond_the_first": 3,
        "tried_later": {"nan": 2, "device_lost": 1},
    }


def test_over_time(report_of: Report) -> None:
    """Per second; the p95 is of what succeeded in it."""
    over = report_of(
        job_line(timestamp=at(0.2), total_s=1.0),
        job_line(timestamp=at(0.9), total_s=3.0),
        job_line(timestamp=at(2.0), **{**FAILED, "total_s": 9.0}),
    )["over_time"]
    assert over["width_s"] == 1
    assert [
        (span["begin"][11:19], span["jobs"], span["failed"], span["p95_total_s"])
        for span in over["spans"]
    ] == [("02:00:00", 2, 0, 3.0), ("02:00:01", 0, 0, None), ("02:00:02", 1, 1, None)]
    assert over["spans"][0]["completion_tokens_per_s"] == 20.0


def test_filters(report_of: Report) -> None:
    """Each alone; the end is not in it, and a job without a time is in no span."""
    lines = (
        job_line(timestamp=at(0)),
        job_line(timestamp=at(10), tenant="globex"),
        job_line(timestamp=at(20), template="other", version=2),
        job_line(leave_out=["timestamp"]),
        _tried_later("nan"),
        _tried_later("nan", "globex." + "0" * 32),
    )

    def jobs(**wanted: Any) -> int:
        count: int = report_of(*lines, **wanted)["summary"]["jobs"]
        return count

    t0 = 1_796_004_000.0
    assert jobs() == 4
    assert jobs(since=t0 + 10) == 2
    assert jobs(until=t0 + 10) == 1
    assert jobs(since=t0, until=t0 + 20) == 2
    assert jobs(tenant="acme") == 3
    assert jobs(template="acme/*") == 3
    assert jobs(template="*/other@2") == 1
    assert report_of(*lines, tenant="globex")["attempts"]["tried_later"] == {"nan": 1}
    assert report_of(*lines, template="acme/*")["attempts"]["tried_later"] is None
    assert report_of(*lines, tenant="acme")["input"]["not_wanted"] == 1


def test_filters_that_leave_nothing(report_of: Report) -> None:
    """The error says that there were jobs."""
    with pytest.raises(PrefillqError, match="2 jobs, all of them left out"):
        report_of(job_line(), job_line(), tenant="globex")


def test_jobs_without_a_time(report_of: Report) -> None:
    """Are in everything but what is over time."""
    data = report_of(job_line(leave_out=["timestamp"]), job_line(timestamp=at(0)))
    assert data["input"]["without_time"] == 1
    assert (data["summary"]["jobs"], data["summary"]["jobs_per_s"]) == (2, 1.0)
    data = report_of(job_line(leave_out=["timestamp"]))
    assert (data["summary"]["span_s"], data["summary"]["began"]) == (0.0, None)
    assert data["summary"]["jobs_per_s"] is None
    assert data["over_time"]["spans"] == []


def test_bad_values_touch_no_number(report_of: Report) -> None:
    """One NaN among ten good jobs changes nothing but its own job's part."""
    good = report_of(*[job_line()] * 10)
    bad = report_of(
        *[job_line()] * 10,
        job_line(total_s=float("nan"), decode_s=-1.0, prompt_tokens=-5, batch_size=1e300),
    )
    assert bad["input"]["bad_values"] == 5  # cached tokens without a prompt are none either
    assert bad["latency"]["all"]["total_s"] == good["latency"]["all"]["total_s"]
    assert bad["stages"]["all"] == good["stages"]["all"]
    assert bad["tokens"]["prompt_tokens"] == good["tokens"]["prompt_tokens"]
    assert bad["batch_sizes"] == good["batch_sizes"]


def test_a_million_names_are_kept_together(report_of: Report) -> None:
    """More versions, workers, errors than anybody has: the first stay apart, no job is lost."""
    lines = (
        job_line(template=f"t{n}", worker=f"w{n}", cache_reason=f"r{n}", cache_state="miss")
        for n in range(500)
    )
    errors = (job_line(status="failed", error=f"e{n}") for n in range(100))
    data = report_of(*lines, *errors)
    rows = data["latency"]["versions"]
    assert len(rows) == 201
    assert rows[-1]["version"] == "(others)"
    assert sum(row["total_s"]["count"] for row in rows) == 500
    assert len(data["workers"]) == 101
    assert sum(row["jobs"] for row in data["workers"]) == 600
    assert sum(data["cache"]["miss_reasons"].values()) == 500
    assert len(data["cache"]["miss_reasons"]) == 51
    assert data["errors"]["(others)"] == 50
    assert data["cost"]["jobs"] == sum(row["jobs"] for row in data["cost"]["templates"])


def test_what_is_together_has_no_estimate(report_of: Report) -> None:
    """Versions whose prefixes differ: one's prefill says nothing of another's."""
    lines = [job_line(template=f"t{n}", **COLD) for n in range(201)]
    saved = report_of(*lines, job_line(template="t201"))["saved"]
    assert (saved["seconds"], saved["tokens_without_estimate"]) == (None, 100)
