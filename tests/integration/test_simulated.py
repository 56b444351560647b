"""The simulation against two real worker processes; `python -m bench.simulated` has more rounds."""

from __future__ import annotations

import pytest

from bench.simulated import offs_of, run
from contract.model_folder import ModelFolder


@pytest.mark.unrestricted("on a Redis of its own, with one user for all")
def test_waits_are_those_of_a_real_run(
    smollm2: ModelFolder,
) -> None:
    """p50 and p95 within 15 %, from the workers' own logs: the median of three rounds."""
    found = run(rounds=3, jobs=60, utilisation=0.95, seed=1, tokenizer_from=smollm2.path)
    assert min(one.real_p95_s for one in found) > 0.1
    off = offs_of(found)
    assert abs(off["replayed_p50_off"]) < 0.15, found
    assert abs(off["replayed_p95_off"]) < 0.15, found
