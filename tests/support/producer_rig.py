"""A producer on parts that need no Redis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from contract.errors import NotFound, RedisUnreachable
from contract.ids import TemplateAddress
from contract.job_store import Claimed
from contract.memory_store import MemoryJobStore
from contract.settings import Settings
from contract.types import JobState, Result, VersionRef
from producer.bell import Ring
from producer.client import Producer
from producer.desk import Parts
from templates.rollouts.rollout import Rollout
from templates.target import Target
from templates.version import PublishedVersion
from tests.support.published import make_spec, make_version

TICKET = {"ticket": "refund?"}


class Shelf:
    """Versions of one template, by label."""

    def __init__(self) -> None:
        self.versions = {1: make_version(), 2: make_version(make_spec(text="Two: "), number=2)}
        self.labels = {"production": 1}
        self.revision = 0
        self.rollout: Rollout | None = None

    def target(self, address: TemplateAddress) -> Target:
        number = address.version or self.labels.get(address.label or "")
        if number not in self.versions or address.name != "triage":
            raise NotFound("no such template", given=address)
        revision = None if address.version else self.revision
        if address.label != "production" or self.rollout is None:
            return Target(revision=revision, stable=self.versions[number].ref)
        canary = self.versions[self.rollout.plan.canary].ref
        return Target(
            revision=revision,
            stable=self.versions[number].ref,
            canary=canary,
            rollout=self.rollout,
        )

    def get(self, ref: VersionRef) -> PublishedVersion:
        return self.versions[ref.version]


class Bell:
    """Remembers who was rung; fails on request, after `works_for` more."""

    def __init__(self) -> None:
        self.rung: list[Ring] = []
        self.works_for = 10**9

    def ring(self, rings: Iterable[Ring]) -> None:
        for one in rings:
            if self.works_for == 0:
                raise RedisUnreachable("no bell", given="test", remedy="Mend it.")
            self.works_for -= 1
            self.rung.append(one)

    def close(self) -> None:
        pass


class Rig:
    def __init__(self) -> None:
        settings = Settings(default_deadline_s=1000.0)
        self.store = MemoryJobStore(settings)
        self.shelf, self.bell = Shelf(), Bell()
        parts = Parts(store=self.store, undo_store=self.store, versions=self.shelf, bell=self.bell)
        self.producer = Producer(settings, parts=parts)

    def run(self, job_id: str, **changes: Any) -> None:
        claim = self.store.claim(job_id, "w1", 60)
        assert isinstance(claim, Claimed)
        given = {"status": JobState.SUCCEEDED, "text": "billing"} | changes
        self.store.commit(Result(job_id=job_id, ref=claim.job.ref, **given), claim.job.fence)
