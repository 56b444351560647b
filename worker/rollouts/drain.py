"""Retired versions leave a worker's caches once their last job has ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from contract.job_store import JobStore
from contract.logs import get_logger
from worker.catalog import Catalog, Served
from worker.prefixes import PrefixService

log = get_logger(__name__)

# Counting goes over all jobs that wait: it may take one second of this many.
SHARE = 20


class Drain:
    """Drops what nobody needs any more, from memory and disk, with the reason `retired`."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        store: JobStore,
        prefixes: PrefixService,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._prefixes = prefixes
        self._clock = clock
        # By tenant and template, while they are retired: digests that are not on disk any more.
        self._gone: dict[tuple[str, str], set[str]] = {}
        self._not_before = 0.0

    def look(self, serving: list[Served]) -> int:
        """How many versions were dropped."""
        if self._clock() < self._not_before:
            return 0
        started = self._clock()
        dropped = sum(self._look_at(served) for served in serving)
        taken = self._clock() - started
        self._not_before = started + taken * SHARE
        return dropped

    def _look_at(self, served: Served) -> int:
        retired = self._catalog.retired(served)
        gone = self._gone.setdefault((served.tenant, served.template), set())
        # One that was brought back may be stored again: retired anew, it has to go anew.
        gone &= {ref.digest for ref in retired}
        # A job that was revived may have brought one back into memory.
        kept = [ref for ref in retired if ref.digest not in gone or self._prefixes.holds(ref)]
        if not kept:
            return 0
        pinned = self._store.pinned(served.tenant, served.template)
        done = [ref for ref in kept if not pinned.get(ref.version)]
        for ref in done:
            self._prefixes.forget(ref, "retired")
            gone.add(ref.digest)
            log.info("version_dropped", version=str(ref), digest=ref.digest)
        return len(done)
