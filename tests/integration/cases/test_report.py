"""`prefillq report` on what workers really logged."""

from __future__ import annotations

from typing import Any

import pytest

from contract.types import CacheState, JobState
from producer.client import Producer
from report.collect import collect
from report.page import make_page
from report.summary import summarise
from report.totals import Wanted
from tests.support.fakes import StartFake
from tests.support.waiting import until


def test_report_agrees_with_the_results(
    producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Two workers' logs together say what the jobs' own results say."""
    publish_template("notes")
    publish_template("mail", tenant="globex")
    workers = [
        start_fake("--fail-on", "POISON", "--prefill-s", "0.05", "--seconds-per-token", "0.005")
        for _ in range(2)
    ]
    handles = [producer.submit("acme/notes", {"note": f"n{n}"}) for n in range(12)]
    handles += [producer.submit("globex/mail", {"note": f"m{n}"}) for n in range(5)]
    handles.append(producer.submit("acme/notes", {"note": "POISON"}))
    results = [handle.outcome(timeout=30) for handle in handles]
    until(lambda: sum(len(w.lines("job_finished")) for w in workers) == len(handles))
    totals, reading = collect([str(worker.log_path) for worker in workers], Wanted())
    data = summarise(totals, reading)

    assert data["summary"]["by_status"] == {
        "succeeded": 17,
        "failed": 1,
        "cancelled": 0,
        "expired": 0,
    }
    [failed] = [result for result in results if result.status is JobState.FAILED]
    assert data["errors"] == {failed.error.code: 1}
    good = [result for result in results if result.status is JobState.SUCCEEDED]
    longest = max(result.timings.queue_s for result in good)
    assert data["latency"]["all"]["queue_s"]["max"] == pytest.approx(longest, abs=1e-6)
    for kind in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        assert data["tokens"][kind] == sum(getattr(result.usage, kind) for result in results)
    hits = sum(result.cache.state is CacheState.HIT for result in results)
    assert data["cache"]["hits"] == hits
    assert data["saved"]["seconds"] is not None
    assert [row["version"] for row in data["latency"]["versions"]] == [
        "acme/notes@1",
        "globex/mail@1",
    ]
    assert data["input"]["unreadable"] == data["input"]["bad_values"] == 0
    assert make_page(data).endswith("</html>\n")
