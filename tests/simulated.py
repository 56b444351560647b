"""`prefillq scale --simulate` against two real worker processes.

    python -m tests.simulated [--rounds 5] [--jobs 150] [--utilisation 0.95] [--json]

From a checkout. The workers are whole ones on an embedded Redis but for the model: their engine
waits as long as a job's text says. Jobs come at random times that are drawn by the seed; waits are
from submit to claim. Each run is simulated twice: `replayed` from the workers' own log of it, as
`--simulate worker.log` does, and `predicted` from what a few jobs before it took and the times that
were drawn, with nothing of the run itself.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from statistics import median

import click

from bench.machine import describe_machine
from contract.console import emit_json, emit_table, json_option
from contract.model_store import find_model
from contract.redis_client import connect
from contract.settings import Settings
from contract.types import Result
from local.redis_server import EmbeddedRedis
from producer.client import Producer
from producer.handle import JobHandle
from scale.simulate import Outcome, Pool, simulate
from scale.trace import Trace, Work, Workload, read_trace, workload
from templates.registry import Registry
from tests.support.fakes import FakeWorker, fake_workers
from tests.support.pretend import pretend_model
from tests.support.templates import make_spec, publish
from worker.options import DEFAULT_MODEL

WORKERS, SLOTS = 2, 2
# Seconds of work that a job's text asks for, and how many jobs in ten are of that template.
TEMPLATES = {"short": (0.4, 7), "long": (1.0, 3)}
_MEASURED = 6  # jobs of each template and worker
_WAIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Waits in seconds, real and simulated."""

    seed: int
    real_p50_s: float
    real_p95_s: float
    replayed_p50_s: float
    replayed_p95_s: float
    predicted_p50_s: float
    predicted_p95_s: float


_COLUMNS = tuple(f"{way}_{p}" for p in ("p50", "p95") for way in ("real", "replayed", "predicted"))


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--jobs", default=150, show_default=True, type=click.IntRange(min=20))
@click.option("--utilisation", default=0.95, show_default=True, help="Share of the slots' time.")
@click.option("--seed", default=1, show_default=True)
@json_option
def main(*, rounds: int, jobs: int, utilisation: float, seed: int, as_json: bool) -> None:
    """Print waits of real runs and simulated ones, and how far their medians are apart."""
    found = run(rounds=rounds, jobs=jobs, utilisation=utilisation, seed=seed)
    medians = medians_of(found)
    off = offs_of(found)
    if as_json:
        emit_json(
            {
                "machine": describe_machine(),
                "jobs": jobs,
                "utilisation": utilisation,
                "rounds": [asdict(one) for one in found],
                **medians,
                **off,
            }
        )
        return
    emit_table(
        ("seed", "p50 s", "replayed", "predicted", "p95 s", "replayed", "predicted"),
        [
            *((one.seed, *_shown(asdict(one))) for one in found),
            ("median", *_shown(medians)),
            ("off", *(f"{off[f'{n}_off']:+.1%}" if f"{n}_off" in off else "" for n in _COLUMNS)),
        ],
    )
    click.echo(f"{jobs} jobs a round at {utilisation:.0%}; {describe_machine()}")


def medians_of(found: Sequence[Round]) -> dict[str, float]:
    """Of each figure over the rounds."""
    return {f"{n}_s": median(getattr(one, f"{n}_s") for one in found) for n in _COLUMNS}


def offs_of(found: Sequence[Round]) -> dict[str, float]:
    """By which share simulated waits are above those of their round, the median of the rounds."""
    return {
        f"{way}_{p}_off": median(
            getattr(one, f"{way}_{p}_s") / getattr(one, f"real_{p}_s") - 1 for one in found
        )
        for p in ("p50", "p95")
        for way in ("replayed", "predicted")
    }


def _shown(figures: dict[str, float]) -> list[str]:
    return [f"{figures[f'{n}_s']:.3f}" for n in _COLUMNS]


