"""What the benchmarks of the engine have in common: one model, its engines and random prompts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from contract.logs import configure_logs
from contract.settings import Settings
from templates.spec import GenerationSpec
from worker.device import default_dtype, pick_device
from worker.engine.admission import admit
from worker.engine.base import Engine
from worker.engine.reference import ReferenceEngine
from worker.engine.shared.build import SharedOptions
from worker.model import LoadedModel, load_model
from worker.models.fetch import fetch_model
from worker.prefix.entry import PrefixKey

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The admitted engine and the plain path, over one model in memory."""

    model: LoadedModel
    ours: Engine
    plain: ReferenceEngine
    way: str

    def key(self, name: str) -> PrefixKey:
        """The key of a prefix called `name`."""
        return self.model.prefix_key("bench", name)

    def random_ids(self, count: int, *seed: object) -> tuple[int, ...]:
        """Ids of ordinary tokens, the same for the same seed."""
        rng = random.Random(repr(seed))
        return tuple(rng.choices(range(300, self.model.module.config.vocab_size), k=count))


def load_engines(name: str, *, rows: int, threads: int | None = None) -> Engines:
    """Load a model and admit it, as a worker does it."""
    configure_logs(level="WARNING")  # to stderr; the figures have stdout to themselves
    if threads is not None:
        torch.set_num_threads(threads)
    settings = Settings.load()
    device = pick_device("auto")
    model = load_model(fetch_model(name, settings), device=device, dtype=default_dtype(device))
    ours, admission = admit(
        model,
        SharedOptions(rows=rows, native_folder=settings.cache_dir / "native"),
        folder=settings.cache_dir / "admission",
    )
    return Engines(model=model, ours=ours, plain=ReferenceEngine(model), way=str(admission.way))


def exactly(tokens: int) -> GenerationSpec:
    """Greedy, and no end before so many tokens."""
    return GenerationSpec(max_new_tokens=tokens, min_new_tokens=tokens)


def timed(call: Callable[[], _T]) -> tuple[float, _T]:
    """Wall seconds, and what came out."""
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
