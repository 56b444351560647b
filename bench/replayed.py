"""`prefillq scale --simulate` against a real worker with a real model.

    python -m bench.replayed [--batch 8] [--jobs 100] [--load 1.05] [--load 1.2] [--load 5] [--json]

One worker of its default model, jobs of one token and of sixteen that share it, at random times at
shares of what a burst of jobs came to a second; above 1 they come faster than it can take them, so
that they wait. Each run is replayed from the lines that the worker logged of it.
"""

from __future__ import annotations

import random
import tempfile
import time
from math import ceil
from pathlib import Path
from typing import Any

import click

from bench.cached_vs_uncached import triage
from bench.end_to_end import written
from bench.machine import describe_machine
from contract.console import emit_json, emit_table, json_option
from contract.model_store import find_model
from contract.redis_client import connect
from contract.settings import Settings
from local.redis_server import EmbeddedRedis
from local.workers import WorkerProcess
from producer.client import Producer
from producer.handle import JobHandle
from scale.simulate import Pool, simulate
from scale.trace import read_trace
from scale.workload import workload
from templates.compile import compile_template
from templates.registry import Registry
from templates.tokenizer import TemplateTokenizer
from worker.options import DEFAULT_MODEL

_WAIT_S = 600.0
_SHORT, _LONG, _LONG_TOKENS = "acme/short", "acme/long", 16
_SHARE = 0.7  # of the jobs that are short
_BURST = 64


@click.command()
@click.option("--batch", default=8, show_default=True, type=click.IntRange(min=1))
@click.option("--jobs", default=100, show_default=True, type=click.IntRange(min=10))
@click.option("--load", multiple=True, default=(1.05, 1.2, 5.0), show_default=True)
@click.option("--seed", default=1, show_default=True)
@json_option
def main(*, batch: int, jobs: int, load: tuple[float, ...], seed: int, as_json: bool) -> None:
    """Print the waits of each run, and those of its replay."""
    base = Settings.load()
    folder = find_model(DEFAULT_MODEL, base)
    tokenizer = TemplateTokenizer.load(folder.path)
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as at, EmbeddedRedis() as redis:
        settings = base.model_copy(update={"redis_url": redis.url})
        with connect(settings) as client:
            registry = Registry(client, settings)
            for name, spec in ((_SHORT, triage()), (_LONG, written(_LONG_TOKENS))):
                named = spec.model_copy(update={"name": name.partition("/")[2]})
                registry.publish(named, compile_template(named, folder, tokenizer), folder)
        log = Path(at) / "worker.log"
        options = ("--batch", str(batch), "--warm", "all")
        with (
            WorkerProcess(settings, log_path=log, options=options, ready_s=_WAIT_S),
            Producer(settings) as producer,
        ):
            for _ in range(2):  # the first warms up
                started = time.perf_counter()
                _run(producer, draw, _BURST, rate=None)
                rate = _BURST / (time.perf_counter() - started)
            found = []
            for share in load:
                time.sleep(1)  # until the lines of what came before are written
                size = log.stat().st_size
                _run(producer, draw, jobs, rate=share * rate)
                time.sleep(1)
                lines = Path(at) / "run.log"
                lines.write_bytes(log.read_bytes()[size:])
                found.append({"load": share} | _compared(lines))
    if as_json:
        machine = describe_machine()
        emit_json({"machine": machine, "batch": batch, "jobs": jobs, "rate": rate, "runs": found})
        return
    emit_table(tuple(found[0]), [tuple(run.values()) for run in found])
    click.echo(f"{jobs} jobs a run, {batch} rows, {rate:.1f} jobs/s at once; {describe_machine()}")


def _run(producer: Producer, draw: random.Random, jobs: int, *, rate: float | None) -> None:
    """Jobs at random times, so many a second, or all at once; until all have ended."""
    tickets = [str(sample.input["ticket"]) for sample in triage().samples]
    handles: list[JobHandle] = []
    at = time.perf_counter()
    for number in range(jobs):
        if rate is not None:
            at += draw.expovariate(rate)
            time.sleep(max(0.0, at - time.perf_counter()))
        template = _SHORT if draw.random() < _SHARE else _LONG
        ticket = f"{number}: {tickets[number % len(tickets)]}"
        handles.append(producer.submit(template, {"ticket": ticket}))
    for _ in producer.wait(handles, timeout=_WAIT_S):
        pass


def _compared(lines: Path) -> dict[str, Any]:
    """Waits in seconds, as they were and as the simulation has them."""
    trace = read_trace([str(lines)])
    measured = workload(trace, seed=0)
    waits = sorted(trace.waits_s)
    outcome = simulate(measured, Pool(workers=1, concurrency=measured.slots))
    real = [waits[ceil(share * len(waits)) - 1] for share in (0.5, 0.95)]
    return {
        "p50 s": round(real[0], 3),
        "replayed p50": round(outcome.wait_p50_s, 3),
        "p95 s": round(real[1], 3),
        "replayed p95": round(outcome.wait_p95_s, 3),
        "slots": measured.slots,
        "slowdown": round(measured.slowdown, 3),
    }


if __name__ == "__main__":
    main()
