"""CPU threads that sleep while they wait."""

from __future__ import annotations

import os


def wait_passively() -> None:
    """Make idle OpenMP threads sleep; to be called before torch is imported.

    By default they spin. Where two workers, or anything else, share the cores, a spinning
    thread keeps the one it waits for from running. Where a worker has its cores to itself spinning
    is a little faster; `OMP_WAIT_POLICY=ACTIVE` in the environment chooses it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
