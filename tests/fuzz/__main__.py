"""`python -m tests.fuzz`: hostile input for minutes or hours, and what came of it."""

from __future__ import annotations

import sys
from typing import NoReturn

import click


@click.command()
@click.argument("names", nargs=-1, metavar="[TARGET]...")
@click.option("--list", "only_list", is_flag=True, help="Show the targets and stop.")
@click.option("--inputs", type=click.IntRange(min=1), help="For each target. Default: by time.")
@click.option("--minutes", type=float, default=1.0, show_default=True, help="For each target.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same inputs again.")
@click.option("--coverage", is_flag=True, help="Guide one TARGET by coverage (needs atheris).")
def main(
    names: tuple[str, ...],
    *,
    only_list: bool,
    inputs: int | None,
    minutes: float,
    seed: int,
    coverage: bool,
) -> None:
    """Give made-up input to the TARGETs, or to all of them; exit status 1 if one broke."""
    if coverage:
        if len(names) != 1:
            raise click.UsageError("--coverage takes one TARGET")
        guide(names[0], seconds=minutes * 60, seed=seed)
    # Late: a guided run must import it all in a way of its own.
    from tests.fuzz.running import Run, run_for, run_target
    from tests.fuzz.targets import targets

    known = targets()
    if unknown := set(names) - known.keys():
        raise click.UsageError(f"no such target: {', '.join(sorted(unknown))}; see --list")
    chosen = [target for name, target in known.items() if not names or name in names]
    if only_list:
        for target in chosen:
            click.echo(f"{target.name:14} {target.about}")
        return
    runs: list[Run] = []
    for target in chosen:
        if inputs is not None:
            run = run_target(target, inputs=inputs, seed=seed)
        else:
            run = run_for(target, seconds=minutes * 60, seed=seed)
        click.echo(str(run))
        runs.append(run)
    for run in runs:
        for trace in run.found:
            click.echo(f"\n{run.target}:\n{trace}", err=True)
    total = sum(run.outcomes.total() for run in runs)
    found = sum(len(run.found) for run in runs)
    click.echo(f"{len(runs)} targets, {total} inputs, {found} found (seed {seed})")
    sys.exit(1 if found else 0)


def guide(name: str, *, seconds: float, seed: int) -> NoReturn:
    """Run one target under atheris, which keeps inputs that reach new code; ends at a finding."""
    try:
        import atheris
    except ImportError as error:
        raise click.UsageError("--coverage needs atheris: pip install atheris") from error
    with atheris.instrument_imports(include=["contract", "templates", "producer", "worker"]):
        from tests.fuzz.running import fuzz_one_input, quiet_logs
        from tests.fuzz.targets import targets

        known = targets()
    if name not in known:
        raise click.UsageError(f"no such target: {name}; see --list")
    # Hypothesis makes an input of the bytes, and needs some hundreds of them from the start.
    options = [f"-max_total_time={seconds:.0f}", f"-seed={seed}", "-max_len=4096", "-len_control=0"]
    with quiet_logs():
        atheris.Setup([sys.argv[0], *options], fuzz_one_input(known[name]))
        atheris.Fuzz()
    sys.exit(0)


if __name__ == "__main__":
    main()
