"""The map of prefilled prefixes: one build, a byte budget, leases, pins and counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest

from contract.errors import PrefillqError
from worker.engine.fake import FakeEngine
from worker.prefix.cache import BUILDS, EntryTooLarge, HitsAndMisses, PrefixCache
from worker.prefix.entry import PrefixEntry, PrefixKey

SIZE = 10


def key(digest: str = "v1", **changes: str) -> PrefixKey:
    """A key that differs from the default where told."""
    base = PrefixKey(
        tenant="acme",
        digest=digest,
        model_digest="m",
        tokenizer_digest="t",
        dtype="float32",
        device="cpu",
    )
    return replace(base, **changes)


class Builder:
    """Builds entries of `SIZE` bytes and counts how often."""

    def __init__(self) -> None:
        self._engine = FakeEngine()

    @property
    def built(self) -> list[PrefixKey]:
        return self._engine.prefills

    def __call__(self, wanted: PrefixKey, size: int = SIZE) -> Callable[[], PrefixEntry]:
        return lambda: self._engine.prefill(wanted, range(size))


@pytest.fixture
def build() -> Builder:
    return Builder()


@pytest.fixture
def cache() -> Iterator[PrefixCache]:
    """Room for three entries; its books must balance when the test is over."""
    made = PrefixCache(max_bytes=3 * SIZE)
    yield made
    made.check_integrity()


def use(cache: PrefixCache, build: Builder, *digests: str) -> list[str]:
    """Lease and release each version in turn; the states."""
    states = []
    for digest in digests:
        with cache.lease(key(digest), build(key(digest))) as leased:
            states.append(leased.state)
    return states


def held(cache: PrefixCache) -> list[str]:
    """Digests in the map, least recently used first."""
    return [line.key.digest for line in cache.entries()]


def test_first_lease_builds_and_the_next_reuses(cache: PrefixCache, build: Builder) -> None:
    """One build serves all later leases, which get the same entry."""
    with (
        cache.lease(key(), build(key())) as first,
        cache.lease(key(), build(key())) as second,
    ):
        assert (first.state, second.state) == ("cold", "hit")
        assert first.entry is second.entry
    assert build.built == [key()]


@pytest.mark.parametrize(
    "changed",
    ["tenant", "digest", "model_digest", "tokenizer_digest", "adapter", "dtype", "device"],
)
def test_every_field_of_the_key_separates_entries(
    cache: PrefixCache, build: Builder, changed: str
) -> None:
    """Case P19: new weights, tokenizer or adapter under an old name never find the old entry."""
    other = key(**{changed: "other"})
    with cache.lease(key(), build(key())) as first, cache.lease(other, build(other)) as second:
        assert second.state == "cold"
        assert first.entry is not second.entry


def test_tenants_never_share_and_are_counted_apart(cache: PrefixCache, build: Builder) -> None:
    """Case P20: the same prompt of two tenants is two entries, with two counts."""
    for tenant in ("acme", "acme", "zeta"):
        with cache.lease(key(tenant=tenant), build(key(tenant=tenant))):
            pass
    assert cache.stats().tenants == {
        "acme": HitsAndMisses(hits=1, misses=1),
        "zeta": HitsAndMisses(hits=0, misses=1),
    }
    assert (cache.stats().hits, cache.stats().misses) == (1, 2)


def test_concurrent_callers_build_once(cache: PrefixCache, build: Builder) -> None:
    """Eight callers that meet at a missing key share one build; seven of them are hits."""
    waiting = threading.Barrier(8)
    go = threading.Event()

    def slow() -> PrefixEntry:
        assert go.wait(10)
        return build(key())()

    def caller() -> str:
        waiting.wait(10)
        with cache.lease(key(), slow) as leased:
            return leased.state

    with ThreadPoolExecutor(8) as pool:
        states = [pool.submit(caller) for _ in range(8)]
        go.set()
        assert sorted(s.result(10) for s in states) == ["cold"] + ["hit"] * 7
    assert build.built == [key()]


def test_failed_build_reaches_all_waiters_and_is_tried_again(
    cache: PrefixCache, build: Builder
) -> None:
    """A failing build raises in everyone who waited for it, and leaves nothing behind."""
    building, fail = threading.Event(), threading.Event()
    calls = []

    def broken() -> PrefixEntry:
        calls.append(1)
        building.set()
        assert fail.wait(10)
        raise PrefillqError("no memory")

    def caller() -> None:
        with cache.lease(key(), broken):
            pass

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(caller)
        assert building.wait(10)
        others = [pool.submit(caller) for _ in range(3)]
        _wait_for_waiters(cache, 3)
        fail.set()
        for job in (first, *others):
            with pytest.raises(PrefillqError, match="no memory"):
                job.result(10)
    assert len(calls) == 1
    assert cache.entries() == ()
    assert use(cache, build, "v1") == ["cold"]
    assert (cache.stats().hits, cache.stats().misses) == (0, 5)


def _wait_for_waiters(cache: PrefixCache, count: int) -> None:
    """Poll until `count` threads wait for the build in progress."""
    (flight,) = cache._building.values()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with flight._condition:
            if len(flight._condition._waiters) >= count:
                return
        time.sleep(0.002)
    pytest.fail("the other callers did not wait for the build")


def test_least_recently_used_goes_first(cache: PrefixCache, build: Builder) -> None:
    """A fourth entry evicts the one that was used longest ago."""
    use(cache, build, "a", "b", "c", "a", "d")
    assert held(cache) == ["c", "a", "d"]
    assert cache.stats().evictions == {"budget": 1}
    assert cache.stats().bytes == 3 * SIZE


def test_eviction_frees_as_much_as_needed(cache: PrefixCache, build: Builder) -> None:
    """A large entry takes the room of several small ones."""
    use(cache, build, "a", "b", "c")
    with cache.lease(key("big"), build(key("big"), 2 * SIZE)):
        assert held(cache) == ["c", "big"]


def test_leased_entries_are_never_evicted(cache: PrefixCache, build: Builder) -> None:
    """An entry in use survives, although it is the oldest."""
    with cache.lease(key("a"), build(key("a"))):
        use(cache, build, "b", "c", "d", "e")
        assert held(cache) == ["a", "d", "e"]


def test_pinned_entries_are_never_evicted(cache: PrefixCache, build: Builder) -> None:
    """A pin holds from before the build until it is taken back."""
    cache.pin(key("a"))
    use(cache, build, "a", "b", "c", "d")
    assert held(cache) == ["a", "c", "d"]
    cache.unpin(key("a"))
    use(cache, build, "e")
    assert held(cache) == ["c", "d", "e"]


def test_entry_larger_than_the_budget_is_refused_once_built(
    cache: PrefixCache, build: Builder
) -> None:
    """Too large an entry raises, keeps the others, and is not built a second time."""
    use(cache, build, "a")
    for _ in range(2):
        with (
            pytest.raises(EntryTooLarge, match="31 bytes"),
            cache.lease(key("big"), build(key("big"), 3 * SIZE + 1)),
        ):
            pass
    assert held(cache) == ["a"]
    assert build.built == [key("a"), key("big")]
    assert EntryTooLarge.code == "over_budget"


def test_entry_that_only_leases_and_pins_keep_out_gets_in_later(
    cache: PrefixCache, build: Builder
) -> None:
    """While everything is held a new entry is refused, and afterwards it is cached."""
    cache.pin(key("a"))
    use(cache, build, "a")
    with ExitStack() as leases:
        for digest in ("b", "c"):
            leases.enter_context(cache.lease(key(digest), build(key(digest))))
        for _ in range(2):
            with pytest.raises(EntryTooLarge), cache.lease(key("d"), build(key("d"))):
                pass
        assert sorted(held(cache)) == ["a", "b", "c"]
    assert use(cache, build, "d", "d") == ["cold", "hit"]
    assert sorted(held(cache)) == ["a", "c", "d"]


def test_drop_forgets_and_counts_its_reason(cache: PrefixCache, build: Builder) -> None:
    """A dropped entry is built again, pinned or not; dropping nothing is told apart."""
    cache.pin(key("a"))
    use(cache, build, "a")
    assert cache.drop(key("a"), "unpublished") is True
    assert cache.drop(key("a"), "unpublished") is False
    assert cache.stats().evictions == {"unpublished": 1}
    assert use(cache, build, "a") == ["cold"]


def test_dropped_entry_counts_until_its_lease_ends(cache: PrefixCache, build: Builder) -> None:
    """Memory that a running job still holds is not given away a second time."""
    with cache.lease(key("a"), build(key("a"), 2 * SIZE)) as leased:
        cache.drop(key("a"), "mutated")
        assert cache.stats().bytes == 2 * SIZE
        with (
            pytest.raises(EntryTooLarge),
            cache.lease(key("b"), build(key("b"), 2 * SIZE)),
        ):
            pass
        assert leased.entry.nbytes == 2 * SIZE
    assert cache.stats().bytes == 0


def test_lease_ends_when_the_block_raises(cache: PrefixCache, build: Builder) -> None:
    """A failing job does not keep its entry for ever."""
    with pytest.raises(ZeroDivisionError), cache.lease(key(), build(key())):
        raise ZeroDivisionError
    assert [line.leases for line in cache.entries()] == [0]


def test_entry_of_another_key_is_refused(cache: PrefixCache, build: Builder) -> None:
    """A builder that mixes up tenants is caught before the entry can be used."""
    with (
        pytest.raises(PrefillqError, match="another key"),
        cache.lease(key(), build(key(tenant="zeta"))),
    ):
        pass
    assert cache.entries() == ()


def test_listing_shows_leases_and_pins(cache: PrefixCache, build: Builder) -> None:
    """A listing says what holds an entry."""
    cache.pin(key("a"))
    use(cache, build, "a")
    with cache.lease(key("b"), build(key("b"))):
        lines = {line.key.digest: line for line in cache.entries()}
    assert (lines["a"].pinned, lines["a"].leases, lines["a"].nbytes) == (True, 0, SIZE)
    assert (lines["b"].pinned, lines["b"].leases) == (False, 1)


def test_integrity_check_notices_wrong_books(build: Builder) -> None:
    """A map over its budget, or with an entry under another key, is reported."""
    cache = PrefixCache(max_bytes=SIZE)
    use(cache, build, "a")
    cache._slots[key("b")] = cache._slots[key("a")]
    with pytest.raises(RuntimeError, match=r"holds the entry of .* 20 bytes in a budget of 10"):
        cache.check_integrity()


def test_many_threads_and_few_bytes_keep_the_books_balanced(build: Builder) -> None:
    """Under contention every lease holds the entry it asked for, within the budget."""
    cache = PrefixCache(max_bytes=3 * SIZE)
    wrong: list[object] = []

    def work(seed: int) -> None:
        for step in range(60):
            wanted = key(f"v{(seed * 7 + step * step) % 6}")
            try:
                with cache.lease(wanted, build(wanted)) as leased:
                    if leased.entry.key != wanted:
                        wrong.append(leased.entry.key)
                    cache.check_integrity()
            except EntryTooLarge:
                continue

    with ThreadPoolExecutor(6) as pool:
        for job in [pool.submit(work, seed) for seed in range(6)]:
            job.result(30)
    assert wrong == []
    assert all(line.leases == 0 for line in cache.entries())


def test_few_entries_are_built_at_once(build: Builder) -> None:
    """What is being built is beyond the budget: the first jobs of many versions come together."""
    cache, now, most = PrefixCache(max_bytes=100 * SIZE), 0, 0
    lock = threading.Lock()

    def slow(wanted: PrefixKey) -> PrefixEntry:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        return build(wanted)()

    def lease(number: int) -> None:
        wanted = key(f"v{number}")
        with cache.lease(wanted, lambda: slow(wanted)):
            pass

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lease, range(12)))
    assert most == BUILDS
    assert len(cache.entries()) == 12
