"""A new version takes a share of the jobs, and gives it back with one command."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from contract.errors import TemplateRefused, TimedOut
from contract.types import Result
from producer.client import Producer
from templates.registry import Registry
from templates.rollouts.control import Rollouts
from templates.rollouts.journal import Entry
from templates.rollouts.moves import Action
from templates.rollouts.plain import from_plain
from templates.rollouts.rollout import Finding, Phase, Plan, Rollout
from templates.rollouts.split import WHOLE
from templates.spec import TemplateSpec

CUSTOMERS = 16
SHARE = WHOLE // 2
WHO = "prefillq demo"
GATES_S = 300.0
JOBS_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryOutcome:
    """Which version answered whom, while the canary had its share and after it was taken back."""

    template: str
    stable: int
    canary: int
    weight: int  # of 10,000
    findings: tuple[Finding, ...]  # of the gates
    during: dict[str, int]  # customer -> version
    after: dict[str, int]
    journal: tuple[str, ...]  # a line per move, oldest first

    @property
    def problem(self) -> str | None:
        """What did not come out as promised; None when all did."""
        if set(self.during.values()) != {self.stable, self.canary}:
            return f"a canary at {self.weight / 100:g} % split its jobs so: {self.during}"
        if set(self.after.values()) != {self.stable}:
            return f"after the rollback jobs went to {sorted(set(self.after.values()))}"
        return None

    def to_dict(self) -> dict[str, Any]:
        return {
            "template": self.template,
            "stable": self.stable,
            "canary": self.canary,
            "weight": self.weight / WHOLE,
            "gates": {finding.gate: str(finding.outcome) for finding in self.findings},
            "during": self.during,
            "after": self.after,
            "journal": list(self.journal),
        }


def show_canary(
    registry: Registry,
    producer: Producer,
    *,
    stable: TemplateSpec,
    canary: int,
    say: Callable[[str], None],
    alive: Callable[[], None],
) -> CanaryOutcome:
    """Start a rollout at half of the jobs, submit for some customers, abort, and submit again.

    `stable` is version 1, which the label production points to; a worker must be serving it.
    """
    tenant, name, template = stable.tenant, stable.name, f"{stable.tenant}/{stable.name}"
    rollouts = Rollouts(registry)
    plan = Plan(label="production", stable=1, canary=canary, steps=(SHARE, WHOLE), bake_s=3600.0)
    say(f"rollout   {template}: version {canary} for {SHARE / 100:g} % once its gates pass")
    rollouts.start(tenant, name, plan, who=WHO)
    rollout = _baking(rollouts, tenant, name, alive)
    variables = stable.samples[0].input
    customers = [f"customer-{number}" for number in range(1, CUSTOMERS + 1)]

    def versions() -> dict[str, int]:
        results = _answers(producer, template, customers, variables, alive)
        return {who: result.ref.version for who, result in zip(customers, results, strict=True)}

    during = versions()
    say(f"rollout   {template}: back to version 1")
    rollouts.abort(tenant, name, who=WHO, why="the demo shows a rollback")
    after = versions()
    journal = rollouts.journal(tenant, name)
    return CanaryOutcome(
        template=template,
        stable=1,
        canary=canary,
        weight=rollout.weight,
        findings=_gates(journal),
        during=during,
        after=after,
        journal=tuple(
            f"{entry.action}: {entry.was or '-'} -> {entry.now or '-'}" for entry in journal
        ),
    )


def _baking(rollouts: Rollouts, tenant: str, name: str, alive: Callable[[], None]) -> Rollout:
    """The rollout once its first step holds."""
    give_up = time.monotonic() + GATES_S
    while time.monotonic() < give_up:
        alive()
        rollout = rollouts.get(tenant, name)
        if rollout is None:
            why = rollouts.journal(tenant, name)[-1].why
            raise TemplateRefused(f"the canary of {tenant}/{name} was stopped", given=why)
        if rollout.phase is Phase.BAKING:
            return rollout
        time.sleep(0.1)
    raise TimedOut(f"the gates of {tenant}/{name} took over {GATES_S:.0f} s")


def _gates(journal: Sequence[Entry]) -> tuple[Finding, ...]:
    """What was found before the version got its first job."""
    for entry in journal:
        if entry.action == Action.PHASE:
            return from_plain(entry.change["rollout"]).findings
    return ()


def _answers(
    producer: Producer,
    template: str,
    customers: Sequence[str],
    variables: dict[str, Any],
    alive: Callable[[], None],
) -> list[Result]:
    handles = [producer.submit(template, variables, sticky_key=who) for who in customers]
    alive()
    for _ in producer.wait(handles, timeout=JOBS_S):
        alive()
    return [handle.outcome(timeout=1) for handle in handles]
