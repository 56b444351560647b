"""The list of jobs that a canary is to answer too, and the stream of both answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract import keys
from contract.ids import new_job_id
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import Job, VersionRef
from templates.rollouts.compare import MAX_PAIRS, Answered, read_pairs
from worker.rollouts import shadow
from worker.rollouts.shadow import ShadowQueue

ROLLOUT = "ab" * 8
REF = VersionRef(tenant="acme", template="triage", version=1, digest="0" * 64)


@pytest.fixture
def queue(worker_client: Client, worker_settings: Settings) -> ShadowQueue:
    return ShadowQueue(worker_client, worker_settings)


def _job(**changed: object) -> Job:
    job = Job(id=new_job_id("acme"), ref=REF, variables={}, rollout=ROLLOUT, shadow=2)
    return replace(job, **changed)


def test_first_come_first_served(queue: ShadowQueue, client: Client) -> None:
    """What is put back is the next; the list has an expiry, and goes when it is empty."""
    first, second = _job(), _job()
    queue.offer(first)
    queue.offer(second)
    assert 0 < client.ttl(keys.shadow("acme", ROLLOUT)) <= shadow.WAITING_TTL_S
    assert queue.take("acme", ROLLOUT) == first.id
    queue.put_back("acme", ROLLOUT, first.id)
    assert [queue.take("acme", ROLLOUT) for _ in range(3)] == [first.id, second.id, None]
    assert not client.exists(keys.shadow("acme", ROLLOUT))
    assert queue.take("globex", ROLLOUT) is None


def test_a_full_list_loses_its_oldest(
    queue: ShadowQueue, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may have time for a day."""
    monkeypatch.setattr(shadow, "MAX_WAITING", 3)
    jobs = [_job() for _ in range(5)]
    for job in jobs:
        queue.offer(job)
    assert client.llen(keys.shadow("acme", ROLLOUT)) == 3
    assert queue.take("acme", ROLLOUT) == jobs[2].id


@pytest.mark.parametrize(
    "changed",
    [
        {"shadow": 0},
        {"shadow": -1},
        {"rollout": ""},
        {"rollout": "x"},
        {"rollout": "AB" * 8},
        {"rollout": f"{ROLLOUT}:x"},
        {"rollout": "*"},
    ],
    ids=str,
)
def test_what_a_record_says_names_no_key(
    queue: ShadowQueue, client: Client, changed: dict[str, object]
) -> None:
    """Whoever submits can write there what it likes."""
    queue.offer(_job(**changed))
    assert client.keys("pq:*") == []


def test_pairs_are_kept_up_to_a_number_and_a_time(
    queue: ShadowQueue, client: Client, admin_client: Client, admin_settings: Settings
) -> None:
    """The newest, for the admin to read."""
    stable = Answered(version=1, text="a", choice=None, tokens=1, seconds=0.1)
    canary = replace(stable, version=2)
    for number in range(MAX_PAIRS + 5):
        queue.write("acme", ROLLOUT, f"acme.{number:032x}", stable, canary)
    key = keys.shadowed("acme", ROLLOUT)
    assert client.xlen(key) == MAX_PAIRS
    assert 0 < client.ttl(key) <= shadow.PAIRS_TTL_S
    found = read_pairs(admin_client, admin_settings, "acme", ROLLOUT)
    assert (len(found.pairs), found.agreement) == (MAX_PAIRS, 1.0)
    assert found.pairs[0].job_id == f"acme.{MAX_PAIRS + 4:032x}"
    assert found.pairs[-1].job_id == f"acme.{5:032x}"
