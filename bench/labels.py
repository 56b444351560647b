"""Tickets per second with three labels: scored on the shared prefix, or re-encoded in full.

    python -m bench.labels [--tickets 600] [--rounds 3] [--json]

Ours scores every ticket each round. Re-encoding takes much longer, so it does a share of them:
one by one, as a loop over a model does it, and in batches of equal length.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import click
import torch

from bench.engines import Engines, exactly, load_engines, timed
from bench.machine import describe_machine
from contract.console import emit_json, json_option
from worker.engine.base import GenerationRequest
from worker.options import DEFAULT_MODEL

PREFIX, SUFFIX = 145, 22
_LABELS = ((30507,), (3209,), (20912,))  # any ids whose first tokens differ
_ONE_BY_ONE, _BATCHED = 24, 64  # tickets of a round that are re-encoded


@click.command()
@click.option("--tickets", default=600, show_default=True, type=click.IntRange(min=_BATCHED))
@click.option("--batch", default=32, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@json_option
def main(*, tickets: int, batch: int, rounds: int, as_json: bool) -> None:
    """Print seconds per ticket, the ratios, and how far the probabilities differ."""
    engines = load_engines(DEFAULT_MODEL, rows=batch)
    prefix = engines.random_ids(PREFIX, "prefix")
    entry = engines.ours.prefill(engines.key("labels"), prefix)
    prompts = [prefix + engines.random_ids(SUFFIX, "ticket", n) for n in range(tickets)]
    requests = [
        GenerationRequest(ids=ids, generation=exactly(1), choices=_LABELS, entry=entry)
        for ids in prompts
    ]
    ours: list[float] = []
    single: list[float] = []
    batched: list[float] = []
    worst = 0.0
    with ThreadPoolExecutor(max_workers=2 * batch) as threads:
        list(threads.map(engines.ours.generate, requests[:batch]))  # warm
        for _ in range(rounds):
            seconds, done = timed(lambda: list(threads.map(engines.ours.generate, requests)))
            ours.append(seconds / tickets)
            seconds, plain = timed(
                lambda: [_reencode(engines, [ids]) for ids in prompts[:_ONE_BY_ONE]]
            )
            single.append(seconds / _ONE_BY_ONE)
            probabilities = [row for rows in plain for row in rows]
            seconds, plain = timed(
                lambda: [
                    _reencode(engines, prompts[at : at + batch]) for at in range(0, _BATCHED, batch)
                ]
            )
            batched.append(seconds / _BATCHED)
            for generation, expected in zip(done, probabilities, strict=False):
                pairs = zip(generation.choice_probabilities, expected, strict=True)
                worst = max(worst, *(abs(a - b) for a, b in pairs))
    engines.ours.close()
    figures = {
        "machine": describe_machine(),
        "engine": engines.ours.name,
        "tickets": tickets,
        "prefix_tokens": PREFIX,
        "suffix_tokens": SUFFIX,
        "batch": batch,
        "rounds": rounds,
        "ours_s": median(ours),
        "reencoded_one_by_one_s": median(single),
        "reencoded_in_batches_s": median(batched),
        "ratio_one_by_one": median(a / b for a, b in zip(single, ours, strict=True)),
        "ratio_in_batches": median(a / b for a, b in zip(batched, ours, strict=True)),
        "largest_probability_difference": worst,
    }
    if as_json:
        emit_json(figures)
        return
    for name, value in figures.items():
        click.echo(f"{name:32} {value:.4g}" if isinstance(value, float) else f"{name:32} {value}")


def _reencode(engines: Engines, prompts: Sequence[tuple[int, ...]]) -> list[list[float]]:
    """Probabilities of the labels after each prompt, by the model's own forward over all of it."""
    ids = torch.tensor(prompts)
    with torch.no_grad():
        scores = engines.model.module(input_ids=ids, use_cache=False, logits_to_keep=1).logits
    labels = [label[0] for label in _LABELS]
    every = scores[:, -1].double().log_softmax(-1)[:, labels]
    rows: list[list[float]] = every.softmax(-1).tolist()
    return rows


if __name__ == "__main__":
    main()
