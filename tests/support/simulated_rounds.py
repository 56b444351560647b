"""Real runs of two workers without a model, each beside what the simulation makes of it."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import fmean

from contract.model_store import find_model
from contract.redis_client import connect
from contract.settings import Settings
from contract.types import Result
from local.redis_server import EmbeddedRedis
from producer.client import Producer
from producer.handle import JobHandle
from scale.simulate import Pool, simulate
from scale.trace import Trace, read_trace
from scale.workload import Work, Workload, workload
from templates.compile import compile_template
from templates.registry import Registry
from templates.tokenizer import TemplateTokenizer
from tests.support.fakes import FakeWorker, StartFake, fake_workers
from tests.support.pretend import pretend_model
from tests.support.templates import make_spec
from worker.options import DEFAULT_MODEL

_PAIR = ("one", "other")  # the workers
_WAIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is run: templates with the seconds of their jobs and their share of them."""

    name: str
    templates: dict[str, tuple[float, int]]
    slots: int
    utilisation: float  # of the slots' time, by the jobs alone
    prefix_s: float = 0.0
    cold: bool = False  # the workers are started with the first job, each time


def warm(utilisation: float) -> Kind:
    """Workers that are up and hold both prefixes."""
    return Kind(
        name=f"{utilisation:.0%}",
        templates={"short": (0.4, 7), "long": (1.0, 3)},
        slots=2,
        utilisation=utilisation,
    )


