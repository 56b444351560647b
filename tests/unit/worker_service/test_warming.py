"""What is filled before jobs want it, what is never evicted, and what of that does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from contract.errors import RedisRefused
from contract.ids import TemplateAddress, parse_address
from contract.types import VersionRef
from templates.version import PublishedVersion
from worker.catalog import Served
from worker.options import Warm
from worker.patterns import Pin, parse_pin
from worker.rollouts.warmth import AGAIN_S, Warmer
from worker.warming import Warming


class Templates:
    """Published versions and labels, as a catalog gives them."""

    def __init__(self) -> None:
        self.by_label: dict[tuple[str, str], dict[str, PublishedVersion]] = {}
        self.serving: list[Served] = []
        self.reads: list[VersionRef] = []

    def add(self, version: PublishedVersion, label: str = "production") -> None:
        address = (version.ref.tenant, version.ref.template)
        if address not in self.by_label:
            self.serving.append(
                Served(tenant=address[0], template=address[1], queue="/".join(address))
            )
        self.by_label.setdefault(address, {})[label] = version

    def labels(self, served: Served) -> dict[str, VersionRef]:
        found = self.by_label[served.tenant, served.template]
        return {label: version.ref for label, version in found.items()}

    def read(self, ref: VersionRef) -> PublishedVersion | None:
        self.reads.append(ref)
        found = self.by_label[ref.tenant, ref.template].values()
        return next(version for version in found if version.ref == ref)

    def version(self, tenant: str, template: str, number: int) -> PublishedVersion | None:
        found = self.by_label.get((tenant, template), {}).values()
        return next((version for version in found if version.ref.version == number), None)


class Bench:
    """A cache with room for so many prefixes of one size, and templates."""

    def __init__(self, make_stack: Any, *, room: float) -> None:
        tokens = len(make_stack().version.compiled.prefix_ids)
        self.stack = make_stack(cache_bytes=int(room * tokens))
        self.templates = Templates()
        self.now = 0.0
        self.recent: list[TemplateAddress] = []

    def add(self, name: str, label: str = "production", **changes: Any) -> PublishedVersion:
        version: PublishedVersion = self.stack.publish(name=name, **changes)
        self.templates.add(version, label)
        return version

    def warming(self, *pins: str, warm: Warm = "none", **changes: Any) -> Warming:
        return Warming(
            warm=warm,
            pins=tuple(parse_pin(pin) for pin in pins),
            versions=self.templates,
            prefixes=self.stack.prefixes,
            warmer=Warmer(
                prefixes=self.stack.prefixes, model=self.stack.model, clock=lambda: self.now
            ),
            recent=changes.pop("recent", lambda: self.recent),
        )

    def held(self) -> list[str]:
        """Names of the templates whose version is in memory."""
        return sorted(
            served.template
            for served in self.templates.serving
            if any(self.stack.prefixes.holds(ref) for ref in self.templates.labels(served).values())
        )

    def run(self, version: PublishedVersion) -> None:
        """A job of the version."""
        self.stack.runner.run(self.stack.submit(version=version))


@pytest.fixture
def make_bench(make_stack: Any) -> Callable[..., Bench]:
    return lambda room=10.0: Bench(make_stack, room=room)


def events(lines: list[Any], name: str) -> list[Any]:
    return [line for line in lines if line["event"] == name]


# --- what is filled at the start


@pytest.mark.parametrize(
    ("warm", "expected"), [("none", []), ("used", ["two"]), ("all", ["one", "two"])]
)
def test_what_is_filled_at_the_start(
    make_bench: Callable[..., Bench], warm: Warm, expected: list[str]
) -> None:
    """Nothing, what had jobs lately, or all that labels point to."""
    bench = make_bench()
    bench.add("one")
    bench.add("two")
    bench.recent = [parse_address("acme/two@1"), parse_address("acme/gone@1")]
    bench.warming(warm=warm).start(bench.templates.serving)
    assert bench.held() == expected


def test_later_labels_are_filled_with_all_alone(make_bench: Callable[..., Bench]) -> None:
    """`used` is for the start: what has jobs later is filled by them."""
    for warm, expected in (("all", ["late"]), ("used", [])):
        bench = make_bench()
        warming = bench.warming(warm=warm)  # type: ignore[arg-type]
        warming.start([])
        bench.add("late")
        bench.recent = [parse_address("acme/late@1")]
        warming.keep_up(bench.templates.serving)
        assert bench.held() == expected


@pytest.mark.parametrize("warm", ["used", "all"])
def test_no_prefix_pushes_out_another_at_the_start(
    make_bench: Callable[..., Bench], warm: Warm
) -> None:
    """The last used are kept, and one line says that the cache is full."""
    bench = make_bench(room=2.5)
    names = ["a", "b", "c", "d"]
    for name in names:
        bench.add(name)
    bench.recent = [parse_address(f"acme/{name}@1") for name in names]
    warming = bench.warming(warm=warm)
    with capture_logs() as lines:
        warming.start(bench.templates.serving)
        warming.keep_up(bench.templates.serving)
    assert bench.held() == ["a", "b"]
    assert bench.stack.prefixes.cache.stats().evictions == {}
    assert [line["next"] for line in events(lines, "warming_stopped")] == ["acme/c@1"]


def test_a_record_that_may_not_be_read_keeps_no_worker_from_starting(
    make_bench: Callable[..., Bench],
) -> None:
    """Users made by an older release have no right to it."""
    bench = make_bench()
    bench.add("one")

    def refuse() -> list[TemplateAddress]:
        raise RedisRefused("no permission")

    with capture_logs() as lines:
        bench.warming(warm="used", recent=refuse).start(bench.templates.serving)
    assert len(events(lines, "used_versions_not_read")) == 1


# --- pins


def test_a_pinned_version_is_filled_and_outlives_any_number_of_others(
    make_bench: Callable[..., Bench],
) -> None:
    """With room for two, the pinned one stays; the others push each other out."""
    bench = make_bench(room=2.5)
    kept = bench.add("kept")
    others = [bench.add(f"other{n}") for n in range(5)]
    warming = bench.warming("acme/kept")
    warming.start(bench.templates.serving)
    assert bench.held() == ["kept"]
    for other in others:
        bench.run(other)
    assert bench.held() == ["kept", "other4"]
    assert warming.pinned() == {kept.ref.digest}
    bench.run(kept)
    assert len(bench.stack.engine.prefills) == 6
    bench.stack.prefixes.cache.check_integrity()


def test_a_pin_follows_its_label(make_bench: Callable[..., Bench]) -> None:
    """The version that it pointed to can be evicted from the next look on; the new one cannot."""
    bench = make_bench()
    first = bench.add("notes")
    second = bench.stack.publish(name="notes", rules="Be brief.")
    bench.templates.add(second, "canary")
    warming = bench.warming("acme/notes@production")
    warming.start(bench.templates.serving)
    assert warming.pinned() == {first.ref.digest}
    bench.templates.add(second, "production")
    warming.keep_up(bench.templates.serving)
    assert warming.pinned() == {second.ref.digest}
    listed = {one.key.digest: one.pinned for one in bench.stack.prefixes.cache.entries()}
    assert listed == {first.ref.digest: False, second.ref.digest: True}


@pytest.mark.parametrize("room", [0.5, 1.5])
def test_a_pin_that_does_not_fit_is_refused_in_words(
    make_bench: Callable[..., Bench], room: float
) -> None:
    """Once, with the sizes; the budget is kept, and the template's jobs run uncached."""
    bench = make_bench(room=room)
    versions = [bench.add("a"), bench.add("b")]
    warming = bench.warming("acme/*")
    with capture_logs() as lines:
        warming.start(bench.templates.serving)
        bench.now += AGAIN_S
        warming.keep_up(bench.templates.serving)
    fit = int(room)
    refused = events(lines, "pin_refused")
    assert [line["version"] for line in refused] == ["acme/a@1", "acme/b@1"][fit:]
    assert "--cache-bytes" in refused[-1]["remedy"]
    assert str(len(versions[1].compiled.prefix_ids)) in refused[-1]["given"]
    assert warming.pinned() == {v.ref.digest for v in versions[:fit]}
    assert not any(one.pinned for one in bench.stack.prefixes.cache.entries()) or bench.held() == [
        "a"
    ]
    stats = bench.stack.prefixes.cache.stats()
    assert stats.bytes <= stats.max_bytes
    bench.run(versions[1])


