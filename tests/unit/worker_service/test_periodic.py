"""A periodic thread: nothing that its action raises ends it, and `stop` ends it at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from structlog.testing import CapturingLogger

from contract.errors import PrefillqError, RedisUnreachable
from worker.periodic import Periodic

WAIT_S = 10.0  # how long a test waits for what must happen; never spent when it does


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> CapturingLogger:
    capturing = CapturingLogger()
    monkeypatch.setattr("worker.periodic.log", capturing)
    return capturing


@contextmanager
def running(action: Callable[[], None], *, interval_s: float = 0.001) -> Iterator[Periodic]:
    periodic = Periodic("test", action, interval_s=interval_s)
    periodic.start()
    try:
        yield periodic
    finally:
        periodic.stop()


@pytest.mark.parametrize(
    ("error", "method", "event"),
    [
        (RedisUnreachable("Redis cannot be reached"), "warning", "periodic_failed"),
        (PrefillqError("something of ours"), "warning", "periodic_failed"),
        (ValueError("a bug"), "exception", "periodic_crashed"),
    ],
)
def test_action_that_raises_is_called_again(
    log: CapturingLogger, error: Exception, method: str, event: str
) -> None:
    """Expected or not, an error is logged once with the thread's name, and the thread goes on."""
    went_on = threading.Event()
    calls = 0

    def action() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise error
        went_on.set()

    with running(action):
        assert went_on.wait(WAIT_S)
    call = log.calls[0]
    assert (call.method_name, call.args) == (method, (event,))
    assert call.kwargs["thread"] == "test"


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(log: CapturingLogger) -> None:
    """Not on every try between the two: a worker's threads try several times a second."""
    went_on = threading.Event()
    calls = 0

    def action() -> None:
        nonlocal calls
        calls += 1
        if 3 <= calls <= 8:
            raise RedisUnreachable("Redis cannot be reached")
        if calls == 10:
            went_on.set()

    with running(action):
        assert went_on.wait(WAIT_S)
    assert [call.args[0] for call in log.calls] == ["periodic_failed", "periodic_works_again"]


def test_action_waits_its_interval_first() -> None:
    """Nothing is called at once: who starts it has done the first round already."""
    called = threading.Event()
    with running(called.set, interval_s=60.0):
        assert not called.wait(0.05)


def test_stop_ends_a_long_wait_promptly() -> None:
    """A worker's shutdown does not wait for the next interval."""
    with running(lambda: None, interval_s=3600.0) as periodic:
        started = time.monotonic()
        periodic.stop()
        assert time.monotonic() - started < 2
        assert not [t for t in threading.enumerate() if t.name == "test"]


def test_stop_waits_for_the_call_in_progress() -> None:
    """After `stop` the action is not running and is not called again."""
    entered, leave = threading.Event(), threading.Event()
    finished: list[bool] = []

    def action() -> None:
        entered.set()
        leave.wait(WAIT_S)
        finished.append(True)

    with running(action) as periodic:
        assert entered.wait(WAIT_S)
        threading.Timer(0.05, leave.set).start()
        periodic.stop()
        assert finished == [True]


def test_action_may_stop_its_own_thread(log: CapturingLogger) -> None:
    """No deadlock and no error: the thread does not wait for itself, and ends."""
    returned = threading.Event()

    def action() -> None:
        periodic.stop()
        returned.set()

    periodic = Periodic("test", action, interval_s=0.001)
    periodic.start()
    assert returned.wait(WAIT_S)
    periodic.stop()
    assert not [t for t in threading.enumerate() if t.name == "test"]
    assert not log.calls


def test_stop_before_start_is_no_error() -> None:
    """A worker that never came up is stopped like any other."""
    Periodic("test", lambda: None, interval_s=1.0).stop()
