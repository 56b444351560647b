"""Seconds that counting one finished job takes, and a scrape of many versions.

    python -m bench.metrics_cost [--jobs 100000] [--versions 50] [--json]

The threads of a worker wait for the engine most of the time; this one counts without a break.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import click
from prometheus_client import CollectorRegistry, generate_latest

from bench.machine import describe_machine
from contract.console import emit_json, json_option
from contract.types import CacheInfo, CacheState, JobState, Result, Timings, Usage, VersionRef
from worker.metrics.jobs import JobMetrics

_ROUNDS = 5


@click.command()
@click.option("--jobs", default=100_000, show_default=True, type=click.IntRange(min=1))
@click.option("--versions", default=50, show_default=True, type=click.IntRange(1, 100))
@json_option
def main(*, jobs: int, versions: int, as_json: bool) -> None:
    """Print microseconds per job and milliseconds per scrape, each the median of five rounds."""
    registry = CollectorRegistry()
    metrics = JobMetrics(registry, model_name="tiny")
    results = [_result(number) for number in range(versions)]

    def count() -> None:
        for number in range(jobs):
            metrics.attempt_ended("ended")
            metrics.job_finished(results[number % versions])

    count_s = _median_s(count) / jobs
    scrape_s = _median_s(lambda: generate_latest(registry))
    found = {
        "machine": describe_machine(),
        "microseconds_per_job": round(count_s * 1e6, 2),
        "milliseconds_per_scrape": round(scrape_s * 1e3, 1),
        "versions": versions,
        "bytes": len(generate_latest(registry)),
    }
    if as_json:
        emit_json(found)
    else:
        print(*(f"{name}: {value}" for name, value in found.items()), sep="\n")


def _median_s(action: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def _result(number: int) -> Result:
    ref = VersionRef(tenant="acme", template=f"t{number // 5}", version=number, digest="d" * 64)
    return Result(
        job_id="acme." + "0" * 32,
        ref=ref,
        status=JobState.SUCCEEDED,
        token_ids=tuple(range(20)),
        usage=Usage(prompt_tokens=700, completion_tokens=20, cached_tokens=671),
        cache=CacheInfo(state=CacheState.HIT),
        timings=Timings(queue_s=0.2, suffix_prefill_s=0.03, ttft_s=0.4, decode_s=0.8, total_s=1.2),
        batch_size=8,
    )


if __name__ == "__main__":
    main()
