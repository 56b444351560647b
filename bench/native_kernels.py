"""The CPU kernels against PyTorch's own, as GFLOP/s and as share of the matrix-multiply peak.

Linear layers run over 30 different weights in turn, and attention over as many layers as 64 MB
hold, so that both read from memory as a model's step does. Peak (`torch.mm` of 2048 x 2048), ours
and theirs alternate within each figure; a figure is the median of the rounds.

    python -m bench.native_kernels [--rounds 5] [--threads N] [--json]
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import click
import torch
from torch import Tensor

from bench.machine import describe_machine
from contract.settings import Settings
from worker.engine.native import ops
from worker.engine.native.build import load_kernels

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576))  # SmolLM2-135M's
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 864)
PREFIXES = (671, 4096)
BATCHES = (1, 8, 32, 64, 128)
HEADS, KV_HEADS, HEAD_SIZE = 9, 3, 64
PEAK_SIZE = 2048
ATTENTION_BYTES = 64 << 20

Call = Callable[[], object]
Row = dict[str, float | int | str]


def gflops(calls: dict[str, tuple[float, Call]], rounds: int) -> Row:
    """The median speed of each call, given its floating-point operations; calls alternate."""
    speeds: dict[str, list[float]] = {name: [] for name in calls}
    for name in calls:
        calls[name][1]()
    for _ in range(rounds):
        for name, (operations, call) in calls.items():
            start = time.perf_counter()
            call()
            speeds[name].append(operations / (time.perf_counter() - start) / 1e9)
    return {name: round(median(found), 1) for name, found in speeds.items()}


def peak() -> tuple[float, Call]:
    """A product so large that only arithmetic counts."""
    a, b = torch.randn(2, PEAK_SIZE, PEAK_SIZE).unbind()
    return 2 * PEAK_SIZE**3, lambda: torch.mm(a, b)


def linear(out: int, inputs: int, rows: int, rounds: int) -> Row:
    """One shape with so many rows, over different weights in turn."""
    weights = [torch.randn(out, inputs) for _ in range(1 if out > 10_000 else 30)]
    ours = [ops.pack_linear(weight) for weight in weights]
    theirs = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]  # noqa: SLF001
    x = torch.randn(rows, inputs)
    operations = 2 * rows * out * inputs * len(weights)

    def onednn(packed: Tensor) -> object:
        return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")  # noqa: SLF001

    calls: dict[str, tuple[float, Call]] = {
        "peak": peak(),
        "plain": (operations, lambda: [torch.nn.functional.linear(x, w) for w in weights]),
        "onednn": (operations, lambda: [onednn(w) for w in theirs]),
        "ours": (operations, lambda: [ops.linear(x, w, out) for w in ours]),
    }
    return {"work": f"linear {out}x{inputs}", "rows": rows, **gflops(calls, rounds)}


def attention(length: int, batch: int, suffix: int, rounds: int) -> Row:
    """One decode step of so many rows on one prefix; `flash` does the prefix only."""
    layers = max(1, ATTENTION_BYTES // (2 * 4 * KV_HEADS * length * HEAD_SIZE))
    prefixes = [torch.randn(2, KV_HEADS, length, HEAD_SIZE).unbind() for _ in range(layers)]
    block, share = 16, HEADS // KV_HEADS
    blocks = max(1, -(-suffix // block))
    pool_k, pool_v = torch.randn(2, batch * blocks, KV_HEADS, block, HEAD_SIZE).unbind()
    tables = torch.arange(batch * blocks, dtype=torch.int32).view(batch, blocks)
    qkv = torch.randn(batch, (HEADS + 2 * KV_HEADS) * HEAD_SIZE)
    spans = torch.tensor([[suffix, 0, 0]] * batch, dtype=torch.int32)
    row, groups = torch.arange(batch, dtype=torch.int32), torch.tensor([0, batch])
    query = torch.randn(1, KV_HEADS, batch * share, HEAD_SIZE)
    scale = HEAD_SIZE**-0.5

    def ours() -> None:
        for k, v in prefixes:
            ops.shared_attention(
                qkv, [k], [v], groups, pool_k, pool_v, tables, row, spans, scale, HEADS, KV_HEADS
            )

    def flash() -> None:
        for k, v in prefixes:
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, k[None], v[None])  # noqa: SLF001

    per_key = 4 * batch * HEADS * HEAD_SIZE * layers
    calls: dict[str, tuple[float, Call]] = {
        "peak": peak(),
        "flash": (per_key * length, flash),
        "ours": (per_key * (length + suffix), ours),
    }
    return {"work": f"attention {length}+{suffix}", "rows": batch, **gflops(calls, rounds)}


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Timings of each; the median counts.")
@click.option("--threads", default=0, help="Threads; 0 leaves PyTorch's number.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout.")
def main(rounds: int, threads: int, as_json: bool) -> None:
    """The CPU kernels against PyTorch's own."""
    if threads:
        torch.set_num_threads(threads)
    load_kernels(Settings.load().cache_dir / "native")
    click.echo(describe_machine(), err=True)
    work = [partial(linear, out, inputs, n) for out, inputs in SHAPES for n in ROWS]
    work += [partial(attention, p, b, s) for p in PREFIXES for b in BATCHES for s in (0, 40)]
    if not as_json:
        names = ("GFLOP/s", "rows", "peak", "plain/flash", "onednn", "ours", "share")
        print("{:<20} {:>5} {:>7} {:>11} {:>7} {:>7} {:>6}".format(*names))
    for measure in work:
        found = measure(rounds)
        share = float(found["ours"]) / float(found["peak"])
        if as_json:
            print(json.dumps({**found, "share": round(share, 3)}), flush=True)
            continue
        other, onednn = found.get("plain", found.get("flash")), found.get("onednn", "")
        print(
            f"{found['work']:<20} {found['rows']:>5} {found['peak']:>7} {other:>11} {onednn:>7}"
            f" {found['ours']:>7} {share:>6.0%}",
            flush=True,
        )


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
