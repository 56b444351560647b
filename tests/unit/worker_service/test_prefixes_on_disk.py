"""A worker that starts again takes its prefixes from disk, and computes none of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from contract.types import CacheState, VersionRef
from tests.support.tiny_models import random_ids, tiny_model
from worker import prefixes
from worker.engine.base import Generation, GenerationRequest
from worker.engine.parity import Parity, check_parity
from worker.engine.reference import ReferenceEngine
from worker.model import LoadedModel
from worker.prefix.cache import PrefixCache
from worker.prefix.disk import PrefixStore
from worker.prefix.entry import PrefixEntry, PrefixKey
from worker.prefixes import PrefixService, Served

PREFIX = random_ids(64, seed=1)
JOB = PREFIX + random_ids(20, seed=2)
VERSION: Any = SimpleNamespace(
    ref=VersionRef(tenant="acme", template="notes", version=1, digest="v1"),
    compiled=SimpleNamespace(prefix_ids=PREFIX),
)


class CountingEngine:
    """The reference engine, and how often each of its two methods was called."""

    batch_size = 1

    def __init__(self, model: LoadedModel, name: str) -> None:
        self.name = name
        self.prefills = 0
        self.generations = 0
        self._engine = ReferenceEngine(model)

    def prefill(self, key: PrefixKey, ids: Sequence[int]) -> PrefixEntry:
        self.prefills += 1
        return self._engine.prefill(key, ids)

    def generate(self, request: GenerationRequest) -> Generation:
        self.generations += 1
        return self._engine.generate(request)


@dataclass
class Worker:
    """What one worker process has of all this; `counts` are prefills and generations so far."""

    folder: Path
    name: str = "reference"
    on_disk: bool = True
    model: LoadedModel = field(default_factory=tiny_model)

    def __post_init__(self) -> None:
        self.engine = CountingEngine(self.model, self.name)
        self.store = PrefixStore(self.folder, max_bytes=10**6)
        self.cache = PrefixCache(10**6)
        self.prefixes = PrefixService(
            cache=self.cache,
            engine=self.engine,
            model=self.model,
            store=self.store if self.on_disk else None,
        )

    def serve(self) -> Served:
        with self.prefixes.serve(VERSION, JOB) as served:
            return served

    @property
    def counts(self) -> tuple[int, int]:
        return self.engine.prefills, self.engine.generations


CHECK = 4  # generations of one parity check: two prompts, each with the entry and without it


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models compute on one thread: handing such small work to several takes longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_second_worker_computes_nothing(tmp_path: Path) -> None:
    """Neither the prefix nor the check: its first job is a hit with no prefill time, on an entry
    that is the first worker's to the bit, and both workers report the same check."""
    first, second = Worker(tmp_path), Worker(tmp_path)
    cold, warm = first.serve(), second.serve()
    assert (first.counts, second.counts) == ((1, CHECK), (0, 0))
    assert (cold.cache.state, cold.cache.reason, cold.cached_tokens) == (CacheState.MISS, "cold", 0)
    assert (warm.cache.state, warm.cache.reason, warm.cached_tokens) == (CacheState.HIT, "", 64)
    assert cold.prefill_s > warm.prefill_s == 0.0
    assert cold.entry is not None
    assert warm.entry is not None
    assert warm.entry.checksum == cold.entry.checksum
    (before,), (after,) = first.prefixes.warm_versions(), second.prefixes.warm_versions()
    assert after == replace(before, prefill_s=0.0)
    assert before.prefill_s > 0


def test_the_answer_is_that_of_the_plain_path(tmp_path: Path) -> None:
    """Invariant 4 through disk: a restarted worker says what it would say without any cache."""
    Worker(tmp_path).serve()
    worker = Worker(tmp_path)
    served = worker.serve()
    assert served.entry is not None
    parity = check_parity(worker.engine, served.entry, JOB, max_new_tokens=40)
    assert (parity.outcome, parity.checked_tokens) == ("identical", 40)


def test_a_load_counts_as_a_hit(tmp_path: Path) -> None:
    """The cache's own counts agree with what its jobs are told."""
    Worker(tmp_path).serve()
    worker = Worker(tmp_path)
    states = [worker.serve().cache.state for _ in range(3)]
    stats = worker.cache.stats()
    assert states == [CacheState.HIT] * 3
    assert (stats.hits, stats.misses) == (3, 0)
    assert stats.tenants["acme"].hits == 3


def test_warming_takes_what_is_there(tmp_path: Path) -> None:
    """`--warm all` after a restart costs a read."""
    Worker(tmp_path).serve()
    worker = Worker(tmp_path)
    warm = worker.prefixes.warm(VERSION, JOB)
    assert warm is not None
    assert (warm.prefill_s, warm.parity.outcome) == (0.0, "identical")
    assert worker.counts == (0, 0)


