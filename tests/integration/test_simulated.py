"""The simulation against two real worker processes; `python -m tests.simulated` has more rounds."""

from __future__ import annotations

from statistics import median

import pytest

from contract.model_folder import ModelFolder
from tests.simulated import offs_of, run


@pytest.mark.unrestricted("on a Redis of its own, with one user for all")
def test_waits_are_those_of_a_real_run(
    smollm2: ModelFolder,
) -> None:
    """From the workers' own logs, the median of three rounds: within 15 %; p50 or within 0.02 s.

    Where the median wait of 60 jobs is next to nothing, 15 % of it are less than a clock tells.
    """
    found = run(rounds=3, jobs=60, utilisation=0.95, seed=1, tokenizer_from=smollm2.path)
    assert min(one.real_p95_s for one in found) > 0.1
    off = offs_of(found)
    apart_s = median(one.replayed_p50_s - one.real_p50_s for one in found)
    assert abs(off["replayed_p50_off"]) < 0.15 or abs(apart_s) < 0.02, found
    assert abs(off["replayed_p95_off"]) < 0.15, found
