"""What a scrape shows of the worker as it is now, and of the queues as last seen."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from prometheus_client import CollectorRegistry

from contract.errors import RedisRefused
from contract.settings import Settings
from tests.support.scraped import Scraped
from worker.metrics import queues
from worker.metrics.queues import QueueLengths
from worker.metrics.state import WorkerState
from worker.refusals import Reason

DESCRIPTION: dict[str, Any] = {
    "id": "host-7-abcd",
    "host": "host",
    "model_digest": "a" * 64,
    "device": "cuda:0",
    "dtype": "bfloat16",
    "engine": "shared-prefix (native)",
    "admission": {"way": {"mode": "shared", "kernels": "native"}, "refused": [{}, {}]},
    "batch_size": 32,
    "running": 7,
    "draining": True,
    "refused_messages": {"content": 3},
    "cache": {
        "entries": 2,
        "bytes": 1234,
        "max_bytes": 5678,
        "evictions": {"budget": 4, "mutated": 1},
        "tenants": {"acme": {"hits": 1, "misses": 2}},
    },
}
LENGTHS = {("acme", "notes"): 3, ("globex", "notes"): 4, ("acme", "letters"): 0}


def scrape(*, by_tenant: bool = False, description: dict[str, Any] | None = None) -> Scraped:
    registry = CollectorRegistry()
    state = WorkerState(model_name="tiny", by_tenant=by_tenant)
    state.follow(lambda: description or DESCRIPTION, lambda: LENGTHS)
    registry.register(state)
    return Scraped.of(registry)


def test_gauges_and_counters_are_the_descriptions_numbers() -> None:
    """Each by the name that the design gives it."""
    page = scrape()
    assert page("jobs_running", model_name="tiny") == 7
    assert page("engine_rows") == 32
    assert page("worker_draining") == 1
    assert page("kv_cache_bytes") == 1234
    assert page("kv_cache_max_bytes") == 5678
    assert page("kv_cache_entries") == 2
    assert page("cache_evictions_total", reason="budget") == 4
    assert page("cache_evictions_total", reason="mutated") == 1
    assert page("messages_refused_total", reason="content") == 3
    assert page("messages_refused_total") == 3
    assert page("engine_ways_refused") == 2


def test_reasons_are_there_at_zero() -> None:
    """So that the first one is an increase."""
    none = DESCRIPTION | {"refused_messages": {}, "cache": DESCRIPTION["cache"] | {"evictions": {}}}
    page = scrape(description=none)
    assert page("cache_evictions_total", reason="budget") == 0
    for reason in get_args(Reason):
        assert page("messages_refused_total", reason=reason) == 0


def test_the_engine_and_the_build_are_named() -> None:
    """Which way was admitted, on what."""
    page = scrape()
    assert page("engine_info", mode="shared", kernels="native", device="cuda:0") == 1
    assert page("engine_info", dtype="bfloat16", model_digest="a" * 12) == 1
    assert page("build_info") == 1
    (build,) = [labels for name, labels, _ in page.samples_of_ours() if name.endswith("build_info")]
    assert build["celery"]
    assert build["python"].count(".") == 2


def test_a_fake_engine_without_a_way_has_an_empty_mode() -> None:
    """Nothing of an admission is needed for a scrape."""
    page = scrape(description=DESCRIPTION | {"admission": {}})
    assert page("engine_info", mode="") == 1


def test_queues_of_one_name_are_added_up_without_tenants() -> None:
    """And no tenant is named anywhere, whatever else the description holds."""
    page = scrape()
    assert page("queue_length", template="notes") == 7
    assert page("queue_length", template="letters") == 0
    assert "acme" not in page.page
    assert "globex" not in page.page


def test_queues_are_each_tenants_with_them() -> None:
    page = scrape(by_tenant=True)
    assert page("queue_length", template="notes", tenant="acme") == 3
    assert page("queue_length", template="notes", tenant="globex") == 4


def test_a_worker_that_loads_its_model_tells_of_its_build_alone() -> None:
    """There is nothing else yet, and the scrape does not fail."""
    registry = CollectorRegistry()
    registry.register(WorkerState(model_name="tiny"))
    page = Scraped.of(registry)
    assert page("build_info") == 1
    assert not page.has("jobs_running")


class FakeRedis:
    """LLEN."""

    def __init__(self) -> None:
        self.replies: dict[str, int | Exception] = {}
        self.asked: list[str] = []

    def pipeline(self, **_: bool) -> FakeRedis:
        self.asked = []
        return self

    def llen(self, key: str) -> None:
        self.asked.append(key)

    def execute(self, **_: bool) -> list[int | Exception]:
        return [self.replies[key] for key in self.asked]


class Queues:
    """Lengths over a fake Redis and a clock."""

    def __init__(self, model_digest: str = "a" * 64) -> None:
        self.now = 100.0
        self.redis = FakeRedis()
        self.lengths = QueueLengths(
            self.redis,  # type: ignore[arg-type]
            Settings(),
            model_digest=model_digest,
            served=lambda: [("acme", "notes"), ("acme", "letters"), ("acme", "notes")],
            clock=lambda: self.now,
        )


def _queue(template: str, model: str = "a") -> str:
    return f"pq:_broker:acme/{template}/{model * 12}"


def test_each_models_queue_is_counted_by_its_own_workers() -> None:
    """One template for two models has two; one that is served twice is asked for once."""
    waiting: dict[str, int | Exception] = {
        _queue("notes"): 5,
        _queue("letters"): 0,
        _queue("notes", "b"): 9,
        _queue("letters", "b"): 1,
    }
    for model, counts in (("a", (5, 0)), ("b", (9, 1))):
        rig = Queues(model_digest=model * 64)
        rig.redis.replies = waiting
        rig.lengths.look()
        found = rig.lengths.lengths()
        assert (found["acme", "notes"], found["acme", "letters"]) == counts
        assert len(rig.redis.asked) == 2


def test_a_look_that_is_too_old_is_not_shown() -> None:
    """A Redis that went away leaves no length standing for ever."""
    rig = Queues()
    assert rig.lengths.lengths() == {}
    rig.redis.replies = {_queue("notes"): 5, _queue("letters"): 0}
    rig.lengths.look()
    rig.now += queues.STALE_S
    assert rig.lengths.lengths() != {}
    rig.now += 0.1
    assert rig.lengths.lengths() == {}


def test_a_damaged_key_leaves_out_its_own_queue() -> None:
    """A tenant's producers can write it; a refusal of all is an error, though."""
    from redis.exceptions import ResponseError

    rig = Queues()
    wrong = ResponseError("WRONGTYPE Operation against a key")
    rig.redis.replies = {_queue("notes"): wrong, _queue("letters"): 2}
    rig.lengths.look()
    assert rig.lengths.lengths() == {("acme", "letters"): 2}
    rig.redis.replies = {_queue("notes"): wrong, _queue("letters"): wrong}
    with pytest.raises(RedisRefused):
        rig.lengths.look()
