"""Traces: workers' own lines, lines of one's own, and what is measured of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scale.trace import NoTrace, Trace, read_trace
from scale.workload import workload
from tests.support.job_lines import T0, at, job_line


def own(**fields: Any) -> bytes:
    return f"{json.dumps(fields)}\n".encode()


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read(*lines: bytes) -> Trace:
        path = tmp_path / "trace.jsonl"
        path.write_bytes(b"".join(lines))
        return read_trace([str(path)])

    return read


def test_a_logged_job(read: Any) -> None:
    """It came `total_s` before its line, waited `queue_s`, and the rest is the worker's."""
    trace = read(job_line(timestamp=at(10), total_s=3.0, queue_s=1.0, batch_size=4))
    [job] = trace.jobs
    assert (job.at, job.version, job.tenant) == (T0 + 7, "acme/triage@1", "acme")
    assert (job.service_s, job.batch_size) == (2.0, 4)
    assert trace.waits_s == [1.0]


def test_jobs_are_sorted_by_when_they_came(read: Any) -> None:
    """Lines are in the order of ends, of several workers."""
    trace = read(job_line(timestamp=at(10), total_s=1.0), job_line(timestamp=at(11), total_s=9.0))
    assert [job.at for job in trace.jobs] == [T0 + 2, T0 + 9]


def test_cold_jobs_measure_the_prefix(read: Any) -> None:
    """What they took beyond warm ones, the check of a first warming included."""
    warm = [job_line(timestamp=at(n), total_s=1.1, queue_s=0.1) for n in range(4)]
    cold = job_line(
        timestamp=at(9),
        total_s=5.1,
        queue_s=0.1,
        prefill_s=2.5,
        cache_state="miss",
        cache_reason="cold",
    )
    trace = read(*warm, cold)
    assert trace.prefix_s == {"acme/triage@1": pytest.approx(4.0)}
    assert [job.service_s for job in trace.jobs] == [pytest.approx(1.0)] * 5
    load = workload(trace, seed=1)
    assert {round(work.alone_s, 6) for work in load.works} == {1.0}


def test_prefixes_warmed_before_any_job(read: Any) -> None:
    """`version_warmed` lines measure it where no job was cold."""
    warmed = own(event="version_warmed", version="acme/triage@1", prefill_s=1.5)
    assert read(job_line(), warmed).prefix_s == {"acme/triage@1": 1.5}


def test_the_check_of_a_first_time_is_part_of_the_load(read: Any) -> None:
    """And such a line is taken before what cold jobs took, who may have waited for others."""
    line = {"event": "version_warmed", "version": "acme/triage@1", "prefill_s": 1.5}
    cold = job_line(total_s=9.0, prefill_s=1.5, cache_state="miss", cache_reason="cold")
    assert read(cold, own(**line, parity_s=0.5)).prefix_s == {"acme/triage@1": 2.0}
    assert read(own(**line, parity_s="long"), job_line()).prefix_s == {"acme/triage@1": 1.5}


def test_jobs_that_waited_for_a_prefix_are_told_apart(read: Any) -> None:
    """Those that came to the worker while it loaded: they took what their stages say."""

    def job(claimed: float, ended: float, own_s: float, **more: Any) -> bytes:
        stages = ("tokenize_s", "verify_s", "fork_s", "suffix_prefill_s", "commit_s")
        fields: dict[str, Any] = dict.fromkeys(stages, 0.0) | more
        took_s = ended - claimed
        return job_line(timestamp=at(ended), total_s=took_s, queue_s=0.0, decode_s=own_s, **fields)

    cold = {"prefill_s": 3.0, "cache_state": "miss", "cache_reason": "cold"}
    trace = read(
        job(0, 5.1, 1.0, **cold),
        job(1, 4.6, 0.5),  # came to it meanwhile
        job(2, 3.6, 1.5, worker="host-2"),
        job(2, 3.6, 1.5, version=2),
        job(6, 7.6, 1.5),
    )
    # Beside their stages the other three take 0.1 s; the load took all of 5.1 s but for 1.1.
    found = [job.service_s for job in trace.jobs]
    assert found == [pytest.approx(s, abs=1e-5) for s in (1.1, 0.6, 1.6, 1.6, 1.6)]
    assert trace.prefix_s == {"acme/triage@1": pytest.approx(4.0, abs=1e-5)}