# Each worker loads eight prefixes, two at once, while jobs of all of them come.
COLD = Kind(
    name="cold",
    templates={f"cold-{n:02}": (0.3 + n / 50, 1) for n in range(8)},
    slots=4,
    utilisation=0.7,
    prefix_s=0.7,
    cold=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Waits in seconds, real and simulated: from its own log, and from the round before it.

    `taken_s` is what a job has a slot for, on average, with the time between two; of the prediction
    what was taken for it.
    """

    kind: str
    seed: int
    real_p50_s: float
    real_p95_s: float
    replayed_p50_s: float
    replayed_p95_s: float
    predicted_p50_s: float
    predicted_p95_s: float
    real_taken_s: float
    predicted_taken_s: float
    real_loads: int
    replayed_loads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coming:
    """A job that is to come."""

    at: float  # seconds after the first one
    template: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rig:
    producer: Producer
    start: StartFake
    folder: Path


def run(
    kinds: Sequence[Kind],
    *,
    rounds: int,
    jobs: int,
    seed: int,
    predict: bool = True,
    keep: Path | None = None,  # a folder for what the workers log in each round
    tokenizer_from: Path | None = None,  # a model's folder; by default the default model's
) -> list[Round]:
    """Rounds of all kinds in turn, after one more of each, from which the first is predicted.

    That one is saved where nothing is to be predicted; figures of predictions mean nothing then.
    """
    with _rig(kinds, tokenizer_from) as rig:
        up = [rig.start(*_options(kind)) for kind in kinds[:1] if not kind.cold for _ in _PAIR]
        if up:
            _hold_all(rig.producer, kinds[0])
        found, before = list[Round](), dict[str, Trace]()
        for number in range(rounds + predict):
            for kind in kinds:
                plan = _plan(kind, jobs, seed + number)
                waits, log = _real(rig, kind, plan, [] if kind.cold else up)
                path = (keep or rig.folder) / f"{kind.name}-{seed + number}.log"
                path.write_bytes(log)
                trace = read_trace([str(path)])
                earlier = before.get(kind.name) if predict else trace
                before[kind.name] = trace
                if earlier is not None:
                    found.append(_round(kind, seed + number, plan, waits, trace, earlier))
        return found


@contextmanager
def _rig(kinds: Sequence[Kind], tokenizer_from: Path | None) -> Iterator[_Rig]:
    """A Redis with all kinds' templates."""
    base = Settings.load()
    with tempfile.TemporaryDirectory() as name, EmbeddedRedis() as redis:
        folder = Path(name)
        source = tokenizer_from or find_model(DEFAULT_MODEL, base).path
        (folder / "model").mkdir()
        model = pretend_model(folder / "model", tokenizer_from=source)
        settings = base.model_copy(update={"redis_url": redis.url})
        with connect(settings) as client, Producer(settings) as producer:
            registry = Registry(client, settings)
            tokenizer = TemplateTokenizer.load(model.path)
            for template in ["unserved", *(name for kind in kinds for name in kind.templates)]:
                spec = make_spec(template)
                registry.publish(spec, compile_template(spec, model, tokenizer), model)
            # A producer's first submit takes longer than the others, and a round begins with it.
            producer.submit("acme/unserved", _note(0, 0)).cancel()
            with fake_workers(settings, model.path, folder) as start:
                yield _Rig(producer=producer, start=start, folder=folder)


def _options(kind: Kind) -> list[str]:
    patterns = [word for name in kind.templates for word in ("--template", f"acme/{name}")]
    return ["--batch", str(kind.slots), "--prefill-s", str(kind.prefix_s), *patterns]


def _hold_all(producer: Producer, kind: Kind) -> None:
    """Each worker has held each prefix after this."""
    for name in kind.templates:
        notes = [_note(0.1, n) for n in range(4 * kind.slots)]
        _results(producer, producer.submit_many(f"acme/{name}", notes))


def _plan(kind: Kind, jobs: int, seed: int) -> list[_Coming]:
    """Random times and templates; the first job comes at 0."""
    draw = random.Random(seed)
    names = draw.choices(list(kind.templates), [n for _, n in kind.templates.values()], k=jobs)
    mean_s = fmean(kind.templates[name][0] for name in names)
    at, plan = 0.0, []
    for name in names:
        plan.append(_Coming(at=at, template=name, seconds=kind.templates[name][0]))
        at += draw.expovariate(kind.utilisation * len(_PAIR) * kind.slots / mean_s)
    return plan


def _real(
    rig: _Rig, kind: Kind, plan: Sequence[_Coming], up: Sequence[FakeWorker]
) -> tuple[list[float], bytes]:
    """Waits of all jobs, and what the workers logged; workers of their own unless some are up."""
    sizes = [worker.log_path.stat().st_size for worker in up]
    begun = time.perf_counter()
    handles, workers = [], list(up)
    for number, job in enumerate(plan):
        time.sleep(max(0.0, begun + job.at - time.perf_counter()))
        note = _note(job.seconds, number)
        handles.append(rig.producer.submit(f"acme/{job.template}", note))
        if not workers:
            workers = [rig.start(*_options(kind), ready=False) for _ in _PAIR]
            sizes = [0 for _ in workers]
    waits = sorted(result.timings.queue_s for result in _results(rig.producer, handles))
    log = _logged(workers, sizes, len(plan))
    for worker in workers[len(up) :]:
        worker.stop()
    return waits, log


def _logged(workers: Sequence[FakeWorker], sizes: Sequence[int], jobs: int) -> bytes:
    """What the workers have logged since their logs had these sizes: all of these jobs."""
    ends = time.monotonic() + 10.0
    while True:
        lines = b"".join(
            worker.log_path.read_bytes()[size:] for worker, size in zip(workers, sizes, strict=True)
        )
        if lines.count(b'"job_finished"') >= jobs or time.monotonic() > ends:
            return lines
        time.sleep(0.1)


def _expected(before: Trace, plan: Sequence[_Coming], seed: int) -> Workload:
    """From what jobs of each template took in another run, and when these are to come."""
    measured = workload(before, seed=seed)
    taken: dict[str, list[float]] = {}
    for work in measured.works:
        taken.setdefault(work.version, []).append(work.alone_s)
    every = fmean(work.alone_s for work in measured.works)
    versions = [f"acme/{job.template}@1" for job in plan]
    return replace(
        measured,
        works=[
            Work(at=job.at, tenant="acme", version=name, alone_s=fmean(taken.get(name, [every])))
            for name, job in zip(versions, plan, strict=True)
        ],
        # One that no job of that run had takes as long as the others.
        prefix_s=dict.fromkeys(versions, fmean(measured.prefix_s.values())) | measured.prefix_s,
    )


def _taken_s(load: Workload) -> float:
    return fmean(work.alone_s for work in load.works) + load.turnaround_s


def _pool(trace: Trace, kind: Kind) -> Pool:
    return Pool(
        workers=len(_PAIR),
        concurrency=kind.slots,
        cold_starts_s=trace.cold_starts_s if kind.cold else (),
        warm=not kind.cold,
    )


def _round(
    kind: Kind,
    seed: int,
    plan: Sequence[_Coming],
    waits: Sequence[float],
    trace: Trace,
    before: Trace,
) -> Round:
    load, expected = workload(trace, seed=seed), _expected(before, plan, seed)
    replayed = simulate(load, _pool(trace, kind))
    guess = simulate(expected, _pool(before, kind))
    return Round(
        kind=kind.name,
        seed=seed,
        real_p50_s=waits[ceil(0.5 * len(waits)) - 1],
        real_p95_s=waits[ceil(0.95 * len(waits)) - 1],
        replayed_p50_s=replayed.wait_p50_s,
        replayed_p95_s=replayed.wait_p95_s,
        predicted_p50_s=guess.wait_p50_s,
        predicted_p95_s=guess.wait_p95_s,
        real_taken_s=_taken_s(load),
        predicted_taken_s=_taken_s(expected),
        real_loads=sum(job.prefill_s is not None for job in trace.jobs),
        replayed_loads=replayed.cold_loads,
    )


def _note(seconds: float, number: int) -> dict[str, str]:
    return {"note": f"work={seconds} {number}"}


def _results(producer: Producer, handles: Sequence[JobHandle]) -> list[Result]:
    for _ in producer.wait(handles, timeout=_WAIT_S):
        pass
    return [handle.outcome(timeout=_WAIT_S) for handle in handles]
