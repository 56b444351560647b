"""What a producer-only installation pays for an import."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

HEAVY = ("torch", "transformers", "numpy", "redis", "celery", "jsonschema")


def _seconds(statement: str) -> float:
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(run.stdout)


def test_import_producer_takes_under_three_tenths_of_a_second() -> None:
    """Median of five fresh processes."""
    _seconds("import producer")  # compiles the bytecode
    assert median(_seconds("import producer") for _ in range(5)) < 0.3


def test_import_producer_loads_nothing_heavy() -> None:
    """Neither torch nor anything that only a worker or an actual call needs."""
    code = f"import sys, producer; print([m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_whole_producer_side_runs_without_torch() -> None:
    """Publishing and submitting import neither torch nor transformers."""
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "import producer.client, producer.batch.steps, producer.commands\n"
        "import templates.cli, tenants.cli\n"
        "import templates.registry, templates.compile, contract.records, tenants.accounts\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