def test_stages_that_are_not_there_tell_nothing(read: Any) -> None:
    """A cold job without them takes the time of another."""
    stages = ("tokenize_s", "verify_s", "fork_s", "suffix_prefill_s", "decode_s", "commit_s")
    trace = read(job_line(timestamp=at(9)), job_line(cache_reason="cold", leave_out=stages))
    assert [job.service_s for job in trace.jobs] == [None, pytest.approx(0.9)]
    assert trace.prefix_s == {"acme/triage@1": 0.0}


def test_cold_starts_are_read(read: Any) -> None:
    """Of each worker, also behind the name that Docker puts before a line."""
    ready = own(event="worker_ready", seconds=3.25)
    trace = read(ready, job_line(), b"worker-1  | " + own(event="worker_ready", seconds=4))
    assert trace.cold_starts_s == [3.25, 4.0]
    strange = [own(event="worker_ready", seconds=s) for s in (None, "1", -1, 10**400, True)]
    trace = read(job_line(), own(event="worker_ready"), *strange)
    assert (trace.cold_starts_s, trace.left_out) == ([], 0)


def test_lines_of_ones_own(read: Any) -> None:
    """With defaults for what they leave out."""
    trace = read(
        own(at=5, template="acme/notes"),
        own(at=1.5, template="globex/mail", version=3, service_s=0.5, batch_size=2, prefix_s=4),
    )
    first, second = trace.jobs
    assert (first.at, first.version, first.service_s, first.batch_size) == (
        1.5,
        "globex/mail@3",
        0.5,
        2,
    )
    assert (second.version, second.service_s, second.batch_size) == ("acme/notes@1", None, 1)
    assert trace.prefix_s == {"globex/mail@3": 4.0}


@pytest.mark.parametrize(
    "line",
    [
        own(at="soon", template="acme/notes"),
        own(at=1, template="notes"),
        own(at=1, template="acme/notes", version="1"),
        own(at=1, template="acme/notes", service_s=-1),
        own(at=1, template="acme/notes", service_s="1"),
        own(at=1, template="acme/notes", batch_size=0),
        b'{"at": NaN, "template": "acme/notes"}\n',
        own(at=10**400, template="acme/notes"),
        own(at=1, template="acme/notes", service_s=10**400),
        own(at=1, template="acme/notes", batch_size=10**400),
        job_line(batch_size=0),
        job_line(leave_out=["queue_s"]),
        job_line(leave_out=["timestamp"]),
        job_line()[:-30] + b"\n",
    ],
    ids=range(14),
)
def test_what_cannot_be_used_is_counted(read: Any, line: bytes) -> None:
    """And the rest is read."""
    trace = read(line, job_line())
    assert (len(trace.jobs), trace.left_out) == (1, 1)


def test_talk_is_passed_over(read: Any) -> None:
    """Other lines of a log are none of a trace."""
    trace = read(b"Loading weights\n", own(event="worker_ready"), b"[1]\n", b"7\n", job_line())
    assert (len(trace.jobs), trace.left_out) == (1, 0)


def test_no_job_is_an_error(read: Any) -> None:
    """With what to do."""
    with pytest.raises(NoTrace, match="prefillq worker start"):
        read(b"hello\n")


def test_times_that_are_missing_are_drawn(read: Any) -> None:
    """From the same version's, by the seed; else from all; else there must be --service-time."""
    lines = [own(at=n, template="acme/a", service_s=1.0 + n) for n in range(20)]
    lines += [own(at=30 + n, template="acme/a") for n in range(20)]
    lines += [own(at=60, template="acme/b")]
    trace = read(*lines)

    def drawn(seed: int, **more: Any) -> list[float]:
        return [work.alone_s for work in workload(trace, seed=seed, **more).works][20:]

    assert drawn(1) == drawn(1) != drawn(2)
    assert set(drawn(1)) <= {1.0 + n for n in range(20)}
    assert drawn(1, service_s=99.0)[-1] == 99.0
    assert 99.0 not in drawn(1, service_s=99.0)[:-1]
    bare = read(own(at=1, template="acme/a"))
    with pytest.raises(NoTrace, match="--service-time"):
        workload(bare, seed=1)
    assert workload(bare, seed=1, service_s=2.0).works[0].alone_s == 2.0


