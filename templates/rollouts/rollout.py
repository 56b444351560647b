"""A rollout: which version takes over from which, in what steps, how far it is, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from contract.canonical import canonical_json
from templates.rollouts.split import takes


class Phase(StrEnum):
    """Where a rollout is. It ends by being taken away: the journal says how."""

    GATES = "gates"  # a worker tries the version; no job has it yet
    WARMING = "warming"  # the next step waits until enough workers hold the prefix
    BAKING = "baking"  # a step's share of the jobs is being measured


class Outcome(StrEnum):
    """What a gate came to. Only a pass lets a rollout go on; only a fail ends it."""

    PASS = "pass"  # noqa: S105 - not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One gate's outcome, in words for people."""

    gate: str  # "failures", "cached_equals_uncached"
    outcome: Outcome
    message: str  # never a variable's value or a prompt's text


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much worse than the stable version's the canary's own jobs may be."""

    min_samples: int = 20  # jobs of each that a comparison needs; scores count by name
    failures: float = 0.02  # rise of the share of failed jobs
    fallbacks: float = 0.05  # rise of the share of jobs whose cache state is not hit
    latency: float = 1.5  # p95 of the time from submit to end, as a multiple
    length: float = 0.5  # change of the mean completion, as a share of the stable one's
    scores: Mapping[str, float] = field(default_factory=dict)  # name -> drop of the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `rollout start` asks for. It stays for the rollout's life."""

    label: str
    stable: int  # the version that the label points to
    canary: int
    steps: tuple[int, ...]  # weights of the canary, rising, of 10,000; the last may be less
    bake_s: float
    sticky_key: str | None = None  # the variable whose value decides; None: the job's id
    shadow: int = 0  # weight: jobs of the stable version that the canary also answers, unseen
    warm_workers: float = 1.0  # share of the workers for its model that must hold its prefix
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A plan and how far it is. Times are Redis server time, seconds since the epoch."""

    id: str  # also the salt of the split: 16 hex digits
    plan: Plan
    phase: Phase
    step: int  # whose weight holds now, from 0; -1 before the first
    started_at: float
    since: float  # of the phase
    paused: bool = False  # weights hold, nothing moves by itself
    findings: tuple[Finding, ...] = ()  # what the gates said last

    @property
    def weight(self) -> int:
        """Of 10,000 jobs, how many the canary takes now."""
        return 0 if self.step < 0 else self.plan.steps[self.step]

    @property
    def last_step(self) -> bool:
        return self.step == len(self.plan.steps) - 1

    def key_of(self, variables: Mapping[str, Any]) -> str | None:
        """The key in a job's variables; None when there is none, and its id decides."""
        name = self.plan.sticky_key
        if name is None or name not in variables:
            return None
        value = variables[name]
        return value if isinstance(value, str) else canonical_json(value)

    def version_for(self, tenant: str, key: str) -> int:
        """The version of a job whose sticky key (or id) this is."""
        chosen = takes(self.weight, salt=self.id, tenant=tenant, key=key)
        return self.plan.canary if chosen else self.plan.stable

    def shadows(self, tenant: str, job_id: str) -> bool:
        """True when the canary is to answer a copy of this job of the stable version."""
        return takes(self.plan.shadow, salt=f"{self.id}:shadow", tenant=tenant, key=job_id)
