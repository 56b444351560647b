"""Which workers hold a version's prefix, and making this one hold it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contract.errors import PrefillqError
from contract.logs import get_logger
from contract.types import VersionRef
from contract.worker_reports import is_warm
from templates.fill import fill
from templates.rollouts.rollout import Finding, Outcome
from templates.version import PublishedVersion
from worker.prefixes import PrefixService

if TYPE_CHECKING:  # needs torch, which a fake engine does without
    from worker.model import LoadedModel

log = get_logger(__name__)

AGAIN_S = 30.0  # what could not be warmed, or was evicted, is tried again after this


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmth:
    """How many workers serve a version, and how many of them hold its prefix."""

    workers: int
    warm: int

    def enough(self, share: float) -> bool:
        """True when the share of them is warm, and at least one."""
        return self.warm >= self._needed(share)

    def finding(self, share: float) -> Finding:
        """The same in words."""
        return Finding(
            gate="warm_workers",
            outcome=Outcome.PASS if self.enough(share) else Outcome.INCONCLUSIVE,
            message=f"{self.warm} of {self.workers} workers hold the prefix; "
            f"{self._needed(share)} are needed",
        )

    def _needed(self, share: float) -> int:
        return max(1, math.ceil(round(share * self.workers, 9)))


def warmth_of(reports: Iterable[Mapping[str, Any]], version: PublishedVersion) -> Warmth:
    """From what workers report of themselves; those that are ending do not count.

    Where there is nothing to hold (no prefix, or a model that keeps none) a worker is warm.
    """
    ref = version.ref
    serving = [
        report
        for report in reports
        if report.get("model_digest") == version.model_digest
        and not report.get("draining")
        and f"{ref.tenant}/{ref.template}" in _list(report, "templates")
    ]
    bare = not version.compiled.prefix_ids
    warm = sum(
        bare or report.get("engine") == "uncached" or _holds(report, ref.digest)
        for report in serving
    )
    return Warmth(workers=len(serving), warm=warm)


def _holds(report: Mapping[str, Any], digest: str) -> bool:
    return any(
        is_warm(listed) and listed.get("digest") == digest for listed in _list(report, "versions")
    )


def _list(report: Mapping[str, Any], name: str) -> list[Any]:
    found = report.get(name)
    return found if isinstance(found, list) else []


class Warmer:
    """Prefills versions before their first job, on a sample's request."""

    def __init__(
        self,
        *,
        prefixes: PrefixService,
        model: LoadedModel,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prefixes = prefixes
        self._model = model
        self._clock = clock
        self._tried: dict[str, float] = {}  # digest -> when

    def tried(self, ref: VersionRef) -> bool:
        """True when this version was to be warmed before, whatever came of it."""
        return ref.digest in self._tried

    def due(self, ref: VersionRef) -> bool:
        """True when `keep_warm` would warm this version now."""
        if self._prefixes.holds(ref):
            return False
        tried_at = self._tried.get(ref.digest)
        return tried_at is None or self._clock() - tried_at >= AGAIN_S

    def warm_once(self, version: PublishedVersion) -> None:
        """What was evicted or refused later is its jobs' business."""
        if not self.tried(version.ref):
            self._warm(version)

    def keep_warm(self, version: PublishedVersion) -> None:
        """Warm it now and whenever it is gone again."""
        if self.due(version.ref):
            self._warm(version)

    def _warm(self, version: PublishedVersion) -> None:
        self._tried[version.ref.digest] = self._clock()
        if not version.spec.samples:
            log.info("not_warmed", version=str(version.ref), reason="the template has no samples")
            return
        try:
            ids = fill(version.compiled, version.spec.samples[0].input, self._model.tokenizer).ids
            self._prefixes.warm(version, ids)
        except PrefillqError as error:
            log.warning("not_warmed", version=str(version.ref), reason=str(error))
