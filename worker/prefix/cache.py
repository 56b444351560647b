"""The map of prefilled prefixes in a worker: built once, counted, and kept within a budget.

Plain Python, so that its rules can be tested without a model. What an entry holds is not
looked at; only `key`, `nbytes` and `loaded` are.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from contract.errors import PrefillqError
from worker.prefix.entry import PrefixEntry, PrefixKey

LeaseState = Literal["hit", "cold"]
MAX_REMEMBERED_REFUSALS = 1024
# Entries that are built or loaded at once, beyond the budget: one while another is checked. The
# first jobs of many versions come together.
BUILDS = 2


class EntryTooLarge(PrefillqError):
    """The entry does not fit the budget, or not beside those that cannot be evicted now."""

    code = "over_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """An entry that stays in memory while the lease lasts; `cold` when this lease computed it."""

    entry: PrefixEntry
    state: LeaseState


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One line of a listing."""

    key: PrefixKey
    nbytes: int
    leases: int
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HitsAndMisses:
    """A hit reused an entry, if need be after another's build or a load; all else missed."""

    hits: int = 0
    misses: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counts since the cache was made; `entries` and `bytes` are as of now."""

    entries: int
    bytes: int
    max_bytes: int
    hits: int
    misses: int
    evictions: Mapping[str, int]  # by reason; "budget" is the cache's own
    tenants: Mapping[str, HitsAndMisses]


class _Slot:
    """An entry and how many leases hold it. Guarded by the cache's lock."""

    __slots__ = ("entry", "leases")

    def __init__(self, entry: PrefixEntry) -> None:
        self.entry = entry
        self.leases = 1


