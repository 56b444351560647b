"""Retired versions leave a worker once their last job has ended; canaries are kept warm."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from contract.types import JobState, VersionRef
from templates.version import PublishedVersion
from worker.catalog import Served
from worker.rollouts.drain import Drain
from worker.rollouts.warmth import AGAIN_S, Warmer

SERVING = [Served(tenant="acme", template="notes", queue="q")]


class FakeCatalog:
    """Knows which versions are retired."""

    def __init__(self) -> None:
        self.versions: list[PublishedVersion] = []

    def retired(self, served: Served) -> list[VersionRef]:
        return [v.ref for v in self.versions if v.ref.template == served.template]


@pytest.fixture
def stack(make_stack: Any) -> Any:
    return make_stack()


@pytest.fixture
def catalog() -> FakeCatalog:
    return FakeCatalog()


@pytest.fixture
def drain(stack: Any, catalog: FakeCatalog) -> Any:
    # A clock that stands still: counting takes no time, and so no pause.
    return Drain(
        catalog=catalog,  # type: ignore[arg-type]
        store=stack.store,
        prefixes=stack.prefixes,
        clock=lambda: 0.0,
    )


def test_a_retired_version_leaves_memory_with_its_reason(
    stack: Any, catalog: FakeCatalog, drain: Drain
) -> None:
    """The counter says `retired`, the report forgets it, and other versions stay."""
    other = stack.publish(rules="Be brief.")
    stack.runner.run(stack.submit())
    stack.runner.run(stack.submit(version=other))
    assert drain.look(SERVING) == 0
    catalog.versions = [stack.version]
    with capture_logs() as lines:
        assert drain.look(SERVING) == 1
        assert drain.look(SERVING) == 0
    assert [line["digest"] for line in lines if line["event"] == "version_dropped"] == [
        stack.version.ref.digest
    ]
    assert not stack.prefixes.holds(stack.version.ref)
    assert stack.prefixes.holds(other.ref)
    assert stack.prefixes.cache.stats().evictions == {"retired": 1}
    assert [warm.ref for warm in stack.prefixes.warm_versions()] == [other.ref]


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
def test_a_version_with_an_unfinished_job_stays(
    stack: Any, catalog: FakeCatalog, drain: Drain, state: JobState
) -> None:
    """Until that has ended, whether it waits or runs."""
    stack.runner.run(stack.submit("one"))
    job_id = stack.submit("two")
    catalog.versions = [stack.version]
    if state is JobState.RUNNING:
        stack.store.claim(job_id, "elsewhere", 60.0)
    assert drain.look(SERVING) == 0
    assert stack.prefixes.holds(stack.version.ref)
    if state is JobState.QUEUED:
        assert stack.runner.run(job_id).cache.state == "hit"
    else:
        stack.clock.now += 61
        stack.runner.run(job_id)
    assert drain.look(SERVING) == 1
    assert not stack.prefixes.holds(stack.version.ref)


def test_a_version_that_a_revived_job_brought_back_goes_again(
    stack: Any, catalog: FakeCatalog, drain: Drain
) -> None:
    """It computes its prefix anew, and leaves with that job."""
    stack.runner.run(stack.submit("one"))
    catalog.versions = [stack.version]
    assert drain.look(SERVING) == 1
    assert stack.runner.run(stack.submit("late")).status is JobState.SUCCEEDED
    assert stack.prefixes.holds(stack.version.ref)
    assert drain.look(SERVING) == 1
    assert not stack.prefixes.holds(stack.version.ref)


def test_what_lies_on_disk_goes_too(stack: Any, catalog: FakeCatalog, drain: Drain) -> None:
    """Also of a version that this worker never had in memory; asked for once."""
    removed: list[Any] = []

    class Disk:
        def remove(self, key: Any) -> None:
            removed.append(key)

    stack.prefixes.store = Disk()
    catalog.versions = [stack.version]
    for _ in range(3):
        drain.look(SERVING)
    assert removed == [stack.prefixes.key(stack.version)]


def test_a_version_that_is_retired_again_leaves_the_disk_again(
    stack: Any, catalog: FakeCatalog, drain: Drain
) -> None:
    """Between the two it took jobs, and was stored; another that stayed retired is left alone."""
    removed: list[Any] = []

    class Disk:
        def remove(self, key: Any) -> None:
            removed.append(key)

    stack.prefixes.store = Disk()
    other = stack.publish(rules="Be brief.")
    catalog.versions = [stack.version, other]
    drain.look(SERVING)
    catalog.versions = [other]
    drain.look([*SERVING, Served(tenant="globex", template="none", queue="q")])
    catalog.versions = [stack.version, other]
    for _ in range(2):
        drain.look(SERVING)
    keys = [stack.prefixes.key(version) for version in (stack.version, other)]
    assert removed == [*keys, keys[0]]


def test_nothing_is_counted_where_nothing_is_kept(
    stack: Any, catalog: FakeCatalog, drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting goes over all waiting jobs: only for a version that may be here."""
    asked: list[str] = []
    pinned = stack.store.pinned
    monkeypatch.setattr(stack.store, "pinned", lambda *where: asked.append("x") or pinned(*where))
    drain.look(SERVING)
    catalog.versions = [stack.version]
    for _ in range(3):
        drain.look(SERVING)
    assert asked == ["x"]


