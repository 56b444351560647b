"""Pictures of what `bench.peers` measured.

prefillq bench plots docs/bench/peers-a.json docs/bench/peers-c.json --out docs/bench
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from contract.console import emit_json, json_option

_NAMES = {
    "ours": "prefillq",
    "openvino": "OpenVINO GenAI",
    "llamacpp": "llama.cpp",
    "generate_batch": "generate_batch",
    "copy": "deep copy + generate",
    "uncached": "uncached generate",
}
# One colour a way, the same in all pictures; distinguishable without seeing red or green.
_COLOURS = {
    "ours": "#0072B2",
    "openvino": "#D55E00",
    "llamacpp": "#009E73",
    "generate_batch": "#CC79A7",
    "copy": "#999999",
    "uncached": "#444444",
}


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path())
@json_option
def main(*, files: Sequence[Path], out: Path, as_json: bool) -> None:
    """Draw each result of `prefillq bench peers --json`: seconds per job."""
    import matplotlib as mpl

    mpl.use("Agg")
    drawn = []
    for file in files:
        outcome = json.loads(file.read_text("utf-8"))
        target = out / f"{file.stem}.png"
        _draw(outcome, target)
        drawn.append(str(target))
    if as_json:
        emit_json({"drawn": drawn})
    else:
        click.echo("\n".join(drawn))


def _draw(outcome: dict[str, Any], target: Path) -> None:
    from matplotlib import pyplot as plt

    rows = outcome["rows"]
    lengths = sorted({row["prefix_len"] for row in rows})
    by_prefix = len(lengths) > 1
    axis = "prefix_len" if by_prefix else "batch"
    figure, plot = plt.subplots(figsize=(7, 4.2), dpi=160, layout="constrained")
    for peer, name in _NAMES.items():
        # The same peer, however its threads wait.
        points = sorted(
            (row[axis], row["median_s"])
            for row in rows
            if row["peer"].removesuffix("_spinning") == peer
        )
        if points:
            xs, ys = zip(*points, strict=True)
            plot.plot(xs, ys, "o-", color=_COLOURS[peer], label=name)
    floors = sorted({(row[axis], row["floor_s"]) for row in rows if row.get("floor_s")})
    if floors:
        xs, ys = zip(*floors, strict=True)
        plot.plot(xs, ys, "k:", label="matrix products at the GEMM peak")
    ticks = sorted({row[axis] for row in rows})
    plot.set_xscale("log", base=2)
    plot.set_yscale("log")
    for plain in (plot.yaxis.set_major_formatter, plot.yaxis.set_minor_formatter):
        plain(lambda seconds, _: f"{seconds:g}")
    plot.tick_params(axis="y", which="both", labelsize=7)
    plot.set_xticks(ticks, [str(tick) for tick in ticks])
    plot.set_xlabel("tokens of the prefix" if by_prefix else "jobs at once")
    plot.set_ylabel("seconds per job")
    what = f"batch {rows[0]['batch']}" if by_prefix else f"prefix of {lengths[0]} tokens"
    plot.set_title(
        f"{outcome['model']}, float32, {what}, suffix 27, 32 new tokens\n{outcome['machine']}",
        fontsize=7,
    )
    plot.grid(visible=True, which="both", alpha=0.25)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(target)
    plt.close(figure)


if __name__ == "__main__":
    main()
