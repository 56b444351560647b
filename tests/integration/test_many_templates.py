"""What a job costs does not follow the number of templates that there are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from contract.model_folder import ModelFolder

RATIO = 2.0  # goal, also of 1,000 templates against 10: `prefillq bench templates`


@pytest.mark.timeout(280)
def test_many_templates_cost_a_job_less_than_twice_as_much(smollm2: ModelFolder) -> None:
    """200 of 20 tenants against 10 of 10: submit, from there to the claim, and a look of `scale`.

    At one of them; and what a look at all of them costs for each.
    """
    assert smollm2.path.is_dir()  # whose tokenizer the bench takes
    size = ["--templates=200", "--tenants=20", "--jobs=30", "--rounds=3"]
    run = subprocess.run(
        [sys.executable, "-m", "bench.many_templates", *size, "--json"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=270,
        check=True,
    )
    ratios = json.loads(run.stdout)["ratios"]
    names = ("submit_ms", "claim_ms", "scale_look_at_one_ms", "scale_look_each_ms")
    measured = {name: ratios[name] for name in names}
    assert all(ratio < RATIO for ratio in measured.values()), measured
