"""`import producer` is quick and brings nothing heavy."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

import pytest

import producer

_PROBE = """
import sys, time
start = time.perf_counter()
import producer
seconds = time.perf_counter() - start
import json
heavy = sorted({"torch", "transformers", "redis", "celery", "pydantic"} & set(sys.modules))
print(json.dumps({"seconds": seconds, "heavy": heavy}))
"""


def probe(code: str = _PROBE) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_importing_takes_under_300_ms_and_loads_nothing_heavy() -> None:
    """Median of five fresh interpreters; no torch, transformers, redis or celery."""
    probes = [probe() for _ in range(5)]
    assert statistics.median(float(str(p["seconds"])) for p in probes) < 0.3
    assert all(p["heavy"] == [] for p in probes)


def test_using_a_producer_loads_neither_torch_nor_transformers() -> None:
    """The producer's whole code runs without the worker's libraries."""
    code = _PROBE.replace(
        "import json\n", "import json\nproducer.Producer(redis_url='redis://x')\n"
    )
    assert not {"torch", "transformers"} & set(str(probe(code)["heavy"]))
    assert "redis" in str(probe(code)["heavy"])


@pytest.mark.parametrize("name", producer.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """Each name in `__all__` loads, and is listed by dir()."""
    assert getattr(producer, name).__name__ == name
    assert name in dir(producer)


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    """A misspelt name is not looked for in other modules."""
    with pytest.raises(AttributeError, match="Produser"):
        producer.Produser  # noqa: B018