def test_an_entry_that_left_memory_comes_back_from_disk(tmp_path: Path) -> None:
    """Evicted within a run it is read, not computed."""
    worker = Worker(tmp_path)
    worker.serve()
    worker.prefixes.drop(VERSION, "test")
    assert worker.serve().cache.state is CacheState.HIT
    assert worker.counts == (1, CHECK)


@pytest.mark.parametrize("damaged", [True, False])
def test_a_file_that_is_lost_is_made_again(tmp_path: Path, damaged: bool) -> None:
    """Damaged or removed, the prefix is computed again and stored for the next worker."""
    Worker(tmp_path).serve()
    (path,) = tmp_path.iterdir()
    if damaged:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    else:
        path.unlink()
    second, third = Worker(tmp_path), Worker(tmp_path)
    assert (second.serve().cache.reason, third.serve().cache.reason) == ("cold", "")
    assert (second.counts, third.counts) == ((1, CHECK), (0, 0))


def test_a_file_that_is_lost_while_the_worker_runs_is_made_again(tmp_path: Path) -> None:
    """The check of this run still holds; only the prefix is computed again."""
    worker = Worker(tmp_path)
    worker.serve()
    worker.store.remove(worker.prefixes.key(VERSION))
    worker.prefixes.drop(VERSION, "test")
    assert worker.serve().cache.reason == "cold"
    assert worker.counts == (2, CHECK)
    assert worker.store.usage().files == 1


def test_another_engine_checks_for_itself(tmp_path: Path) -> None:
    """It takes the entry, not the other's word for it; its own check is then stored."""
    Worker(tmp_path).serve()
    second, third = Worker(tmp_path, name="other"), Worker(tmp_path, name="other")
    assert second.serve().cache.state is third.serve().cache.state is CacheState.HIT
    assert (second.counts, third.counts) == ((0, CHECK), (0, 0))
    assert second.store.usage().files == 1


def _differs(*given: Any, **named: Any) -> Parity:
    return replace(check_parity(*given, **named), outcome="differs")


def test_a_prefix_that_fails_the_check_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what gives the plain path's tokens is kept."""
    monkeypatch.setattr(prefixes, "check_parity", _differs)
    worker = Worker(tmp_path)
    assert worker.serve().cache.reason == "parity_differs"
    assert worker.store.usage().files == 0


def test_what_fails_the_check_after_loading_does_not_condemn_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is forgotten, and the version judged by a prefix computed here."""
    Worker(tmp_path).serve()
    checks = iter([_differs, check_parity])

    def check(*given: Any, **named: Any) -> Parity:
        return next(checks)(*given, **named)

    monkeypatch.setattr(prefixes, "check_parity", check)
    second, third = Worker(tmp_path, name="other"), Worker(tmp_path, name="other")
    assert (second.serve().cache.reason, third.serve().cache.reason) == ("cold", "")
    assert (second.counts, third.counts) == ((1, 2 * CHECK), (0, 0))


def test_what_fails_here_in_every_form_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what was loaded nor what was computed stays for the next start to try."""
    Worker(tmp_path).serve()
    monkeypatch.setattr(prefixes, "check_parity", _differs)
    worker = Worker(tmp_path, name="other")
    assert worker.serve().cache.reason == "parity_differs"
    assert worker.store.usage().files == 0


def test_a_worker_checks_a_version_once(tmp_path: Path) -> None:
    """Its own finding holds, also when another engine's is what the file names by now."""
    first = Worker(tmp_path)
    first.serve()
    Worker(tmp_path, name="other").serve()
    first.prefixes.drop(VERSION, "test")
    assert first.serve().cache.state is CacheState.HIT
    assert first.counts == (1, CHECK)


@pytest.mark.parametrize("seed", [0, 1])
def test_other_weights_are_another_prefix(tmp_path: Path, seed: int) -> None:
    """Invariant 5: a model fetched anew under its old name finds nothing that is not its own."""
    Worker(tmp_path).serve()
    worker = Worker(tmp_path, model=tiny_model(seed=seed))
    worker.serve()
    assert worker.engine.prefills == seed


def test_without_a_store_nothing_is_written(tmp_path: Path) -> None:
    """`--disk-bytes 0`."""
    worker = Worker(tmp_path, on_disk=False)
    assert worker.serve().cache.reason == "cold"
    worker.prefixes.drop(VERSION, "test")
    assert worker.serve().cache.reason == "cold"
    assert list(tmp_path.iterdir()) == []
