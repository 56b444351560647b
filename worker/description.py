"""What a worker says of its templates, and of the versions that it has warmed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from worker.catalog import Served
from worker.prefixes import PrefixService, WarmVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionState:
    """One version that was warmed here."""

    warm: WarmVersion
    cached: bool  # its entry is in memory now
    pinned: bool

    def to_dict(self) -> dict[str, Any]:
        warm = self.warm
        error = warm.parity.max_logit_error
        return {
            "version": str(warm.ref),
            "digest": warm.ref.digest,
            "prefix_tokens": warm.prefix_tokens,
            "bytes": warm.nbytes,
            "cached": self.cached,
            "pinned": self.pinned,
            "prefill_s": warm.prefill_s,
            "parity": warm.parity.outcome,
            "parity_tokens": warm.parity.checked_tokens,
            # Infinite where only one of the two has masked a token, which no codec of ours carries.
            "max_logit_error": error if math.isfinite(error) else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateState:
    """One template that is served, or that was."""

    served: bool
    versions: tuple[VersionState, ...]  # oldest first

    def to_dict(self) -> dict[str, Any]:
        return {"served": self.served, "versions": [one.to_dict() for one in self.versions]}


def template_states(serving: Iterable[Served], prefixes: PrefixService) -> dict[str, TemplateState]:
    """By address. Equal to an earlier one where nothing changed, and cheap to compare with it."""
    cached = {listed.key: listed.pinned for listed in prefixes.cache.entries()}
    versions: dict[str, list[VersionState]] = {}
    for warm in prefixes.warm_versions():
        state = VersionState(
            warm=warm, cached=warm.key in cached, pinned=cached.get(warm.key, False)
        )
        versions.setdefault(f"{warm.ref.tenant}/{warm.ref.template}", []).append(state)
    served = {f"{one.tenant}/{one.template}" for one in serving}
    return {
        address: TemplateState(served=address in served, versions=tuple(versions.get(address, ())))
        for address in served | versions.keys()
    }
