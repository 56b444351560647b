"""Versions that nothing points to any more: no label, no rollout and no unfinished job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from contract.types import VersionRef
from templates.reading import RegistryReader, TemplateSummary


class Pins(Protocol):
    """Who knows of unfinished jobs; a job store does."""

    def pinned(self, tenant: str, template: str) -> Mapping[int, int]:
        """Version -> how many jobs of it have not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A version that could be retired."""

    ref: VersionRef
    prefix_tokens: int
    age_s: float  # since it was published, by Redis's clock
    newest: bool  # of its template: perhaps it is only not in use yet

    def to_dict(self) -> dict[str, Any]:
        return {
            "address": str(self.ref),
            "version": self.ref.version,
            "digest": self.ref.digest,
            "prefix_tokens": self.prefix_tokens,
            "age_s": self.age_s,
            "newest": self.newest,
        }


def find_orphans(
    registry: RegistryReader, pins: Pins | None, tenant: str | None = None
) -> list[Orphan]:
    """Of a tenant, or of all that this user may see; oldest versions of a template first.

    Retired versions are none: there is nothing left to do about them. Without `pins` unfinished
    jobs are not asked for. Raises what the registry raises, CodecError for a rollout that cannot be
    read among it: the versions that it is about are not known then.
    """
    return [
        orphan
        for template in registry.list_templates(tenant)
        for orphan in _of(registry, pins, template)
    ]


def _of(registry: RegistryReader, pins: Pins | None, template: TemplateSummary) -> list[Orphan]:
    tenant, name = template.tenant, template.name
    sight = registry.sight(tenant, name)
    if sight.damage is not None:
        raise sight.damage
    state, rollout = sight.state, sight.state.rollout
    used = {*state.labels.values(), *state.retired}
    if rollout is not None:
        used |= {rollout.plan.stable, rollout.plan.canary}
    if pins is not None and state.versions - used:
        used |= pins.pinned(tenant, name).keys()
    return [
        Orphan(
            ref=version.ref,
            prefix_tokens=version.prefix_tokens,
            age_s=max(0.0, sight.now - version.published_at),
            newest=version.ref.version == max(state.versions),
        )
        for version in (registry.versions(tenant, name) if state.versions - used else ())
        if version.ref.version not in used
    ]
