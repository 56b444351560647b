"""`prefillq scale --simulate` against two real worker processes.

    python -m tests.simulated [--rounds 5] [--jobs 150] [--utilisation 0.8 --utilisation 0.95]
                              [--cold] [--keep FOLDER] [--json]

From a checkout. The workers are whole ones on an embedded Redis but for the model: their engine
waits as long as a job's text says. Jobs come at random times that are drawn by the seed; waits are
from submit to claim. Each run is simulated twice: `replayed` from the workers' own log of it, as
`--simulate worker.log` does, and `predicted` from what jobs took in the round before, and the times
that were drawn, with nothing of the run itself. Rounds of all loads come in turn, so that a change
of the machine meets all of them.

With `--cold` there are rounds whose workers are started when the first job comes, and load eight
prefixes while more jobs come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

import click

from bench.machine import describe_machine
from contract.console import emit_json, emit_table, json_option
from tests.support.simulated_rounds import COLD, Round, run, warm

_WAITS = tuple(f"{way}_{p}" for p in ("p50", "p95") for way in ("real", "replayed", "predicted"))
_COLUMNS = (*_WAITS, "real_taken", "predicted_taken")


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--jobs", default=150, show_default=True, type=click.IntRange(min=20))
@click.option(
    "--utilisation",
    "utilisations",
    multiple=True,
    type=click.FloatRange(0.1, 0.99),
    help="Share of the slots' time, of workers that are warm; may be repeated.",
)
@click.option("--cold", is_flag=True, help="Also rounds with workers that start and load.")
@click.option("--seed", default=1, show_default=True)
@click.option(
    "--keep",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder for the workers' logs, a file for each round.",
)
@json_option
def main(
    *,
    rounds: int,
    jobs: int,
    utilisations: tuple[float, ...],
    cold: bool,
    seed: int,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Print waits of real runs and simulated ones, and how far they are apart.

    `slot s` is for how long a job has a slot, on average, with the time between two.
    """
    kinds = [*map(warm, utilisations), *([COLD] if cold else [])] or [warm(0.8), warm(0.95)]
    found = run(kinds, rounds=rounds, jobs=jobs, seed=seed, keep=keep)
    by_kind = {kind.name: [one for one in found if one.kind == kind.name] for kind in kinds}
    if as_json:
        emit_json(
            {
                "machine": describe_machine(),
                "jobs": jobs,
                "rounds": [asdict(one) for one in found],
                "loads": {n: medians_of(some) | offs_of(some) for n, some in by_kind.items()},
            }
        )
        return
    rows: list[tuple[object, ...]] = []
    for name, some in by_kind.items():
        rows += [(name, one.seed, *_shown(asdict(one))) for one in some]
        rows.append((name, "median", *_shown(medians_of(some))))
        off = offs_of(some)
        shares = (f"{off[f'{n}_off']:+.1%}" if f"{n}_off" in off else "" for n in _COLUMNS)
        rows.append((name, "off", *shares))
    emit_table(
        (
            *("load", "seed", "p50 s", "replayed", "predicted"),
            *("p95 s", "replayed", "predicted", "slot s", "predicted"),
        ),
        rows,
    )
    click.echo(f"{jobs} jobs a round; {describe_machine()}")


def medians_of(found: Sequence[Round]) -> dict[str, float]:
    """Of each figure over the rounds."""
    return {f"{n}_s": median(getattr(one, f"{n}_s") for one in found) for n in _COLUMNS}


def offs_of(found: Sequence[Round]) -> dict[str, float]:
    """By which share simulated figures are above those of their round, the median of the rounds."""
    return {
        f"{name}_off": median(
            getattr(one, f"{name}_s") / getattr(one, f"real_{name.partition('_')[2]}_s") - 1
            for one in found
        )
        for name in _COLUMNS
        if not name.startswith("real_")
    }


def _shown(figures: dict[str, float]) -> list[str]:
    return [f"{figures[f'{n}_s']:.3f}" for n in _COLUMNS]


if __name__ == "__main__":
    main()
