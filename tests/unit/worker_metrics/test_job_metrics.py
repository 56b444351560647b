"""What a finished job adds to the metrics, under which labels, and how many series there can be."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

import pytest
from prometheus_client import CollectorRegistry, disable_created_metrics

from contract.ids import new_job_id
from contract.job_store import Refusal
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
from tests.support.scraped import Scraped
from worker.metrics import jobs
from worker.metrics.buckets import COMPUTE_S, FROM_SUBMIT_S
from worker.metrics.jobs import UNKNOWN, JobMetrics
from worker.watcher import AttemptEnd

disable_created_metrics()  # type: ignore[no-untyped-call]  # as the exporter does

MODEL = "tiny"


class Rig:
    """A registry, what counts into it, and a clock."""

    def __init__(self, *, by_tenant: bool = False) -> None:
        self.now = 1000.0
        self.registry = CollectorRegistry()
        self.metrics = JobMetrics(
            self.registry, model_name=MODEL, by_tenant=by_tenant, clock=lambda: self.now
        )

    def finish(self, *names: str, **changes: Any) -> None:
        """Count a finished job of each `tenant/template@version`."""
        for name in names:
            self.metrics.job_finished(finished(name, **changes))

    def scrape(self) -> Scraped:
        return Scraped.of(self.registry)

    def versions(self) -> set[tuple[str, str]]:
        """Templates and versions that have series."""
        return {
            (labels["template"], labels["version"])
            for name, labels, _ in self.scrape().samples_of_ours()
            if name == "prefillq_prompt_tokens_total"
        }


def finished(name: str = "acme/notes@3", **changes: Any) -> Result:
    """A result with a different number in each place."""
    tenant, _, rest = name.partition("/")
    template, _, version = rest.partition("@")
    result = Result(
        job_id=new_job_id(tenant),
        ref=VersionRef(tenant=tenant, template=template, version=int(version), digest="d" * 64),
        status=JobState.SUCCEEDED,
        text="a secret answer",
        token_ids=(1, 2, 3, 4, 5),
        finish_reason="stop",
        usage=Usage(prompt_tokens=700, completion_tokens=5, cached_tokens=671),
        cache=CacheInfo(state=CacheState.HIT),
        timings=Timings(
            queue_s=0.7,
            tokenize_s=0.001,
            verify_s=0.002,
            prefill_s=3.25,
            fork_s=0.004,
            suffix_prefill_s=0.5,
            ttft_s=1.75,
            decode_s=0.0625,
            commit_s=0.003,
            total_s=2.5,
        ),
        model=MODEL,
        attempt=1,
        batch_size=4,
    )
    return replace(result, **changes)


def test_a_finished_job_moves_each_metric_by_what_its_result_says() -> None:
    """And no other series by anything."""
    rig = Rig()
    rig.finish("acme/notes@3")
    before = rig.scrape()
    rig.finish("acme/notes@3")
    grown = rig.scrape().difference(before)

    labels = (("model_name", MODEL), ("template", "notes"), ("version", "3"))
    plain = {name: value for (name, found), value in grown.items() if found == labels}
    assert plain == {
        "prefillq_prompt_tokens_total": 700,
        "prefillq_generation_tokens_total": 5,
        "prefillq_prefix_cache_queries_total": 700,
        "prefillq_prefix_cache_hits_total": 671,
        **_histogram("time_to_first_token", 1.75),
        **_histogram("request_queue_time", 0.7),
        **_histogram("request_prefill_time", 3.75),
        **_histogram("request_decode_time", 0.0625),
        **_histogram("e2e_request_latency", 2.5),
    }
    others = {key for key in grown if key[1] != labels and not key[0].endswith("_bucket")}
    ended = tuple(sorted((*labels, ("status", "succeeded"))))
    assert others == {("prefillq_jobs_total", ended)}
    assert grown["prefillq_jobs_total", ended] == 1


def _histogram(name: str, seconds: float) -> dict[str, float]:
    return {f"prefillq_{name}_seconds_sum": seconds, f"prefillq_{name}_seconds_count": 1}


@pytest.mark.parametrize(
    ("name", "seconds", "bounds"),
    [
        ("time_to_first_token", 1.75, FROM_SUBMIT_S),
        ("request_queue_time", 0.7, FROM_SUBMIT_S),
        ("request_prefill_time", 3.75, COMPUTE_S),
        ("request_decode_time", 0.0625, COMPUTE_S),
        ("e2e_request_latency", 2.5, FROM_SUBMIT_S),
    ],
)
def test_buckets_hold_what_is_at_most_their_bound(
    name: str, seconds: float, bounds: tuple[float, ...]
) -> None:
    """Cumulative, from the first bound that is not below the time on."""
    rig = Rig()
    rig.finish("acme/notes@3")
    found = {
        float(labels["le"]): value
        for sample, labels, value in rig.scrape().samples_of_ours()
        if sample == f"prefillq_{name}_seconds_bucket"
    }
    assert found == {bound: float(seconds <= bound) for bound in (*bounds, float("inf"))}


def test_bounds_keep_a_quantile_within_a_small_factor() -> None:
    """Between a millisecond and ten seconds neighbours are at most 2.5 apart; then up to 6."""
    for bounds in (COMPUTE_S, FROM_SUBMIT_S):
        for low, high in pairwise(bounds):
            assert high / low <= (2.5 if high <= 10 else 6.0), (low, high)


@pytest.mark.parametrize("status", [state for state in JobState if state.ended])
def test_every_end_is_counted_under_its_status(status: JobState) -> None:
    """All four are there from the first job on, so that the first failure is an increase."""
    rig = Rig()
    rig.finish("acme/notes@3", status=status)
    page = rig.scrape()
    counts = {end: page("jobs_total", status=end) for end in page.values_of("status")}
    assert counts == {str(end): float(end is status) for end in JobState if end.ended}


@pytest.mark.parametrize(
    ("state", "queries", "hits"),
    [(CacheState.HIT, 700, 671), (CacheState.MISS, 700, 0), (CacheState.OFF, 0, 0)],
)
def test_a_cache_that_was_not_asked_has_no_queries(
    state: CacheState, queries: int, hits: int
) -> None:
    """A job without the cache, by wish or for want of a prefix, does not lower the hit ratio."""
    rig = Rig()
    usage = Usage(prompt_tokens=700, completion_tokens=5, cached_tokens=hits)
    rig.finish("acme/notes@3", cache=CacheInfo(state=state), usage=usage)
    page = rig.scrape()
    assert page("prefix_cache_queries_total") == queries
    assert page("prefix_cache_hits_total") == hits
    assert page("prompt_tokens_total") == 700


def test_a_job_without_an_answer_has_no_times_of_one() -> None:
    """It waited and ended, but computed nothing and had no first token."""
    rig = Rig()
    rig.finish("acme/notes@3", status=JobState.FAILED, batch_size=0, token_ids=())
    page = rig.scrape()
    counts = {
        name: page(f"{name}_seconds_count")
        for name in (
            *("time_to_first_token", "request_prefill_time", "request_decode_time"),
            *("request_queue_time", "e2e_request_latency"),
        )
    }
    assert list(counts.values()) == [0, 0, 0, 1, 1]


def test_labels_are_model_template_version() -> None:
    """And those alone; no id, text or reason made up by a job."""
    rig = Rig()
    rig.finish("acme/notes@3", error=JobError(code="x", message="a secret message"))
    page = rig.scrape()
    assert page.labels_of("prompt_tokens_total") == {("model_name", "template", "version")}
    assert page.labels_of("e2e_request_latency_seconds_count") == {
        ("model_name", "template", "version")
    }
    assert page.labels_of("jobs_total") == {("model_name", "status", "template", "version")}
    assert "secret" not in page.page
    assert "acme" not in page.page


def test_without_the_option_tenants_are_neither_named_nor_told_apart() -> None:
    """Templates of one name are one."""
    rig = Rig()
    rig.finish("acme/notes@1", "globex/notes@1", "globex/notes@1")
    page = rig.scrape()
    assert page("jobs_total", template="notes", version="1", status="succeeded") == 3
    assert rig.versions() == {("notes", "1")}
    assert "acme" not in page.page
    assert "globex" not in page.page


def test_tenants_are_a_label_when_asked_for() -> None:
    """On every metric that has a template."""
    rig = Rig(by_tenant=True)
    rig.finish("acme/notes@1", "globex/notes@1", "globex/notes@1")
    page = rig.scrape()
    assert page("jobs_total", tenant="acme", status="succeeded") == 1
    assert page("jobs_total", tenant="globex", status="succeeded") == 2
    for name, labels, _ in page.samples_of_ours():
        assert ("tenant" in labels) == ("template" in labels), name


def test_one_tenants_withdrawal_leaves_anothers_template_of_that_name() -> None:
    """Without tenants as labels the series are both's."""
    rig = Rig()
    rig.finish("acme/notes@1", "acme/letters@1")
    rig.metrics.serving([("globex", "notes")])
    assert rig.versions() == {("notes", "1")}


