"""Seconds per job of several ways to do the same work, side by side in one run.

    python -m bench.peers.setup                      once: OpenVINO GenAI and llama.cpp
    python -m bench.peers --workload a --batch 1,8,32 --rounds 3 [--json]

Every peer runs in a process of its own and in turn with the others. All work is greedy, in
float32, on the same random ids, and every job makes exactly as many tokens.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict

import click
import torch

from bench.floor import Shape, gemm_peak
from bench.machine import describe_machine
from bench.peers.catalog import PeerSpec, peer_specs
from bench.peers.driver import Peer, PeerFailed
from bench.peers.measure import WORKLOADS, Row, Workload, measure, tabulate
from bench.peers.protocol import Load, Work
from contract.console import emit_json, json_option
from contract.model_folder import ModelFolder
from contract.settings import Settings
from worker.models.fetch import fetch_model
from worker.options import DEFAULT_MODEL

LOAD_S = 600.0  # a cold disk, or a model compiled


def _numbers(_: object, __: object, value: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter("expected numbers such as 1,8,32") from error
    if min(numbers) < 1:
        raise click.BadParameter("expected numbers from 1 up")
    return numbers


def _names(_: object, __: object, value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value.split(",")))


@click.command()
@click.option("--workload", type=click.Choice(sorted(WORKLOADS)), default="a", show_default=True)
@click.option(
    "--batch",
    "batches",
    envvar="PREFILLQ_BENCH_PEERS_BATCH",
    default="1,8,32",
    show_default=True,
    callback=_numbers,
)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--peers",
    "names",
    envvar="PREFILLQ_BENCH_PEERS_PEERS",
    default="uncached,copy,openvino,llamacpp",
    show_default=True,
    callback=_names,
)
@click.option(
    "--prefix", default="", help="Only the workload's prefixes of these lengths, such as 1024,4096."
)
@click.option(
    "--check",
    default=1,
    show_default=True,
    help="Answers of each timing to compare with uncached generate.",
)
@click.option("--threads", default=2, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
@json_option
def main(
    *,
    workload: str,
    batches: tuple[int, ...],
    rounds: int,
    names: tuple[str, ...],
    prefix: str,
    check: int,
    threads: int,
    seed: int,
    model: str,
    as_json: bool,
) -> None:
    """Print medians and how many answers were equal to uncached generate."""
    settings = Settings.load()
    folder = fetch_model(model, settings)
    specs = peer_specs(folder, settings)
    if unknown := [name for name in names if name not in specs]:
        raise click.UsageError(f"no such peer: {', '.join(unknown)}; there are {', '.join(specs)}")
    lengths = _numbers(None, None, prefix) if prefix else None
    workloads = [w for w in WORKLOADS[workload] if lengths is None or w.prefix_len in lengths]
    vocabulary = json.loads((folder.path / "config.json").read_text("utf-8"))["vocab_size"]
    torch.set_num_threads(threads)
    shape, peaks = Shape.read(folder.path), [gemm_peak()]
    rows: list[Row] = []
    notes: dict[str, str] = {}
    try:
        with ExitStack() as stack:
            peers = {name: stack.enter_context(specs[name].start()) for name in names}
            oracle = peers.get("uncached")
            if oracle is None and check:
                oracle = stack.enter_context(specs["uncached"].start())
            for work in workloads:
                started = {**peers, **({"uncached": oracle} if oracle else {})}
                for name, peer in started.items():
                    load = _load(specs[name], work, folder, max(batches), threads)
                    notes[name] = peer.load(load, timeout_s=LOAD_S)
                    click.echo(f"{name}: {notes[name]}", err=True)
                samples = []
                for sample in measure(
                    peers,
                    work,
                    batches,
                    rounds,
                    one_by_one=[name for name in names if not specs[name].batches],
                    vocabulary=vocabulary,
                    seed=seed,
                ):
                    samples.append(sample)
                    click.echo(
                        f"round {sample.round + 1}, prefix {sample.prefix_len}, "
                        f"batch {sample.batch:3}: {sample.peer:15} "
                        f"{sample.seconds / sample.jobs:.3f} s per job",
                        err=True,
                    )
                peaks.append(gemm_peak())
                rows += tabulate(samples, check=check, uncached=_Oracle(oracle, work))
    except PeerFailed as error:
        raise click.ClickException(str(error)) from error
    peak = max(peaks)  # what the machine can do; a lower one was disturbed
    floors = {
        w.prefix_len: shape.job_flops(
            prefix=w.prefix_len, suffix=w.suffix_len, new_tokens=w.new_tokens
        )
        / peak
        for w in workloads
    }
    if as_json:
        outcome = {
            "machine": describe_machine(),
            "model": folder.name,
            "model_digest": folder.model_digest,
            "threads": threads,
            "rounds": rounds,
            "seed": seed,
            "peers": notes,
            "gemm_gflops": [peak / 1e9 for peak in peaks],
            "rows": [asdict(row) | {"floor_s": floors[row.prefix_len]} for row in rows],
        }
        emit_json(outcome)
        return
    click.echo(f"matrix products at {peak / 1e9:.0f} GFLOP/s; floors in s per job: {floors}")
    _print(rows)


class _Oracle:
    """The uncached answer to one prompt."""

    def __init__(self, peer: Peer | None, workload: Workload) -> None:
        self._peer = peer
        self._workload = workload

    def __call__(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        if self._peer is None:
            raise PeerFailed("there is no uncached peer to compare with")
        work = Work(
            prompts=[list(prompt)],
            prefix_len=self._workload.prefix_len,
            max_new_tokens=self._workload.new_tokens,
        )
        return tuple(self._peer.run(work, timeout_s=LOAD_S).token_ids[0])


def _load(
    spec: PeerSpec, workload: Workload, folder: ModelFolder, max_batch: int, threads: int
) -> Load:
    return Load(
        model=str(spec.model),
        prefix_len=workload.prefix_len,
        own_len=workload.own_len,
        max_batch=max_batch,
        eos_ids=folder.eos_ids,
        threads=threads,
    )


def _print(rows: list[Row]) -> None:
    click.echo(f"{'prefix':>6} {'batch':>5}  {'peer':15} {'s per job':>9}  rounds  equal")
    for row in rows:
        each = " ".join(f"{seconds:.3f}" for seconds in row.seconds_per_job)
        click.echo(
            f"{row.prefix_len:6} {row.batch:5}  {row.peer:15} {row.median_s:9.3f}  "
            f"{each}  {row.equal} of {row.checked}"
        )


if __name__ == "__main__":
    main()
