"""What giving one job a prefix costs before anything is computed: a deep copy, or a row.

    python -m bench.fork [--rounds 50] [--json]

A row is what the shared engine does for it: the entry is checked against the job's ids, and a slot
and blocks for the job's own tokens are taken. Both are measured at several prefix lengths in turn.
"""

from __future__ import annotations

from statistics import median

import click

from bench.engines import Engines, exactly, load_engines, timed
from bench.machine import describe_machine
from contract.console import emit_json, json_option
from worker.engine.base import GenerationRequest
from worker.engine.checks import check_entry
from worker.engine.shared.pool import BLOCK_TOKENS
from worker.engine.shared.sampler import BatchSampler
from worker.engine.shared.scheduler import Scheduler
from worker.engine.shared.sequences import Completion
from worker.engine.stopping import Ending
from worker.options import DEFAULT_MODEL
from worker.prefix.entry import PrefixEntry

PREFIXES = (145, 671, 2048, 4096)
SUFFIX, NEW_TOKENS, ROWS = 27, 32, 32


@click.command()
@click.option("--rounds", default=50, show_default=True, type=click.IntRange(min=1))
@json_option
def main(*, rounds: int, as_json: bool) -> None:
    """Print medians in milliseconds per job."""
    engines = load_engines(DEFAULT_MODEL, rows=ROWS)
    entries = [
        engines.ours.prefill(engines.key(f"fork-{n}"), engines.random_ids(n, "fork"))
        for n in PREFIXES
    ]
    engines.ours.close()
    scheduler = Scheduler(rows=ROWS, blocks=1024, block_tokens=BLOCK_TOKENS, chunk_tokens=512)
    sampler = BatchSampler(
        vocab_size=engines.model.module.config.vocab_size,
        slots=ROWS,
        eos_ids=engines.model.folder.eos_ids,
        device=engines.model.device,
    )
    copies: dict[int, list[float]] = {n: [] for n in PREFIXES}
    rows: dict[int, list[float]] = {n: [] for n in PREFIXES}
    for _ in range(rounds):
        for length, entry in zip(PREFIXES, entries, strict=True):
            copies[length].append(timed(entry.fork)[0])
            request = GenerationRequest(
                ids=entry.ids + engines.random_ids(SUFFIX, "suffix"),
                generation=exactly(NEW_TOKENS),
                entry=entry,
            )
            seconds, member = timed(
                lambda r=request, e=entry: _give_row(engines, r, e, scheduler, sampler)
            )
            rows[length].append(seconds)
            sampler.release(member.row.slot)
            scheduler.remove(member.row)
    figures = {
        "machine": describe_machine(),
        "rounds": rounds,
        "prefix_tokens": list(PREFIXES),
        "deep_copy_ms": [1000 * median(copies[n]) for n in PREFIXES],
        "row_ms": [1000 * median(rows[n]) for n in PREFIXES],
        "slowest_row_ms": [1000 * max(rows[n]) for n in PREFIXES],
    }
    if as_json:
        emit_json(figures)
        return
    for name, value in figures.items():
        shown = (
            [f"{v:.3f}" if isinstance(v, float) else v for v in value]
            if isinstance(value, list)
            else value
        )
        click.echo(f"{name:16} {shown}")


def _give_row(
    engines: Engines,
    request: GenerationRequest,
    entry: PrefixEntry,
    scheduler: Scheduler,
    sampler: BatchSampler,
) -> Completion:
    check_entry(engines.model, entry, request.ids, NEW_TOKENS)
    ending = Ending(
        request.generation,
        eos_ids=engines.model.folder.eos_ids,
        decode=engines.model.tokenizer.decode,
        should_stop=request.should_stop,
    )
    member = Completion(request, ending)
    scheduler.add(member.row)
    scheduler.admit()
    sampler.admit(member.row.slot, request.generation, request.ids)
    return member


if __name__ == "__main__":
    main()