def test_a_refused_pin_is_made_once_there_is_room(make_bench: Callable[..., Bench]) -> None:
    """Another pin's label moved away."""
    bench = make_bench(room=1.5)
    bench.add("a")
    second = bench.add("b")
    warming = bench.warming("acme/*@production")
    warming.start(bench.templates.serving)
    bench.templates.by_label["acme", "a"] = {}
    bench.now += AGAIN_S
    with capture_logs() as lines:
        warming.keep_up(bench.templates.serving)
    assert [line["version"] for line in events(lines, "version_pinned")] == ["acme/b@1"]
    assert warming.pinned() == {second.ref.digest}


def test_a_pinned_version_without_samples_is_kept_from_its_first_job_on(
    make_bench: Callable[..., Bench],
) -> None:
    """There is no request to fill it with before."""
    bench = make_bench(room=1.5)
    kept = bench.add("kept", samples=[])
    warming = bench.warming("acme/kept")
    with capture_logs() as lines:
        warming.start(bench.templates.serving)
    assert events(lines, "pin_refused") == []
    assert bench.held() == []
    bench.run(kept)
    bench.run(bench.add("other"))
    assert bench.held() == ["kept"]


def test_a_pinned_version_that_was_dropped_as_spoilt_is_filled_again(
    make_bench: Callable[..., Bench],
) -> None:
    """It stays pinned meanwhile."""
    bench = make_bench()
    kept = bench.add("kept")
    warming = bench.warming("acme/kept")
    warming.start(bench.templates.serving)
    bench.stack.prefixes.drop(kept, "mutated")
    warming.keep_up(bench.templates.serving)
    assert bench.held() == []
    bench.now += AGAIN_S
    warming.keep_up(bench.templates.serving)
    assert bench.held() == ["kept"]
    assert [one.pinned for one in bench.stack.prefixes.cache.entries()] == [True]


