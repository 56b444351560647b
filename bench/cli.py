"""`prefillq bench`: every measurement that README and docs quote."""

from __future__ import annotations

import importlib
from typing import Any

import click

# A command's name, and the module whose `main` it is. They load torch, so none is imported early.
_COMMANDS = {
    "cached": "bench.cached_vs_uncached",
    "end-to-end": "bench.end_to_end",
    "fork": "bench.fork",
    "grammars": "bench.grammars",
    "json": "bench.json_answers",
    "kernels": "bench.native_kernels",
    "labels": "bench.labels",
    "mixed": "bench.mixed",
    "parity": "bench.parity",
    "peers": "bench.peers.__main__",
    "peers-setup": "bench.peers.setup",
    "plots": "bench.plots",
    "replay": "bench.replayed",
    "templates": "bench.many_templates",
}


class _Late(click.Group):
    """Imports a benchmark once it is called or its help is read."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: Any = importlib.import_module(_COMMANDS[cmd_name]).main
        command.name = cmd_name
        found: click.Command = command
        return found


@click.command(cls=_Late)
def bench() -> None:
    """Measure the engine, alone and beside its peers, and the queue around it."""
    from worker.openmp import wait_passively

    wait_passively()
