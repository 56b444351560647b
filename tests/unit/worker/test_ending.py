"""How a worker ends: in time, at once, or because its device hangs."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from contract.memory_store import MemoryJobStore
from contract.settings import Settings
from worker.ending import DeviceLost, Shutdown, Watchdog
from worker.leases import HeldLease, LeaseKeeper


@pytest.fixture
def leases() -> LeaseKeeper:
    settings = Settings()
    return LeaseKeeper(MemoryJobStore(settings), settings=settings)


def until(condition: Any, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_jobs_have_the_grace_period_to_end_in(leases: LeaseKeeper) -> None:
    """Draining at once; nothing is stopped before the period is over, everything after it."""
    shutdown = Shutdown(leases, grace_s=0.3)
    with leases.hold("acme." + "0" * 32, 1) as lease:
        assert not shutdown.draining
        shutdown.request()
        assert shutdown.draining
        time.sleep(0.1)
        assert lease.stop_reason() is None
        until(lambda: lease.stop_reason() == "returned")


def test_second_request_returns_the_jobs_at_once(leases: LeaseKeeper) -> None:
    """However long the grace period is."""
    shutdown = Shutdown(leases, grace_s=3600)
    with leases.hold("acme." + "0" * 32, 1) as lease:
        shutdown.request()
        shutdown.request()
        until(lambda: lease.stop_reason() == "returned")


def test_request_at_once_needs_no_second(leases: LeaseKeeper) -> None:
    """As SIGQUIT and a lost device ask."""
    shutdown = Shutdown(leases, grace_s=3600)
    with leases.hold("acme." + "0" * 32, 1) as lease:
        shutdown.request(at_once=True)
        until(lambda: lease.stop_reason() == "returned")


def test_job_claimed_just_before_is_returned_too(leases: LeaseKeeper) -> None:
    """A claim that was on its way when the worker was told to end is not forgotten."""
    shutdown = Shutdown(leases, grace_s=0)
    held: list[HeldLease] = []
    first = leases.hold("acme." + "0" * 32, 1)
    held.append(first.__enter__())
    shutdown.request()
    until(lambda: held[0].stop_reason() == "returned")
    second = leases.hold("acme." + "1" * 32, 1)
    held.append(second.__enter__())
    until(lambda: held[1].stop_reason() == "returned")
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)


def test_job_claimed_when_all_seemed_over_is_returned_too(leases: LeaseKeeper) -> None:
    """Nothing ran when the worker was told to end, but a claim was on its way."""
    shutdown = Shutdown(leases, grace_s=3600)
    shutdown.request(at_once=True)
    time.sleep(0.5)
    with leases.hold("acme." + "0" * 32, 1) as lease:
        until(lambda: lease.stop_reason() == "returned")


def test_requests_take_no_lock(leases: LeaseKeeper) -> None:
    """A signal may come while the handler of the one before runs, in the same thread."""
    shutdown = Shutdown(leases, grace_s=3600)
    locks = [
        name for name, it in vars(shutdown).items() if hasattr(it, "acquire") or hasattr(it, "set")
    ]
    assert locks == []


def test_third_request_ends_the_process(leases: LeaseKeeper) -> None:
    """Whoever asks three times does not want to wait."""
    ended: list[int] = []
    shutdown = Shutdown(leases, grace_s=3600, end=ended.append)
    shutdown.request()
    shutdown.request()
    assert ended == []
    shutdown.request()
    assert ended == [1]


def test_silent_engine_ends_the_process_with_its_own_status(leases: LeaseKeeper) -> None:
    """Jobs run and none makes a step: a wedged device. A step of any job resets the clock."""
    ended: list[int] = []
    watchdog = Watchdog(leases, limit_s=0.2, end=ended.append)
    watchdog.look()
    assert ended == [], "nothing runs"
    with (
        leases.hold("acme." + "0" * 32, 1) as one,
        leases.hold("acme." + "1" * 32, 1),
    ):
        time.sleep(0.25)
        one.stop_reason()
        watchdog.look()
        assert ended == [], "one job made a step"
        time.sleep(0.25)
        watchdog.look()
    assert ended == [DeviceLost.exit_code] == [9]
    threading.Event().wait(0.25)
    watchdog.look()
    assert len(ended) == 1, "nothing runs any more"


def test_an_engine_that_steps_is_not_silent(leases: LeaseKeeper) -> None:
    """All jobs wait for one long prefix: no step of theirs, but many of the engine's."""
    ended: list[int] = []
    watchdog = Watchdog(leases, limit_s=0.2, stepped_at=time.monotonic, end=ended.append)
    with leases.hold("acme." + "0" * 32, 1):
        time.sleep(0.25)
        watchdog.look()
    assert ended == []


def test_one_job_that_does_not_stop_ends_the_process(leases: LeaseKeeper) -> None:
    """Its lease is renewed and others make steps; only it hangs, outside of the engine."""
    ended: list[int] = []
    watchdog = Watchdog(leases, limit_s=0.1, end=ended.append)
    with (
        leases.hold("acme." + "0" * 32, 1) as hangs,
        leases.hold("acme." + "1" * 32, 1) as goes_on,
    ):
        time.sleep(0.45)
        goes_on.beat()
        watchdog.look()
        assert ended == [], "nobody told it to stop"
        hangs.end("expired")
        watchdog.look()
    assert ended == [DeviceLost.exit_code]
