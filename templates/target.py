"""Where new jobs of an address go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.types import VersionRef
from templates.rollouts.rollout import Phase, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What an address means for new jobs, as long as the template is not moved."""

    revision: int | None  # of the template; None for an address with a number, which never moves
    stable: VersionRef
    canary: VersionRef | None = None
    rollout: Rollout | None = None

    def ref_for(self, key: str) -> VersionRef:
        """The version of a job whose sticky key (or id) this is."""
        if self.rollout is None or self.canary is None:
            return self.stable
        chosen = self.rollout.version_for(self.stable.tenant, key)
        return self.canary if chosen == self.canary.version else self.stable

    def ref_of(
        self, job_id: str, variables: Mapping[str, Any], sticky_key: str | None
    ) -> VersionRef:
        """The version of a job."""
        if self.rollout is None:
            return self.stable
        key = self.rollout.key_of(variables) if sticky_key is None else sticky_key
        return self.ref_for(job_id if key is None else key)

    def shadow_of(self, ref: VersionRef, job_id: str) -> int:
        """The number of the version that is to answer a copy of a job of `ref`; 0 for none.

        None before the gates: a version that nobody has tried is not tried on jobs, seen or unseen.
        """
        rollout = self.rollout
        if rollout is None or rollout.phase is Phase.GATES or ref.version != rollout.plan.stable:
            return 0
        return rollout.plan.canary if rollout.shadows(ref.tenant, job_id) else 0

    def refs_for(
        self, variables: Mapping[str, Any], sticky_key: str | None
    ) -> tuple[VersionRef, ...]:
        """The versions that a job without an id may get."""
        if self.rollout is None or self.canary is None:
            return (self.stable,)
        key = self.rollout.key_of(variables) if sticky_key is None else sticky_key
        return (self.stable, self.canary) if key is None else (self.ref_for(key),)
