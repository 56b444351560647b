"""A job store, in memory or in Redis, and a way to let time pass in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from contract import keys
from contract.ids import new_job_id
from contract.job_store import Claimed, JobStore, Refused
from contract.memory_store import MemoryJobStore
from contract.records import RedisJobStore
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import Job, JobState, Result, VersionRef

REF = VersionRef(tenant="acme", template="triage", version=3, digest="d" * 64)


@dataclass(kw_only=True)
class Rig:
    """A store, and a way to let time pass in it."""

    store: JobStore
    advance: Callable[[float], None]
    outcomes: Callable[[str], list[dict[str, str]]]  # what is in a stream `keys.outcomes`
    # Gives REF's template this revision and these retired versions, as moves of it would.
    move_template: Callable[[int, Collection[int]], None]

    def submit(self, **terms: Any) -> str:
        ref = terms.pop("ref", REF)
        terms.setdefault("input_digest", "i" * 64)
        queue = keys.queue(ref.tenant, ref.template, "m" * 64)
        job = Job(
            id=new_job_id(ref.tenant),
            ref=ref,
            queue=queue,
            variables={"ticket": "refund?"},
            rollout=terms.pop("rollout", ""),
        )
        return self.store.submit(job, **terms).job_id

    def claim(self, job_id: str, worker: str = "w1", lease_s: float = 10.0) -> Claimed:
        claim = self.store.claim(job_id, worker, lease_s, alone=True)
        assert isinstance(claim, Claimed), claim
        return claim

    def stop_reason(self, job_id: str, fence: int) -> str | None:
        [reason] = self.store.stop_reasons([(job_id, fence)])
        return reason

    def refusal(self, job_id: str) -> str:
        claim = self.store.claim(job_id, "w2", 10.0)
        assert isinstance(claim, Refused), claim
        return claim.reason


@dataclass
class Clock:
    now: float = field(default_factory=time.time)

    def __call__(self) -> float:
        return self.now


def memory_rig(settings: Settings) -> Rig:
    clock = Clock()

    def advance(seconds: float) -> None:
        clock.now += seconds

    store = MemoryJobStore(settings, clock=clock)
    return Rig(
        store=store,
        advance=advance,
        outcomes=lambda key: store.outcomes[key],
        move_template=lambda revision, retired: store.template_moved(
            REF.tenant, REF.template, revision, retired=retired
        ),
    )


def redis_rig(client: Client, settings: Settings, store: JobStore | None = None) -> Rig:
    return Rig(
        store=store or RedisJobStore(client, settings),
        advance=lambda seconds: _age_all(client, seconds),
        outcomes=lambda key: _entries(client, key),
        move_template=lambda revision, retired: _move(client, revision, retired),
    )


def _move(client: Any, revision: int, retired: Collection[int]) -> None:
    client.set(keys.revision(REF.tenant, REF.template), revision)
    key = keys.retired(REF.tenant, REF.template)
    client.delete(key)
    for number in retired:
        client.hset(key, str(number), "1")


def _entries(client: Any, key: str) -> list[dict[str, str]]:
    return [
        {name.decode(): value.decode() for name, value in fields.items()}
        for _, fields in client.xrange(key)
    ]


def _age_all(client: Any, seconds: float) -> None:
    """Let time pass in Redis by moving everything it remembers into the past."""
    for key in client.keys("pq:acme:*"):
        kind = client.type(key)
        if kind == b"hash":
            for name in (
                "created_at",
                "deadline_at",
                "lease_until",
                "finished_at",
                "not_before",
                "at",
            ):
                if (value := client.hget(key, name)) is not None:
                    client.hset(key, name, f"{float(value) - seconds:.6f}")
        if kind == b"zset":
            for member, score in client.zrange(key, 0, -1, withscores=True):
                client.zadd(key, {member: score - seconds})
        if (left := client.pttl(key)) > 0:
            client.pexpire(key, max(1, left - round(seconds * 1000)))
    time.sleep(0.005)  # so that what has 1 ms left is gone


def answer(claim: Claimed, **changes: Any) -> Result:
    given = {"status": JobState.SUCCEEDED, "text": "billing", "finish_reason": "stop"} | changes
    return Result(
        job_id=claim.job.id, ref=claim.job.ref, attempt=claim.job.attempt, worker="w1", **given
    )
