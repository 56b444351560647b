"""The simulation against two real worker processes; `python -m tests.simulated` has more rounds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import pytest

from contract.model_folder import ModelFolder
from tests.simulated import offs_of
from tests.support.simulated_rounds import COLD, Round, run, warm

pytestmark = pytest.mark.unrestricted("on a Redis of its own, with one user for all")


def test_waits_are_those_of_a_real_run(smollm2: ModelFolder) -> None:
    """At 85 % of the slots' time, from the workers' own logs, and from the round before."""
    found = run([warm(0.85)], rounds=3, jobs=40, seed=12, tokenizer_from=smollm2.path)
    assert min(one.real_p95_s for one in found) > 0.3, "seeds whose jobs wait"
    assert_within(found)
    # Where jobs took as long as in the round before, and this machine is the one that it was.
    steady = [one for one in found if abs(one.predicted_taken_s / one.real_taken_s - 1) < 0.03]
    assert not steady or abs(offs_of(steady)["predicted_p95_off"]) < 0.15, steady


def test_so_are_those_of_workers_that_start_and_load(smollm2: ModelFolder) -> None:
    """Jobs come while both workers start, and each loads all of eight prefixes."""
    found = run([COLD], rounds=3, jobs=40, seed=1, predict=False, tokenizer_from=smollm2.path)
    assert_within(found)
    assert median(one.real_loads for one in found) > len(COLD.templates)
    assert median(abs(one.replayed_loads - one.real_loads) for one in found) <= 1, found


def assert_within(found: Sequence[Round]) -> None:
    """The median of the rounds: p95 within 15 %, p50 within that or 0.02 s.

    Where the median wait is next to nothing, 15 % of it are less than a clock tells.
    """
    off = offs_of(found)
    apart_s = median(one.replayed_p50_s - one.real_p50_s for one in found)
    assert abs(off["replayed_p50_off"]) < 0.15 or abs(apart_s) < 0.02, found
    assert abs(off["replayed_p95_off"]) < 0.15, found
