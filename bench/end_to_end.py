"""Jobs per second through Celery and Redis, against the engine alone.

    python -m bench.end_to_end [--jobs 256] [--rounds 3] [--json]

One round runs the same jobs twice: in this process, straight into an engine with as many rows
as the worker has, and as jobs of a template through an embedded Redis and a worker process.
Between its turns each of the two waits without computing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import click

from bench.cached_vs_uncached import triage
from bench.engines import Engines, exactly, load_engines, timed
from bench.machine import describe_machine
from contract.console import emit_json, json_option
from contract.errors import PrefillqError
from contract.redis_client import connect
from contract.settings import Settings
from local.redis_server import EmbeddedRedis
from local.workers import WorkerProcess
from producer.client import Producer
from templates.compile import compile_template
from templates.fill import fill
from templates.registry import Registry
from templates.spec import TemplateSpec
from worker.engine.base import GenerationRequest
from worker.options import DEFAULT_MODEL

_WAIT_S = 1800.0


@click.command()
@click.option("--jobs", default=256, show_default=True, type=click.IntRange(min=1))
@click.option("--new-tokens", default=32, show_default=True)
@click.option("--batch", default=32, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@json_option
def main(*, jobs: int, new_tokens: int, batch: int, rounds: int, as_json: bool) -> None:
    """Print jobs per second both ways, and the share that is left of the engine's."""
    engines = load_engines(DEFAULT_MODEL, rows=batch)
    spec = written(new_tokens)
    tickets = [{"ticket": f"{number}: {sample}"} for number, sample in enumerate(_tickets(jobs))]
    requests = _requests(engines, spec, tickets)
    bare_s: list[float] = []
    whole_s: list[float] = []
    base = Settings.load()
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedRedis() as redis,
        ThreadPoolExecutor(max_workers=batch) as threads,
    ):
        settings = base.model_copy(update={"redis_url": redis.url})
        client = connect(settings)
        registry = Registry(client, settings)
        compiled = compile_template(spec, engines.model.folder, engines.model.tokenizer)
        version = registry.publish(spec, compiled, engines.model.folder).version
        options = ("--batch", str(batch), "--warm", "all")
        log = Path(folder) / "worker.log"
        with (
            WorkerProcess(settings, log_path=log, options=options, ready_s=600.0),
            Producer(settings) as producer,
        ):
            for number in range(rounds + 1):  # the first warms up and is not counted
                bare, answers = timed(lambda: list(threads.map(engines.ours.generate, requests)))
                whole, results = timed(lambda: _through(producer, str(version.ref), tickets))
                if [a.token_ids for a in answers] != results:
                    raise PrefillqError("the worker's answers are not the engine's")
                if number:
                    bare_s.append(bare)
                    whole_s.append(whole)
        client.close()
    engines.ours.close()
    figures = {
        "machine": describe_machine(),
        "engine": engines.ours.name,
        "jobs": jobs,
        "new_tokens": new_tokens,
        "batch": batch,
        "rounds": rounds,
        "engine_jobs_per_s": jobs / median(bare_s),
        "end_to_end_jobs_per_s": jobs / median(whole_s),
        "share": median(b / w for b, w in zip(bare_s, whole_s, strict=True)),
    }
    if as_json:
        emit_json(figures)
        return
    for name, value in figures.items():
        click.echo(f"{name:22} {value:.4g}" if isinstance(value, float) else f"{name:22} {value}")


def written(new_tokens: int) -> TemplateSpec:
    """The triage example, made to write `new_tokens` tokens instead of a label."""
    spec = triage()
    output = spec.output.model_copy(update={"choices": None})
    return spec.model_copy(
        update={"output": output, "generation": exactly(new_tokens), "samples": spec.samples[:1]}
    )


def _tickets(count: int) -> list[str]:
    texts = [str(sample.input["ticket"]) for sample in triage().samples]
    return [texts[number % len(texts)] for number in range(count)]


def _requests(
    engines: Engines, spec: TemplateSpec, tickets: Sequence[dict[str, str]]
) -> list[GenerationRequest]:
    compiled = compile_template(spec, engines.model.folder, engines.model.tokenizer)
    entry = engines.ours.prefill(engines.key("end-to-end"), compiled.prefix_ids)
    return [
        GenerationRequest(
            ids=fill(compiled, ticket, engines.model.tokenizer).ids,
            generation=spec.generation,
            entry=entry,
        )
        for ticket in tickets
    ]


def _through(
    producer: Producer, template: str, tickets: Sequence[dict[str, str]]
) -> list[tuple[int, ...]]:
    handles = producer.submit_many(template, tickets)
    for handle in producer.wait(handles, timeout=_WAIT_S):
        handle.result()
    return [handle.result().token_ids for handle in handles]


if __name__ == "__main__":
    main()