def test_with_tenants_a_withdrawal_takes_that_tenants_series() -> None:
    """And not the other's."""
    rig = Rig(by_tenant=True)
    rig.finish("acme/notes@1", "globex/notes@1")
    rig.metrics.serving([("globex", "notes")])
    assert rig.scrape().values_of("tenant") == {"globex"}


def test_a_template_that_is_not_served_any_more_is_forgotten() -> None:
    """All its series, those with a status among them; the others go on counting."""
    rig = Rig()
    rig.finish("acme/notes@1", "acme/letters@1")
    rig.metrics.serving([("acme", "notes")])
    page = rig.scrape()
    assert page.values_of("template") == {"notes"}
    rig.finish("acme/notes@1")
    assert rig.scrape()("jobs_total", template="notes", status="succeeded") == 2


def test_a_version_without_jobs_is_forgotten_after_an_hour() -> None:
    """The one that a template last used stays: quiet is not gone."""
    rig = Rig()
    served = [("acme", "notes"), ("acme", "letters")]
    rig.finish("acme/notes@1", "acme/notes@2", "acme/letters@1")
    rig.now += jobs.IDLE_S - 1
    rig.finish("acme/notes@2")
    rig.metrics.serving(served)
    assert rig.versions() == {("notes", "1"), ("notes", "2"), ("letters", "1")}
    rig.now += 2
    rig.metrics.serving(served)
    assert rig.versions() == {("notes", "2"), ("letters", "1")}
    rig.now += 10 * jobs.IDLE_S
    rig.metrics.serving(served)
    assert rig.versions() == {("notes", "2"), ("letters", "1")}