@pytest.mark.parametrize(
    ("seconds", "slowdown"),
    [
        (lambda batch: 1.0 + 0.25 * (batch - 1), 0.25),
        (lambda _: 1.0, 0.0),
        (lambda batch: 2.0 / batch, 0.0),
        (lambda batch: 1.0 * batch, 1.0),
        (lambda batch: 0.1 + 3.0 * (batch - 1), 1.0),
    ],
    ids=["quarter", "free", "faster", "no gain", "worse"],
)
def test_slowdown_is_measured(read: Any, seconds: Any, slowdown: float) -> None:
    """By the jobs' batch sizes; between a batch that is free and one that saves nothing."""
    lines = [
        own(
            at=n,
            template=f"acme/t{n % 2}",
            service_s=seconds(batch) * (1 + n % 2),
            batch_size=batch,
        )
        for n, batch in enumerate([1, 1, 2, 2, 4, 4, 8, 8])
    ]
    load = workload(read(*lines), seed=1)
    assert load.slowdown == pytest.approx(slowdown)
    assert load.slots == 8
    if slowdown == 0.25:
        assert {round(work.alone_s, 6) for work in load.works} == {1.0, 2.0}


def test_one_batch_size_tells_nothing(read: Any) -> None:
    """No slope through one point."""
    lines = [own(at=n, template="acme/a", service_s=1.0, batch_size=4) for n in range(5)]
    assert workload(read(*lines), seed=1).slowdown == 0.0


def stay(worker: str, came: float, claimed: float, ended: float, **more: Any) -> bytes:
    """A job's time on a worker."""
    return job_line(
        worker=worker,
        timestamp=at(ended),
        total_s=ended - came,
        queue_s=claimed - came,
        **more,
    )


def test_turnaround_is_measured_where_jobs_waited(read: Any) -> None:
    """From one job's end to the claim of another that had come before it, on the same worker."""
    trace = read(
        stay("a", 0, 0, 2.0),
        stay("a", 1, 2.25, 4.0),
        stay("a", 1, 4.25, 5.0),
        stay("a", 9, 9, 10.0),  # nobody waited: the slot was idle
        stay("b", 0, 0, 1.0),
        stay("b", 0.5, 1.25, 3.0),
        stay("c", 0, 0, 1.0),
        stay("c", 0.5, 99, 100.0),  # the worker was cut off
        stay("d", 0, 0, 1.0),
        stay("d", 0.5, 1.75, 3.0),
    )
    turnaround_s = workload(trace, seed=1).turnaround_s
    assert turnaround_s == pytest.approx((3 * 0.25 + 0.75) / 4, abs=1e-6)
    nobody_waited = read(stay("a", 0, 0, 1.0), stay("a", 2, 2, 3.0))
    assert workload(nobody_waited, seed=1).turnaround_s == 0.0


def test_a_slow_turnaround_on_a_busy_machine_counts(read: Any) -> None:
    """Half a second is slow, and lost all the same, where the others take a hundredth."""
    gaps = [0.01, 0.01, 0.01, 0.5]
    lines, ended = [stay("a", 0, 0, 1.0)], 1.0
    for gap in gaps:
        lines.append(stay("a", 0, ended + gap, ended + gap + 1))
        ended += gap + 1
    turnaround_s = workload(read(*lines), seed=1).turnaround_s
    assert turnaround_s == pytest.approx(sum(gaps) / 4, abs=1e-5)


def test_chosen_jobs_are_measured_beside_all_others(read: Any) -> None:
    """A slot that another template's job had was neither idle nor turning."""
    trace = read(
        stay("a", 0, 0, 1.0),
        stay("a", 0.1, 1.01, 9.0, template="other"),
        stay("a", 0.2, 9.01, 10.0),
    )
    load = workload(trace, seed=1, wanted=lambda version: version == "acme/triage@1")
    assert [work.at for work in load.works] == [0.0, pytest.approx(0.2, abs=1e-5)]
    assert load.turnaround_s == pytest.approx(0.01, abs=1e-5)
    assert set(load.prefix_s) == {"acme/triage@1"}
    with pytest.raises(NoTrace):
        workload(trace, seed=1, wanted=lambda _version: False)


def test_pickup_is_measured_where_a_slot_was_free(read: Any) -> None:
    """From coming to claim, of jobs that did not get another's slot, and of no worker's start."""
    trace = read(
        stay("a", 0, 3.0, 9.0),  # the worker was started
        stay("a", 2.5, 3.0, 9.0),  # and had not been for long
        stay("a", 3, 3.01, 5.0),
        stay("a", 4, 4.03, 7.0),
        stay("a", 4.5, 5.02, 6.0),  # got the third one's slot
        stay("b", 2.1, 3.1, 20.0),
        stay("b", 4, 4.02, 20.0),
    )
    assert workload(trace, seed=1).pickup_s == pytest.approx(0.02, abs=1e-5)
    assert workload(read(own(at=1, template="acme/a", service_s=1)), seed=1).pickup_s == 0.0
