"""The demo's verdict on made-up results, its choice of Redis, and its end by SIGTERM."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner

from contract.settings import Settings
from contract.types import CacheInfo, CacheState, JobState, Result, Timings, Usage
from local import demo as demo_module
from local.canary import CanaryOutcome
from local.cli import demo
from local.demo import MIN_PARITY_JOBS, DemoOutcome
from tests.support.published import make_version

VERSION = make_version()
PREFIX = len(VERSION.compiled.prefix_ids)


def hit(number: int) -> Result:
    return Result(
        job_id=f"acme.{number}",
        ref=VERSION.ref,
        status=JobState.SUCCEEDED,
        token_ids=(number, 2),
        usage=Usage(prompt_tokens=9, cached_tokens=PREFIX),
        cache=CacheInfo(state=CacheState.HIT),
        timings=Timings(queue_s=1.0, total_s=2.0),
    )


def twin(job: Result) -> Result:
    return replace(
        job,
        job_id=f"{job.job_id}-twin",
        usage=Usage(prompt_tokens=9),
        cache=CacheInfo(state=CacheState.OFF, reason="not_asked_for"),
        timings=Timings(queue_s=1.0, total_s=4.0),
    )


CANARY = CanaryOutcome(
    template="acme/reply-draft",
    stable=1,
    canary=2,
    weight=5000,
    findings=(),
    during={"customer-1": 1, "customer-2": 2},
    after={"customer-1": 1, "customer-2": 1},
    journal=("abort: 50 % -> 0 %",),
)
JOBS = tuple(hit(number) for number in range(MIN_PARITY_JOBS))


def outcome(*, jobs: tuple[Result, ...] = JOBS, **changed: Any) -> DemoOutcome:
    given: dict[str, Any] = {
        "results": jobs,
        "uncached": {job.job_id: twin(job) for job in jobs},
        "versions": (VERSION,),
        "labels": {"acme/triage": {"production": 1}},
        "worker": {"cache": {"hits": len(jobs)}},
        "canary": CANARY,
        "first_result_s": 1.0,
        "elapsed_s": 2.0,
        **changed,
    }
    return DemoOutcome(**given)


def first_is(**changed: Any) -> tuple[Result, ...]:
    return (replace(JOBS[0], **changed), *JOBS[1:])


COLD = {
    "cache": CacheInfo(state=CacheState.MISS, reason="cold"),
    "usage": Usage(prompt_tokens=9),
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"during": {"customer-1": 1, "customer-2": 1}}, "a canary at 50 % split its jobs so"),
        (
            {"after": {"customer-1": 1, "customer-2": 2}},
            "after the rollback jobs went to",
        ),
    ],
)
def test_canary_without_a_share_or_with_one_after_the_rollback_is_a_problem(
    changed: dict[str, Any], said: str
) -> None:
    """All else may be as promised."""
    problem = outcome(canary=replace(CANARY, **changed)).problem
    assert problem is not None
    assert re.match(said, problem)


def test_all_as_promised_is_no_problem() -> None:
    """Every job a hit, every twin equal; the twins took three times as long."""
    assert outcome().problem is None
    assert outcome().slowdown == pytest.approx(3.0)


def test_the_job_that_fills_the_cache_is_no_problem() -> None:
    """A cold miss is what a first job is."""
    assert outcome(jobs=first_is(**COLD)).problem is None


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (outcome(jobs=first_is(status=JobState.FAILED)), "job acme.0 is failed"),
        (outcome(jobs=first_is(usage=Usage(cached_tokens=PREFIX + 1))), f"prefix of {PREFIX}"),
        (
            outcome(jobs=first_is(cache=CacheInfo(state=CacheState.MISS, reason="over_budget"))),
            "did not reuse its prefix: miss, over_budget",
        ),
        (
            outcome(jobs=first_is(cache=CacheInfo(state=CacheState.OFF, reason="parity_differs"))),
            "did not reuse its prefix: off, parity_differs",
        ),
        (outcome(jobs=tuple(replace(job, **COLD) for job in JOBS)), "no job reused"),
        (outcome(jobs=()), "no job reused"),
        (outcome(uncached={}), "0 jobs also ran without the cache"),
        (outcome(uncached={j.job_id: twin(j) for j in JOBS[1:]}), f"{MIN_PARITY_JOBS - 1} jobs"),
        (outcome(uncached={j.job_id: j for j in JOBS}), "was to run uncached and was a hit"),
        (
            outcome(uncached={j.job_id: replace(twin(j), token_ids=(0, 2)) for j in JOBS}),
            f"1 of {MIN_PARITY_JOBS} cached answers",
        ),
        (outcome(worker={"cache": {"hits": 1}}), f"counted 1 cache hits where {MIN_PARITY_JOBS}"),
    ],
)
def test_what_was_promised_and_did_not_hold_is_named(found: DemoOutcome, says: str) -> None:
    """Each broken promise alone is a problem."""
    assert says in (found.problem or "no problem")


def test_without_twins_there_is_no_slowdown() -> None:
    """A median of nothing, and a job that never ran, are no errors on the way to the problem."""
    assert outcome(uncached={}).slowdown is None
    assert outcome(jobs=tuple(replace(job, timings=Timings()) for job in JOBS)).slowdown is None


class Reporting:
    """A worker whose report catches up with its work at the given look, if ever."""

    def __init__(self, *, up_to_date_at: float, hits: int) -> None:
        self._at, self._hits, self.looks = up_to_date_at, hits, 0

    def wait_ready(self) -> dict[str, Any]:
        self.looks += 1
        return {"cache": {"hits": self._hits if self.looks >= self._at else 0}}


def test_a_stale_report_of_the_worker_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counters cover the jobs shown; when they never do, the last report says so."""
    late = Reporting(up_to_date_at=3, hits=len(JOBS))
    assert demo_module._settled(late, [*JOBS])["cache"]["hits"] == len(JOBS)  # type: ignore[arg-type]
    assert late.looks == 3
    monkeypatch.setattr(demo_module, "SETTLE_S", 0.3)
    never = Reporting(up_to_date_at=float("inf"), hits=len(JOBS))
    assert demo_module._settled(never, [*JOBS])["cache"]["hits"] == 0  # type: ignore[arg-type]