def test_versions_of_a_template_are_bounded() -> None:
    """The longest unused goes first, whatever its number; other templates lose nothing."""
    rig = Rig()
    most = jobs.MAX_VERSIONS_PER_TEMPLATE
    rig.finish("acme/letters@1")
    rig.finish(*(f"acme/notes@{number}" for number in range(1, most + 1)))
    rig.finish("acme/notes@1", f"acme/notes@{most + 1}")
    found = {version for template, version in rig.versions() if template == "notes"}
    assert found == {str(number) for number in range(1, most + 2) if number != 2}
    assert ("letters", "1") in rig.versions()


def test_versions_in_all_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many templates there are; the longest unused goes."""
    monkeypatch.setattr(jobs, "MAX_VERSIONS", 3)
    rig = Rig()
    rig.finish("acme/a@1", "acme/b@1", "acme/c@1", "acme/a@1", "acme/d@1")
    assert rig.versions() == {("a", "1"), ("c", "1"), ("d", "1")}


def test_random_traffic_stays_within_the_bounds() -> None:
    """Of series as a whole, with what a template has for each version in them."""
    rig, rng = Rig(by_tenant=True), random.Random(5)
    served = [(f"t{n}", f"x{n}") for n in range(4)]
    for step in range(3000):
        tenant, template = rng.choice(served)
        rig.now += rng.expovariate(1 / 20)
        rig.finish(f"{tenant}/{template}@{1 + step // 10}")
        if not step % 7:
            rig.metrics.serving(rng.sample(served, 3))
    per_version = 2 * (len(COMPUTE_S) + 3) + 3 * (len(FROM_SUBMIT_S) + 3) + 4 + 4
    rest = len(rig.scrape().samples_of_ours()) - per_version * len(rig.versions())
    assert len(rig.versions()) <= 4 * jobs.MAX_VERSIONS_PER_TEMPLATE
    assert rest == len(get_args(AttemptEnd)) + len(get_args(Refusal)) + 2
    assert per_version < 125  # what MAX_VERSIONS is chosen for


NOT_LOOKED_UP = {
    "usage": Usage(),
    "status": JobState.FAILED,
    "token_ids": (),
    "batch_size": 0,
    "cache": CacheInfo(state=CacheState.OFF, reason="not_run"),
}


def test_a_version_that_nobody_looked_up_is_no_label() -> None:
    """Whoever submits writes the version into the record; any number may stand there."""
    rig = Rig(by_tenant=True)
    rig.metrics.serving([("acme", "notes")])
    for number in range(1, 100):
        rig.finish(f"acme/notes@{number}", f"acme/made-up-{number}@{number}", **NOT_LOOKED_UP)
    assert rig.versions() == {("notes", UNKNOWN), (UNKNOWN, UNKNOWN)}
    page = rig.scrape()
    assert page("jobs_total", template="notes", status="failed") == 99
    assert page("jobs_total", template=UNKNOWN, status="failed", tenant="acme") == 99


def test_another_tenants_template_of_that_name_does_not_vouch_for_a_job() -> None:
    """`evil` serves nothing called notes."""
    rig = Rig()
    rig.metrics.serving([("acme", "notes")])
    rig.finish("evil/notes@1", **NOT_LOOKED_UP)
    assert rig.versions() == {(UNKNOWN, UNKNOWN)}


def test_a_failure_before_the_tokens_counts_for_a_version_that_is_known() -> None:
    """A job of it was looked up before."""
    rig = Rig()
    rig.finish("acme/notes@3")
    rig.finish("acme/notes@3", **NOT_LOOKED_UP)
    assert rig.scrape()("jobs_total", version="3", status="failed") == 1


def test_ends_of_attempts_and_refused_claims_have_a_bounded_set_of_reasons() -> None:
    """All there from the start; each told moves its own by one."""
    rig = Rig()
    before = rig.scrape()
    for name, label, values in (
        ("attempts_total", "end", get_args(AttemptEnd)),
        ("claims_refused_total", "reason", get_args(Refusal)),
    ):
        assert {labels[label] for n, labels, _ in before.samples_of_ours() if n.endswith(name)} == {
            *values
        }
    rig.metrics.attempt_ended("lost")
    rig.metrics.claim_refused("leased")
    rig.metrics.rung_again()
    grown = rig.scrape().difference(before)
    assert grown == {
        ("prefillq_attempts_total", (("end", "lost"), ("model_name", MODEL))): 1,
        ("prefillq_claims_refused_total", (("model_name", MODEL), ("reason", "leased"))): 1,
        ("prefillq_jobs_rung_again_total", (("model_name", MODEL),)): 1,
    }


def test_jobs_die_at_their_last_attempt_or_at_the_claim_after_it() -> None:
    """The second kind took its workers with it, so that none of them could tell."""
    rig = Rig()
    rig.metrics.attempt_ended("dead")
    rig.metrics.claim_refused("dead")
    rig.metrics.claim_refused("ended")
    assert rig.scrape()("jobs_dead_total") == 2
