"""Versions that no label, rollout or unfinished job uses."""

from __future__ import annotations

import time

import pytest

from contract.errors import CodecError, NotFound
from contract.job_store import Claimed, JobStore
from contract.keys import rollout as rollout_key
from contract.records import RedisJobStore
from contract.redis_client import Client
from contract.settings import Settings
from producer.client import Producer
from templates.orphans import find_orphans
from templates.registry import Registry
from templates.rollouts.control import Rollouts
from templates.rollouts.rollout import Plan
from tests.support.published import COMPILED, MODEL, make_spec

PLAN = Plan(label="production", stable=1, canary=3, steps=(10_000,), bake_s=60.0)


@pytest.fixture
def pins(worker_client: Client, worker_settings: Settings) -> JobStore:
    return RedisJobStore(worker_client, worker_settings)


@pytest.fixture
def five(registry: Registry) -> Registry:
    """acme/triage with five versions; production is the first."""
    for number in range(5):
        registry.publish(make_spec(text=f"Sort {number}: "), COMPILED, MODEL)
    return registry


def _numbers(registry: Registry, pins: JobStore | None, tenant: str | None = None) -> list[int]:
    return [orphan.ref.version for orphan in find_orphans(registry, pins, tenant)]


def test_what_a_label_points_to_is_used(five: Registry, pins: JobStore) -> None:
    """Any label; the rest are orphans, the newest among them."""
    five.set_label("acme", "triage", "canary", 4)
    found = find_orphans(five, pins)
    assert [orphan.ref.version for orphan in found] == [2, 3, 5]
    assert [orphan.newest for orphan in found] == [False, False, True]
    assert all(orphan.prefix_tokens == 1 and 0 <= orphan.age_s < 60 for orphan in found)
    time.sleep(0.05)
    assert find_orphans(five, pins)[0].age_s > found[0].age_s
    five.remove_label("acme", "triage", "canary")
    assert _numbers(five, pins) == [2, 3, 4, 5]


def test_what_a_rollout_is_about_is_used(five: Registry, pins: JobStore) -> None:
    """Until it is over; then only what the label points to."""
    rollouts = Rollouts(five)
    rollouts.start("acme", "triage", PLAN)
    assert _numbers(five, pins) == [2, 4, 5]
    rollouts.promote("acme", "triage")
    assert _numbers(five, pins) == [1, 2, 4, 5]


def test_what_has_an_unfinished_job_is_used(
    five: Registry, pins: JobStore, producer: Producer
) -> None:
    """Queued or running; when it has ended, its version is an orphan."""
    job = producer.submit("acme/triage@2", {"ticket": "x"})
    assert _numbers(five, pins) == [3, 4, 5]
    assert _numbers(five, None) == [2, 3, 4, 5]
    claim = pins.claim(job.id, "worker", 30.0)
    assert isinstance(claim, Claimed)
    assert _numbers(five, pins) == [3, 4, 5]
    pins.cancel(job.id)
    pins.release(job.id, claim.job.fence)
    assert _numbers(five, pins) == [2, 3, 4, 5]


def test_retired_versions_are_none(five: Registry, pins: JobStore) -> None:
    """What the list says to do has been done."""
    for number in (2, 3, 5):
        five.retire("acme", "triage", number)
    assert _numbers(five, pins) == [4]
    five.retire("acme", "triage", 3, undo=True)
    assert _numbers(five, pins) == [3, 4]


def test_a_tenant_without_templates_has_none(registry: Registry, pins: JobStore) -> None:
    """And another's are its own."""
    for number in range(2):
        registry.publish(make_spec(text=f"Sort {number}: "), COMPILED, MODEL)
    assert [str(orphan.ref) for orphan in find_orphans(registry, pins, "acme")] == ["acme/triage@2"]
    assert find_orphans(registry, pins, "globex") == []


def test_a_rollout_that_cannot_be_read_is_an_error(
    five: Registry, pins: JobStore, client: Client
) -> None:
    """Its versions are not known, and none is called an orphan by mistake."""
    Rollouts(five).start("acme", "triage", PLAN)
    client.set(rollout_key("acme", "triage"), b"{}")
    with pytest.raises(CodecError):
        find_orphans(five, pins)


def test_a_version_that_is_lost_is_an_error(five: Registry, pins: JobStore, client: Client) -> None:
    """It names the version and what to do."""
    ref = find_orphans(five, pins)[0].ref
    client.delete(f"pq:acme:template:triage:version:{ref.digest}")
    five._lookup._kept.clear()
    with pytest.raises(NotFound, match="Publish the template again"):
        find_orphans(five, pins)
