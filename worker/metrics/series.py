"""The time series of one template version: what its finished jobs add up to."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from contract.types import CacheState, JobState, Result
from worker.metrics.buckets import COMPUTE_S, FROM_SUBMIT_S

ENDS = tuple(str(state) for state in JobState if state.ended)


class Families:
    """The metrics that every version has series of, in one registry."""

    def __init__(self, registry: CollectorRegistry, label_names: Sequence[str]) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(
                f"prefillq_{name}", text, label_names, registry=registry, buckets=buckets
            )

        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(f"prefillq_{name}", text, (*label_names, *more), registry=registry)

        self.first_token = histogram(
            "time_to_first_token_seconds",
            "Seconds from submit to the first token of the answer.",
            FROM_SUBMIT_S,
        )
        self.queued = histogram(
            "request_queue_time_seconds",
            "Seconds from submit to the claim by this worker.",
            FROM_SUBMIT_S,
        )
        self.prefill = histogram(
            "request_prefill_time_seconds",
            "Seconds that the job's prompt took to compute, the prefix included if it was cold.",
            COMPUTE_S,
        )
        self.decode = histogram(
            "request_decode_time_seconds",
            "Seconds from the first token to the last.",
            COMPUTE_S,
        )
        self.total = histogram(
            "e2e_request_latency_seconds",
            "Seconds from submit to the written result.",
            FROM_SUBMIT_S,
        )
        self.prompt_tokens = counter("prompt_tokens_total", "Tokens of prompts, cached ones too.")
        self.generation_tokens = counter("generation_tokens_total", "Tokens of answers.")
        self.cache_queries = counter(
            "prefix_cache_queries_total", "Tokens of prompts that the prefix cache was asked for."
        )
        self.cache_hits = counter(
            "prefix_cache_hits_total", "Tokens of prompts that came out of the prefix cache."
        )
        self.jobs = counter("jobs_total", "Jobs that ended in this worker.", "status")

    def remove(self, labels: Sequence[str]) -> None:
        """Forget the series with these label values."""
        for family in (
            *(self.first_token, self.queued, self.prefill, self.decode, self.total),
            *(self.prompt_tokens, self.generation_tokens, self.cache_queries, self.cache_hits),
        ):
            family.remove(*labels)
        for status in ENDS:
            self.jobs.remove(*labels, status)


class Series:
    """One version's series, looked up once. All are there from the start, at 0."""

    def __init__(self, families: Families, labels: Sequence[str]) -> None:
        self.used_at = 0.0  # when a job last counted, on the owner's clock
        self._first_token = families.first_token.labels(*labels)
        self._queued = families.queued.labels(*labels)
        self._prefill = families.prefill.labels(*labels)
        self._decode = families.decode.labels(*labels)
        self._total = families.total.labels(*labels)
        self._prompt_tokens = families.prompt_tokens.labels(*labels)
        self._generation_tokens = families.generation_tokens.labels(*labels)
        self._cache_queries = families.cache_queries.labels(*labels)
        self._cache_hits = families.cache_hits.labels(*labels)
        self._jobs = {status: families.jobs.labels(*labels, status) for status in ENDS}

    def count(self, result: Result) -> None:
        """Add one finished job."""
        usage, timings = result.usage, result.timings
        self._jobs[str(result.status)].inc()
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._generation_tokens.inc(usage.completion_tokens)
        if result.cache.state is not CacheState.OFF:
            self._cache_queries.inc(usage.prompt_tokens)
            self._cache_hits.inc(usage.cached_tokens)
        self._queued.observe(timings.queue_s)
        self._total.observe(timings.total_s)
        if result.batch_size:  # the engine has answered
            self._prefill.observe(timings.prefill_s + timings.suffix_prefill_s)
            self._decode.observe(timings.decode_s)
        if result.token_ids:
            self._first_token.observe(timings.ttft_s)