@pytest.mark.parametrize(("pins", "warm"), [(["acme/*"], "none"), ([], "all")])
def test_what_stays_as_it_is_is_not_read_again(
    make_bench: Callable[..., Bench], pins: list[str], warm: Warm
) -> None:
    """A thousand versions are more than a worker keeps of the registry: each look would read all
    of them from Redis."""
    bench = make_bench(room=2.5)
    for name in ("a", "b", "c"):
        bench.add(name)
    warming = bench.warming(*pins, warm=warm)
    warming.start(bench.templates.serving)
    bench.templates.reads.clear()
    for _ in range(3):
        warming.keep_up(bench.templates.serving)
    # `--warm all` looks whether there is room for the next one by now.
    assert [ref.template for ref in bench.templates.reads] == ([] if pins else ["c"] * 3)


def test_pins_are_looked_at_without_listing_the_cache_for_each(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a thousand pins that took seconds of each look, every two seconds."""
    bench = make_bench()
    for name in ("a", "b", "c"):
        bench.add(name)
    warming = bench.warming("acme/*")
    listed = Mock(wraps=bench.stack.prefixes.cache.entries)
    with monkeypatch.context() as context:
        context.setattr(bench.stack.prefixes.cache, "entries", listed)
        warming.start(bench.templates.serving)
        warming.keep_up(bench.templates.serving)
    assert not listed.called
    assert bench.held() == ["a", "b", "c"]


# --- what the preference of queues goes by


def test_held_follows_the_cache(make_bench: Callable[..., Bench]) -> None:
    """Entries that come, go and must not be used; the same object until one does."""
    bench = make_bench(room=1.5)
    prefixes = bench.stack.prefixes
    first, second = bench.add("a"), bench.add("b")
    assert prefixes.held() == set()
    bench.run(first)
    assert prefixes.held() == {first.ref.digest}
    assert prefixes.held() is prefixes.held()
    bench.run(second)
    assert prefixes.held() == {second.ref.digest}
    prefixes.forget(second.ref, "retired")
    assert prefixes.held() == set()


def test_a_version_that_must_run_uncached_is_not_held(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry is there, but no job may use it."""
    bench = make_bench()
    version = bench.add("a")
    bench.run(version)
    key = bench.stack.prefixes.key(version)
    warm = bench.stack.prefixes._warm[key]
    differs = replace(warm, parity=replace(warm.parity, outcome="different"))
    monkeypatch.setitem(bench.stack.prefixes._warm, key, differs)
    bench.run(bench.add("b"))
    assert version.ref.digest not in bench.stack.prefixes.held()


def test_pins_are_values() -> None:
    """Two of the same are one."""
    assert {parse_pin("a/b"), parse_pin("a/b")} == {Pin(pattern="a/b")}
