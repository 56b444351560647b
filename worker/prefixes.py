"""From a job's ids to a verified prefix entry, or to the reason why there is none.

This is where invariants 1 and 5 meet: an entry is used only when its key names exactly this
version, model, tokenizer, dtype and device, and when its ids are an exact prefix of the job's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contract.logs import get_logger
from contract.types import CacheInfo, CacheState, VersionRef
from templates.version import PublishedVersion
from worker.engine.base import Engine, NonFiniteLogits, PrefixUnsupported
from worker.engine.parity import Parity, check_parity
from worker.engine.shared.scheduler import NeverFits
from worker.prefix.cache import EntryTooLarge, PrefixCache
from worker.prefix.entry import PrefixEntry, PrefixKey
from worker.prefix.verify import verify_prefix

if TYPE_CHECKING:  # both need torch, which a fake engine does without
    from worker.model import LoadedModel
    from worker.prefix.disk import PrefixStore

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a job gets: an entry to fork, or none and why. Seconds on the monotonic clock."""

    entry: PrefixEntry | None
    cache: CacheInfo
    verify_s: float = 0.0
    prefill_s: float = 0.0

    @property
    def cached_tokens(self) -> int:
        """Tokens this job did not have to compute."""
        if self.entry is None or self.cache.state is not CacheState.HIT:
            return 0
        return len(self.entry.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmVersion:
    """One version that this worker has warmed and checked; its entry may be gone again."""

    key: PrefixKey
    ref: VersionRef
    prefix_tokens: int
    nbytes: int
    prefill_s: float  # 0 when the entry came from disk
    parity: Parity


class PrefixService:
    """The prefix cache of one loaded model, as jobs see it. Without a `store`, none on disk."""

    def __init__(
        self,
        *,
        cache: PrefixCache,
        engine: Engine,
        model: LoadedModel,
        plain: Engine | None = None,
        store: PrefixStore | None = None,
    ) -> None:
        self.cache = cache
        self.store = store
        self._engine = engine
        self._plain = plain  # the oracle of the parity check; None: the engine itself
        self._model = model
        self._warm: dict[PrefixKey, WarmVersion] = {}
        self._lock = threading.Lock()
        self._held: tuple[int, frozenset[str]] = (-1, frozenset())

    def key(self, version: PublishedVersion) -> PrefixKey:
        """The full key: equal only when every bit that shapes the cached tensors is equal."""
        return self.key_of(version.ref)

    def key_of(self, ref: VersionRef) -> PrefixKey:
        """The same, of a version that need not be read for it."""
        return self._model.prefix_key(ref.tenant, ref.digest)

    @contextmanager
    def serve(
        self, version: PublishedVersion, ids: tuple[int, ...], *, use_cache: bool = True
    ) -> Iterator[Served]:
        """Lease the version's entry for one job; it cannot be evicted inside the block."""
        started = time.perf_counter()
        reason = self._refusal(version, ids, use_cache=use_cache)
        verify_s = time.perf_counter() - started
        if reason is not None:
            yield Served(entry=None, cache=reason, verify_s=verify_s)
            return
        key = self.key(version)
        with ExitStack() as stack:
            try:
                leased = stack.enter_context(
                    self.cache.lease(key, lambda: self._build(key, version, ids))
                )
            except (EntryTooLarge, NeverFits, PrefixUnsupported, NonFiniteLogits) as error:
                # No prefix is no reason to fail a job: it runs as it would without prefillq.
                log.warning("prefix_not_cached", version=str(version.ref), reason=str(error))
                uncached = CacheInfo(state=CacheState.MISS, reason=error.code)
                served = Served(entry=None, cache=uncached, verify_s=verify_s)
            else:
                served = self._verified(key, leased.entry, leased.state, ids, verify_s)
            yield served

    def warm(self, version: PublishedVersion, ids: tuple[int, ...]) -> WarmVersion | None:
        """Load or prefill and check a version before its first job; `ids` are a sample request's.

        Returns None when the version cannot be cached here (no prefix, over budget).
        """
        with self.serve(version, ids) as served:
            return None if served.entry is None else self.report(version)

    def report(self, version: PublishedVersion) -> WarmVersion | None:
        """What the first warming of a version found, if it has been warmed."""
        with self._lock:
            return self._warm.get(self.key(version))

    def warm_versions(self) -> list[WarmVersion]:
        """All versions warmed so far, oldest first."""
        with self._lock:
            return list(self._warm.values())

    def drop(self, version: PublishedVersion, reason: str) -> None:
        """Forget the version's entry in memory; the next job loads or prefills it again."""
        self.cache.drop(self.key(version), reason)

    def holds(self, ref: VersionRef) -> bool:
        """True when the version's entry is in memory now."""
        return self.cache.holds(self.key_of(ref))

    def held(self) -> frozenset[str]:
        """Digests of the versions whose jobs find an entry in memory now, and may use it.

        Cheap to ask for again and again, and the same object until something changed.
        """
        changes = self.cache.changes
        if self._held[0] != changes:
            entries = self.cache.entries()
            with self._lock:
                warm = [self._warm.get(listed.key) for listed in entries]
            self._held = (changes, frozenset(w.ref.digest for w in warm if w and w.parity.ok))
        return self._held[1]

    def room_for(self, version: PublishedVersion) -> bool:
        """False when the version's entry would likely push another one out.

        Judged by the largest of those that were built: bytes grow with tokens.
        """
        with self._lock:
            per_token = max((w.nbytes / w.prefix_tokens for w in self._warm.values()), default=0.0)
        stats = self.cache.stats()
        return stats.bytes + per_token * len(version.compiled.prefix_ids) <= stats.max_bytes

    def forget(self, ref: VersionRef, reason: str) -> None:
        """Drop the version's entry from memory and disk, and what its first warming found."""
        key = self.key_of(ref)
        self.cache.drop(key, reason)
        if self.store is not None:
            self.store.remove(key)
        with self._lock:
            self._warm.pop(key, None)

    def _refusal(
        self, version: PublishedVersion, ids: tuple[int, ...], *, use_cache: bool
    ) -> CacheInfo | None:
        if not use_cache:
            return CacheInfo(state=CacheState.OFF, reason="not_asked_for")
        if not version.compiled.prefix_ids:
            return CacheInfo(state=CacheState.OFF, reason="no_prefix")
        warm = self.report(version)
        if warm is not None and not warm.parity.ok:
            return CacheInfo(state=CacheState.OFF, reason=f"parity_{warm.parity.outcome}")
        # Asked before the prefill, so that a request that cannot use it does not pay for it.
        if reason := verify_prefix(version.compiled.prefix_ids, ids):
            return CacheInfo(state=CacheState.MISS, reason=reason)
        return None

    def _verified(
        self, key: PrefixKey, entry: PrefixEntry, state: str, ids: tuple[int, ...], verify_s: float
    ) -> Served:
        started = time.perf_counter()
        with self._lock:
            warm = self._warm.get(key)
        # The entry's own ids, not the version's: what was prefilled is what must match.
        reason = verify_prefix(entry.ids, ids)
        if warm is None:
            reason = reason or "forgotten"  # just now: the version is retired
        verify_s += time.perf_counter() - started
        prefill_s = entry.prefill_s if state == "cold" else 0.0
        usable = False
        if reason or warm is None:
            cache = CacheInfo(state=CacheState.MISS, reason=reason)
        elif not warm.parity.ok:
            cache = CacheInfo(state=CacheState.OFF, reason=f"parity_{warm.parity.outcome}")
        else:
            usable = True
            cold = state == "cold"
            cache = CacheInfo(
                state=CacheState.MISS if cold else CacheState.HIT, reason="cold" if cold else ""
            )
        return Served(
            entry=entry if usable else None, cache=cache, verify_s=verify_s, prefill_s=prefill_s
        )

    def _build(
        self, key: PrefixKey, version: PublishedVersion, ids: tuple[int, ...]
    ) -> PrefixEntry:
        if (entry := self._load(key, version, ids)) is not None:
            return entry
        entry = self._engine.prefill(key, version.compiled.prefix_ids)
        parity = self._known(key) or check_parity(self._engine, entry, ids, plain=self._plain)
        if self.store is not None and parity.ok:
            self.store.save(entry, parity, engine=self._engine.name)
        self._note(version, entry, parity)
        return entry

    def _load(
        self, key: PrefixKey, version: PublishedVersion, ids: tuple[int, ...]
    ) -> PrefixEntry | None:
        """The version's entry from disk, if there is one and it passes the check here."""
        if self.store is None:
            return None
        started = time.perf_counter()
        engine = self._engine.name
        stored = self.store.load(key, version.compiled.prefix_ids, engine=engine)
        if stored is None:
            return None
        seconds = time.perf_counter() - started
        parity = self._known(key) or stored.parity
        if parity is None:  # last checked with another engine
            parity = check_parity(self._engine, stored.entry, ids, plain=self._plain)
            if not parity.ok:
                # A prefix computed here may still hold; only that one decides on the version.
                self.store.remove(key)
                return None
            self.store.save(stored.entry, parity, engine=engine)
        log.info("prefix_loaded", version=str(version.ref), seconds=round(seconds, 4))
        self._note(version, stored.entry, parity)
        return stored.entry

    def _known(self, key: PrefixKey) -> Parity | None:
        with self._lock:
            warm = self._warm.get(key)
        return None if warm is None else warm.parity

    def _note(self, version: PublishedVersion, entry: PrefixEntry, parity: Parity) -> None:
        """Remember what the first warming of a version found."""
        warm = WarmVersion(
            key=entry.key,
            ref=version.ref,
            prefix_tokens=len(entry.ids),
            nbytes=entry.nbytes,
            prefill_s=0.0 if entry.loaded else entry.prefill_s,
            parity=parity,
        )
        with self._lock:
            if self._warm.setdefault(entry.key, warm) is not warm:
                return
        log.info(
            "version_warmed",
            version=str(version.ref),
            digest=version.ref.digest,
            prefix_tokens=warm.prefix_tokens,
            nbytes=warm.nbytes,
            prefill_s=round(warm.prefill_s, 4),
            parity=warm.parity.outcome,
            parity_tokens=warm.parity.checked_tokens,
            parity_s=round(warm.parity.seconds, 4),
        )
