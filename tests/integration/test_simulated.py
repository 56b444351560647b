"""The simulation against two real worker processes; `python -m bench.simulated` has more rounds."""

from __future__ import annotations

import pytest

from bench.simulated import medians_of, run
from contract.model_folder import ModelFolder


@pytest.mark.unrestricted("on a Redis of its own, with one user for all")
def test_waits_are_those_of_a_real_run(
    smollm2: ModelFolder,
) -> None:
    """p50 and p95 within 15 %, from the workers' own logs: medians of three rounds."""
    found = medians_of(
        run(rounds=3, jobs=60, utilisation=0.95, seed=1, tokenizer_from=smollm2.path)
    )
    assert found["real_p50_s"] > 0.1
    assert found["replayed_p50_s"] == pytest.approx(found["real_p50_s"], rel=0.15)
    assert found["replayed_p95_s"] == pytest.approx(found["real_p95_s"], rel=0.15)
