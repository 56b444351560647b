"""Seconds per job with and without the prefix cache, on the ticket triage template.

The same requests go through the same engine, cached and uncached in turn, so that whatever
else the machine does hits both alike. Every request decodes exactly the same number of new
tokens, and both ways must give the same ones.

    python -m bench.cached_vs_uncached [--jobs 9] [--new-tokens 32] [--json]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import click

from bench.machine import describe_machine
from contract.console import emit_json, json_option
from contract.settings import Settings
from templates.compile import compile_template
from templates.examples import example_paths
from templates.fill import fill
from templates.spec import TemplateSpec, load_spec
from templates.tokenizer import TemplateTokenizer
from worker.device import default_dtype, pick_device
from worker.engine.base import Generation, GenerationRequest
from worker.engine.reference import ReferenceEngine
from worker.model import load_model
from worker.models.fetch import fetch_model
from worker.options import DEFAULT_MODEL


def triage() -> TemplateSpec:
    """The example whose prefix is mostly policy and few-shot tickets."""
    (path,) = [path for path in example_paths() if path.name == "support-triage.yaml"]
    return load_spec(path)


def _timed(call: Callable[[], Generation]) -> tuple[float, Generation]:
    started = time.perf_counter()
    generation = call()
    return time.perf_counter() - started, generation


@click.command()
@click.option("--jobs", default=9, show_default=True, help="Requests, each run both ways.")
@click.option("--new-tokens", default=32, show_default=True)
@json_option
def main(*, jobs: int, new_tokens: int, as_json: bool) -> None:
    """Print medians and the ratio."""
    settings = Settings.load()
    folder = fetch_model(DEFAULT_MODEL, settings)
    device = pick_device("auto")
    model = load_model(folder, device=device, dtype=default_dtype(device))
    engine = ReferenceEngine(model)
    spec = triage()
    compiled = compile_template(spec, folder, TemplateTokenizer.load(folder.path))
    generation = spec.generation.model_copy(
        update={"min_new_tokens": new_tokens, "max_new_tokens": new_tokens}
    )
    key = model.prefix_key(spec.tenant, "bench")
    entry = engine.prefill(key, compiled.prefix_ids)
    requests = [
        GenerationRequest(
            ids=fill(compiled, sample.input, model.tokenizer).ids,
            generation=generation,
            choices=None,
            entry=None,
            should_stop=lambda: None,
        )
        for sample in spec.samples
    ]
    cached_s, uncached_s, forks_s, identical = [], [], [], 0
    for number in range(jobs + 1):  # the first round warms up and is not counted
        request = requests[number % len(requests)]
        hot = GenerationRequest(
            ids=request.ids,
            generation=request.generation,
            choices=None,
            entry=entry,
            should_stop=lambda: None,
        )
        with_cache, first = _timed(lambda hot=hot: engine.generate(hot))
        without, second = _timed(lambda request=request: engine.generate(request))
        if number:
            cached_s.append(with_cache)
            uncached_s.append(without)
            forks_s.append(first.fork_s)
            identical += first.token_ids == second.token_ids
    suffixes = [len(request.ids) - len(entry.ids) for request in requests]
    outcome = {
        "machine": describe_machine(),
        "model": folder.name,
        "dtype": str(model.dtype),
        "device": str(device),
        "prefix_tokens": len(entry.ids),
        "suffix_tokens_median": median(suffixes),
        "new_tokens": new_tokens,
        "jobs": jobs,
        "identical": identical,
        "prefix_prefill_s": entry.prefill_s,
        "fork_s_median": median(forks_s),
        "cached_s_median": median(cached_s),
        "uncached_s_median": median(uncached_s),
        "ratio": median(u / c for u, c in zip(uncached_s, cached_s, strict=True)),
    }
    if as_json:
        emit_json(outcome)
        return
    for name, value in outcome.items():
        click.echo(f"{name:22} {value:.3f}" if isinstance(value, float) else f"{name:22} {value}")


if __name__ == "__main__":
    main()