def test_counting_takes_a_twentieth_of_the_time(stack: Any, catalog: FakeCatalog) -> None:
    """A look that took 3 seconds is the last for a minute."""
    times = iter([100.0, 100.0, 103.0, 110.0, 159.0, 160.0, 160.0, 160.1])
    drain = Drain(
        catalog=catalog,  # type: ignore[arg-type]
        store=stack.store,
        prefixes=stack.prefixes,
        clock=lambda: next(times),
    )
    stack.submit()
    catalog.versions = [stack.version]
    looks = []
    catalog.retired = lambda served: looks.append(served) or []  # type: ignore[method-assign]
    for _ in range(4):
        drain.look(SERVING)
    assert len(looks) == 2


def test_a_job_that_meets_the_drop_runs_uncached(stack: Any) -> None:
    """Its entry is forgotten between the build and the check: no reason to fail it."""
    ids = stack.runner._answers.request(stack.version, {"note": "x"}).ids
    key = stack.prefixes.key(stack.version)
    with stack.prefixes.cache.lease(
        key, lambda: stack.prefixes._build(key, stack.version, ids)
    ) as held:
        stack.prefixes.forget(stack.version.ref, "retired")
        served = stack.prefixes._verified(key, held.entry, "hit", ids, 0.0)
    assert (served.entry, served.cache.reason) == (None, "forgotten")


# --- canaries


def test_a_canary_is_warmed_once_and_again_when_it_is_gone(stack: Any) -> None:
    """Evicted or refused it is tried again, not more often than every half minute."""
    now = [0.0]
    warmer = Warmer(prefixes=stack.prefixes, model=stack.model, clock=lambda: now[0])
    for _ in range(3):
        warmer.keep_warm(stack.version)
    assert len(stack.engine.prefills) == 1
    stack.prefixes.drop(stack.version, "budget")
    warmer.keep_warm(stack.version)
    assert len(stack.engine.prefills) == 1
    now[0] += AGAIN_S
    warmer.keep_warm(stack.version)
    assert len(stack.engine.prefills) == 2


def test_a_labelled_version_is_warmed_once(stack: Any) -> None:
    """`--warm all`: what was evicted later is its jobs' business."""
    warmer = Warmer(prefixes=stack.prefixes, model=stack.model)
    for _ in range(2):
        warmer.warm_once(stack.version)
        stack.prefixes.drop(stack.version, "budget")
    assert len(stack.engine.prefills) == 1


def test_a_version_without_samples_is_not_warmed(stack: Any) -> None:
    """There is no request to check it with."""
    bare = stack.publish(samples=[])
    Warmer(prefixes=stack.prefixes, model=stack.model).keep_warm(bare)
    assert not stack.engine.prefills