class PrefixCache:
    """Thread-safe map from PrefixKey to PrefixEntry, least recently used first out.

    The lock is never held while an entry is built. An entry's size is known only once it is
    built, so what is being built, BUILDS at once, may exceed the budget for a moment; a size that
    was refused is remembered and not built again until it can fit.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._slots: OrderedDict[PrefixKey, _Slot] = OrderedDict()  # least recently used first
        self._leaving: set[_Slot] = set()  # dropped, but still leased: their memory is in use
        self._pinned: set[PrefixKey] = set()
        self._building: dict[PrefixKey, Future[None]] = {}
        self._builds = threading.Semaphore(BUILDS)
        self._refused: OrderedDict[PrefixKey, int] = OrderedDict()
        self._hits: Counter[str] = Counter()
        self._misses: Counter[str] = Counter()
        self._evictions: Counter[str] = Counter()
        self._changes = 0

    @property
    def changes(self) -> int:
        """Another number than before once an entry came or went."""
        return self._changes

    @contextmanager
    def lease(self, key: PrefixKey, build: Callable[[], PrefixEntry]) -> Iterator[Leased]:
        """Hold the key's entry for the length of the block, building it if it is not there.

        Callers that meet at a missing key wait for one build; its failure is raised in all of
        them, and the next call tries again. Raises EntryTooLarge, and whatever `build` raises.
        `build` must not lease anything itself.
        """
        slot, state = self._acquire(key, build)
        try:
            yield Leased(entry=slot.entry, state=state)
        finally:
            with self._lock:
                slot.leases -= 1
                if not slot.leases:
                    self._leaving.discard(slot)

    def pin(self, key: PrefixKey) -> None:
        """Never evict this key's entry, now or once it is built."""
        with self._lock:
            self._pinned.add(key)

    def unpin(self, key: PrefixKey) -> None:
        """Let the key's entry be evicted again."""
        with self._lock:
            self._pinned.discard(key)

    def drop(self, key: PrefixKey, reason: str) -> bool:
        """Forget the key's entry, pinned or not; leases that hold it keep it to their end.

        Returns False when there was none.
        """
        with self._lock:
            if key not in self._slots:
                return False
            self._remove(key, reason)
            return True

    def holds(self, key: PrefixKey) -> bool:
        """True when the key's entry is in the map now."""
        with self._lock:
            return key in self._slots

    def entries(self) -> tuple[Listed, ...]:
        """What is in the map, least recently used first."""
        with self._lock:
            return tuple(
                Listed(
                    key=key,
                    nbytes=slot.entry.nbytes,
                    leases=slot.leases,
                    pinned=key in self._pinned,
                )
                for key, slot in self._slots.items()
            )

    def stats(self) -> CacheStats:
        """Counts, for metrics and listings. `bytes` includes dropped entries still leased."""
        with self._lock:
            tenants = sorted(self._hits.keys() | self._misses.keys())
            return CacheStats(
                entries=len(self._slots),
                bytes=self._bytes(),
                max_bytes=self._max_bytes,
                hits=self._hits.total(),
                misses=self._misses.total(),
                evictions=dict(self._evictions),
                tenants={
                    tenant: HitsAndMisses(hits=self._hits[tenant], misses=self._misses[tenant])
                    for tenant in tenants
                },
            )

    def refused_bytes(self, key: PrefixKey) -> int | None:
        """The size of an entry that had no room when it was last built; None when it had."""
        with self._lock:
            return self._refused.get(key)

    def check_integrity(self) -> None:
        """Raise RuntimeError when the books do not balance. For tests and idle moments."""
        with self._lock:
            wrong = [
                f"{key.digest} holds the entry of {slot.entry.key}"
                for key, slot in self._slots.items()
                if slot.entry.key != key
            ]
            wrong += [
                f"{slot.leases} leases" for slot in self._slots.values() if slot.leases < 0
            ] + ["dropped, not leased, still counted" for s in self._leaving if s.leases <= 0]
            if self._bytes() > self._max_bytes:
                wrong.append(f"{self._bytes()} bytes in a budget of {self._max_bytes}")
            if both := self._building.keys() & self._slots.keys():
                wrong.append(f"{len(both)} keys both built and being built")
        if wrong:
            raise RuntimeError("prefix cache: " + "; ".join(wrong))

    def _acquire(
        self, key: PrefixKey, build: Callable[[], PrefixEntry]
    ) -> tuple[_Slot, LeaseState]:
        while True:
            with self._lock:
                if slot := self._slots.get(key):
                    self._slots.move_to_end(key)
                    slot.leases += 1
                    self._hits[key.tenant] += 1
                    return slot, "hit"
                flight = self._building.get(key)
                if flight is None:
                    mine = self._building[key] = Future()
                    break
            try:
                flight.result()
            except BaseException:
                with self._lock:
                    self._misses[key.tenant] += 1
                raise
            # Built; look again, for it may be gone already.
        slot = self._build(key, build, mine)
        return slot, "hit" if slot.entry.loaded else "cold"

    def _build(
        self, key: PrefixKey, build: Callable[[], PrefixEntry], flight: Future[None]
    ) -> _Slot:
        try:
            with self._lock:
                if (nbytes := self._refused.get(key)) is not None:
                    self._check_room(key, nbytes)
            with self._builds:
                entry = build()
                _check_key(entry, key)
                with self._lock:
                    self._make_room(key, entry.nbytes)
                    self._refused.pop(key, None)
                    slot = self._slots[key] = _Slot(entry)
                    self._changes += 1
                    del self._building[key]
                    (self._hits if entry.loaded else self._misses)[key.tenant] += 1
        except BaseException as error:
            with self._lock:
                del self._building[key]
                self._misses[key.tenant] += 1
            flight.set_exception(error)
            raise
        flight.set_result(None)
        return slot

    def _make_room(self, key: PrefixKey, nbytes: int) -> None:
        self._check_room(key, nbytes)
        for old in [old for old, slot in self._slots.items() if not self._held(old, slot)]:
            if self._bytes() + nbytes <= self._max_bytes:
                return
            self._remove(old, "budget")

    def _check_room(self, key: PrefixKey, nbytes: int) -> None:
        held = sum(s.entry.nbytes for k, s in self._slots.items() if self._held(k, s))
        held += sum(slot.entry.nbytes for slot in self._leaving)
        if held + nbytes <= self._max_bytes:
            return
        self._refused[key] = nbytes
        self._refused.move_to_end(key)
        if len(self._refused) > MAX_REMEMBERED_REFUSALS:
            self._refused.popitem(last=False)
        raise EntryTooLarge(
            "a prefilled prefix does not fit the cache's budget",
            given=f"{nbytes} bytes beside {held} in use or pinned",
            expected=f"{self._max_bytes} bytes in all",
            remedy="Raise the worker's cache budget, unpin versions or shorten the prefix.",
        )

    def _held(self, key: PrefixKey, slot: _Slot) -> bool:
        return slot.leases > 0 or key in self._pinned

    def _remove(self, key: PrefixKey, reason: str) -> None:
        slot = self._slots.pop(key)
        self._changes += 1
        self._evictions[reason] += 1
        if slot.leases:
            self._leaving.add(slot)

    def _bytes(self) -> int:
        held = sum(slot.entry.nbytes for slot in self._slots.values())
        return held + sum(slot.entry.nbytes for slot in self._leaving)


def _check_key(entry: PrefixEntry, key: PrefixKey) -> None:
    if entry.key != key:
        raise PrefillqError(
            "a prefix was built for another key than was asked", given=entry.key, expected=key
        )
