"""Random jobs in mixed batches, and whether each token is what the plain path would choose.

    python -m bench.parity [--jobs 500] [--json]

Every answer is checked against the model's own forward over the whole text, prompt and answer,
without any cache: each token must be the highest scored one after all before it. By induction
that is what greedy generation without a cache gives.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import click
import torch

from bench.engines import Engines, exactly, load_engines, timed
from bench.machine import describe_machine
from contract.console import emit_json, json_option
from worker.engine.base import Generation, GenerationRequest
from worker.options import DEFAULT_MODEL

PREFIXES = (96, 145, 312, 671)
SUFFIXES = (1, 120)
ANSWERS = (1, 32)


@click.command()
@click.option("--jobs", default=500, show_default=True, type=click.IntRange(min=1))
@click.option("--batch", default=32, show_default=True)
@click.option("--seed", default=0, show_default=True)
@json_option
def main(*, jobs: int, batch: int, seed: int, as_json: bool) -> None:
    """Print how many answers are identical; exit 1 when one is not."""
    engines = load_engines(DEFAULT_MODEL, rows=batch)
    rng = random.Random(seed)
    entries = [
        engines.ours.prefill(engines.key(f"parity-{n}"), engines.random_ids(n, "parity"))
        for n in PREFIXES
    ]
    requests = []
    for number in range(jobs):
        entry = rng.choice([*entries, None])
        prefix = entry.ids if entry else engines.random_ids(64, "uncached", number)
        suffix = engines.random_ids(rng.randint(*SUFFIXES), seed, number)
        requests.append(
            GenerationRequest(
                ids=prefix + suffix, generation=exactly(rng.randint(*ANSWERS)), entry=entry
            )
        )
    with ThreadPoolExecutor(max_workers=2 * batch) as threads:
        seconds, answers = timed(lambda: list(threads.map(engines.ours.generate, requests)))
    engines.ours.close()
    identical = 0
    margins = []
    for number, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        same, margin = _check(engines, request, answer)
        identical += same
        margins.append(margin)
        if not same:
            click.echo(f"job {number} differs; {len(request.ids)} prompt tokens", err=True)
        if number % 50 == 49:
            click.echo(f"{identical} of {number + 1} identical", err=True)
    figures = {
        "machine": describe_machine(),
        "engine": engines.ours.name,
        "jobs": jobs,
        "identical": identical,
        "tokens": sum(len(answer.token_ids) for answer in answers),
        "largest_batch": max(answer.batch_size for answer in answers),
        "narrowest_margin": min(margins),
        "engine_s": round(seconds, 1),
    }
    if as_json:
        emit_json(figures)
    else:
        click.echo("\n".join(f"{name:18} {value}" for name, value in figures.items()))
    if identical < jobs:
        raise SystemExit(1)


def _check(engines: Engines, request: GenerationRequest, answer: Generation) -> tuple[bool, float]:
    """Whether all tokens are the plain path's, and by how much the closest of them won."""
    ids = torch.tensor([request.ids + answer.token_ids[:-1]])
    count = len(answer.token_ids)
    with torch.no_grad():
        scores = (
            engines.model.module(input_ids=ids, use_cache=False, logits_to_keep=count)
            .logits[0]
            .float()
        )
    scores[:, list(engines.model.folder.eos_ids)] = -torch.inf  # held back by min_new_tokens
    best = scores.topk(2, dim=-1)
    same = best.indices[:, 0].tolist() == list(answer.token_ids)
    return same, float((best.values[:, 0] - best.values[:, 1]).min())


if __name__ == "__main__":
    main()
