"""Mixed traffic: four versions, ragged suffixes and answers, Poisson arrivals.

    python -m bench.mixed [--jobs 96] [--rate 2] [--json]

The same jobs at the same times go to the admitted engine and to the deep-copy engine, which
takes one at a time. A latency runs from a job's arrival to its last token.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

import click

from bench.engines import Engines, exactly, load_engines, percentile
from bench.machine import describe_machine
from contract.console import emit_json, json_option
from worker.engine.base import Engine, Generation, GenerationRequest
from worker.options import DEFAULT_MODEL

PREFIXES = (145, 312, 671, 1024)
SUFFIXES = (5, 400)
ANSWERS = (1, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    at_s: float
    request: GenerationRequest


@click.command()
@click.option("--jobs", default=96, show_default=True, type=click.IntRange(min=1))
@click.option("--rate", default=2.0, show_default=True, help="Arrivals a second, on average.")
@click.option("--batch", default=32, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--without-copy", is_flag=True, help="Only the admitted engine.")
@json_option
def main(
    *, jobs: int, rate: float, batch: int, seed: int, without_copy: bool, as_json: bool
) -> None:
    """Print throughput, latency and time to first token of both."""
    engines = load_engines(DEFAULT_MODEL, rows=batch)
    figures: dict[str, Any] = {
        "machine": describe_machine(),
        "jobs": jobs,
        "rate_per_s": rate,
        "batch": batch,
    }
    tokens = {}
    ways: list[tuple[str, Engine]] = [(engines.way, engines.ours)]
    if not without_copy:
        ways.append(("copy", engines.plain))
    for name, engine in ways:
        work = _traffic(engines, engine, jobs, rate, seed)
        figures[name], tokens[name] = _run(engine, work)
    if not without_copy:
        pairs = zip(tokens[engines.way], tokens["copy"], strict=True)
        figures["equal"] = sum(ours == theirs for ours, theirs in pairs)
    engines.ours.close()
    if as_json:
        emit_json(figures)
        return
    for name, value in figures.items():
        click.echo(f"{name:20} {value}")


def _traffic(engines: Engines, engine: Engine, jobs: int, rate: float, seed: int) -> list[_Job]:
    rng = random.Random(seed)
    entries = [
        engine.prefill(engines.key(f"mixed-{length}"), engines.random_ids(length, "mixed"))
        for length in PREFIXES
    ]
    at, work = 0.0, []
    for number in range(jobs):
        at += rng.expovariate(rate)
        entry = rng.choice(entries)
        suffix = engines.random_ids(rng.randint(*SUFFIXES), seed, number)
        request = GenerationRequest(
            ids=entry.ids + suffix, generation=exactly(rng.randint(*ANSWERS)), entry=entry
        )
        work.append(_Job(at_s=at, request=request))
    return work


def _run(engine: Engine, work: list[_Job]) -> tuple[dict[str, float], list[tuple[int, ...]]]:
    latencies, first = [0.0] * len(work), [0.0] * len(work)
    answers: list[Generation | None] = [None] * len(work)
    done = threading.Semaphore(0)
    started = time.perf_counter()

    def serve(number: int) -> None:
        asked = time.perf_counter()
        answer = engine.generate(work[number].request)
        late = asked - started - work[number].at_s
        latencies[number] = time.perf_counter() - started - work[number].at_s
        first[number] = late + answer.first_token_s
        answers[number] = answer
        done.release()

    with ThreadPoolExecutor(max_workers=len(work)) as threads:
        for number, job in enumerate(work):
            time.sleep(max(0.0, started + job.at_s - time.perf_counter()))
            threads.submit(serve, number)
        for _ in work:
            done.acquire()
    seconds = time.perf_counter() - started
    figures = {
        "seconds": seconds,
        "jobs_per_s": len(work) / seconds,
        "latency_p50_s": median(latencies),
        "latency_p95_s": percentile(latencies, 95),
        "ttft_p50_s": median(first),
        "ttft_p95_s": percentile(first, 95),
    }
    return figures, [answer.token_ids if answer else () for answer in answers]


if __name__ == "__main__":
    main()