class Embedded:
    url = "redis://127.0.0.1:7/0"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("binary", "by_option", "by_variable", "used"),
    [
        (True, True, False, Embedded.url),
        (True, False, False, Embedded.url),
        (False, True, False, "redis://given/1"),
        (False, False, True, "redis://given/1"),
        # Where neither is, starting the embedded one raises and says what to do.
        (False, False, False, Embedded.url),
    ],
)
def test_the_redis_given_serves_where_none_can_be_started(
    monkeypatch: pytest.MonkeyPatch, binary: bool, by_option: bool, by_variable: bool, used: str
) -> None:
    """By option or by variable alike; the default address is not one that was given."""
    found = Path("redis-server") if binary else None
    monkeypatch.setattr(demo_module, "find_redis_binary", lambda: found)
    monkeypatch.setattr(demo_module, "EmbeddedRedis", Embedded)
    monkeypatch.delenv("PREFILLQ_REDIS_URL", raising=False)
    if by_variable:
        monkeypatch.setenv("PREFILLQ_REDIS_URL", "redis://given/1")
    settings = Settings.load(redis_url="redis://given/1" if by_option else None)
    with demo_module._redis(settings, lambda _: None) as chosen:
        assert chosen.redis_url == used


def test_sigterm_unwinds_the_demo_and_the_old_handler_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the demo opened is closed, the exit code is the shell's 143."""
    closed = []

    def run(*_: object, **__: object) -> DemoOutcome:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            closed.append(True)
        return outcome()

    monkeypatch.setattr(demo_module, "run_demo", run)
    before = signal.getsignal(signal.SIGTERM)
    assert CliRunner().invoke(demo).exit_code == 143
    assert closed == [True]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_problem_is_told_and_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with no twin at all the table comes first, then the sentence, then exit code 1."""
    monkeypatch.setattr(demo_module, "run_demo", lambda *_, **__: outcome(uncached={}))
    done = CliRunner().invoke(demo)
    assert done.exit_code == 1
    assert "acme/triage@1" in done.stdout
    assert done.stderr.startswith("prefillq: 0 jobs also ran without the cache")