def run(
    *,
    rounds: int,
    jobs: int,
    utilisation: float,
    seed: int,
    tokenizer_from: Path | None = None,  # a model's folder; by default the default model's
) -> list[Round]:
    """All rounds, on the same two workers."""
    base = Settings.load()
    with tempfile.TemporaryDirectory() as folder, EmbeddedRedis() as redis:
        pretend = Path(folder) / "model"
        pretend.mkdir()
        source = tokenizer_from or find_model(DEFAULT_MODEL, base).path
        model = pretend_model(pretend, tokenizer_from=source)
        settings = base.model_copy(update={"redis_url": redis.url})
        with connect(settings) as client, Producer(settings) as producer:
            registry = Registry(client, settings)
            for name in TEMPLATES:
                publish(registry, make_spec(name), model)
            with fake_workers(settings, model.path, Path(folder)) as start:
                workers = [start("--batch", str(SLOTS)) for _ in range(WORKERS)]
                before = _measure(producer, workers)
                return [
                    _round(
                        producer, workers, before, jobs=jobs, utilisation=utilisation, seed=seed + n
                    )
                    for n in range(rounds)
                ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """What was measured before the runs."""

    taken_s: dict[str, float]  # template -> that a worker has a job of it
    turnaround_s: float


def _measure(producer: Producer, workers: Sequence[FakeWorker]) -> _Before:
    for name in TEMPLATES:  # each worker has held each prefix after this
        notes = [_note(name, n) for n in range(_MEASURED * WORKERS)]
        _results(producer, producer.submit_many(f"acme/{name}", notes))
    load = workload(read_trace([str(worker.log_path) for worker in workers]), seed=0)
    return _Before(
        taken_s={
            name: median(work.alone_s for work in load.works if f"/{name}@" in work.version)
            for name in TEMPLATES
        },
        turnaround_s=load.turnaround_s,
    )


def _round(
    producer: Producer,
    workers: Sequence[FakeWorker],
    before: _Before,
    *,
    jobs: int,
    utilisation: float,
    seed: int,
) -> Round:
    draw = random.Random(seed)
    names = draw.choices(list(TEMPLATES), [share for _, share in TEMPLATES.values()], k=jobs)
    mean_s = sum(TEMPLATES[name][0] for name in names) / jobs
    at, plan = 0.0, []
    for name in names:
        at += draw.expovariate(utilisation * WORKERS * SLOTS / mean_s)
        plan.append((at, name))
    works = [
        Work(at=at, tenant="acme", version=f"acme/{name}@1", alone_s=before.taken_s[name])
        for at, name in plan
    ]
    predicted = _simulate(
        Workload(
            works=works,
            prefix_s={},
            slowdown=0.0,
            turnaround_s=before.turnaround_s,
            batch_size=SLOTS,
        )
    )
    sizes = [worker.log_path.stat().st_size for worker in workers]
    started = time.perf_counter() + 0.1
    handles = []
    for number, (at, name) in enumerate(plan):
        time.sleep(max(0.0, started + at - time.perf_counter()))
        handles.append(producer.submit(f"acme/{name}", _note(name, number)))
    waits = sorted(result.timings.queue_s for result in _results(producer, handles))
    replayed = _simulate(workload(_logged(workers, sizes, jobs), seed=seed))
    return Round(
        seed=seed,
        real_p50_s=waits[ceil(0.5 * jobs) - 1],
        real_p95_s=waits[ceil(0.95 * jobs) - 1],
        replayed_p50_s=replayed.wait_p50_s,
        replayed_p95_s=replayed.wait_p95_s,
        predicted_p50_s=predicted.wait_p50_s,
        predicted_p95_s=predicted.wait_p95_s,
    )


def _logged(workers: Sequence[FakeWorker], sizes: Sequence[int], jobs: int) -> Trace:
    """What the workers have logged since their logs had these sizes: all of these jobs."""
    ends = time.monotonic() + 10.0
    while True:
        with tempfile.NamedTemporaryFile(suffix=".log") as lines:
            for worker, size in zip(workers, sizes, strict=True):
                lines.write(worker.log_path.read_bytes()[size:])
            lines.flush()
            trace = read_trace([lines.name])
        if len(trace.jobs) == jobs or time.monotonic() > ends:
            return trace
        time.sleep(0.1)


def _simulate(load: Workload) -> Outcome:
    return simulate(load, Pool(workers=WORKERS, concurrency=SLOTS, warm=True), seed=0)


def _note(name: str, number: int) -> dict[str, str]:
    return {"note": f"work={TEMPLATES[name][0]} {number}"}


def _results(producer: Producer, handles: Sequence[JobHandle]) -> list[Result]:
    for _ in producer.wait(handles, timeout=_WAIT_S):
        pass
    return [handle.outcome(timeout=_WAIT_S) for handle in handles]


if __name__ == "__main__":
    main()
