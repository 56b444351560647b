"""Leases: renewed while a job runs, and the way in which a job learns to stop."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from contract.errors import RedisRefused, RedisUnreachable


def test_renewal_keeps_a_long_job_its_workers(make_stack: Any) -> None:
    """Case Q3: with renewals every quarter, a job longer than its lease is not given away."""
    stack = make_stack()
    job_id = stack.submit()
    claim = stack.store.claim(job_id, "w1", stack.leases.lease_s)
    with stack.leases.hold(job_id, claim.job.fence) as lease:
        for _ in range(20):
            stack.clock.now += stack.leases.lease_s / 4
            stack.leases.renew_all()
            assert stack.store.claim(job_id, "w2", 60.0).reason == "leased"
        assert lease.stop_reason() is None


def test_without_renewal_the_job_is_given_away_and_its_holder_told(make_stack: Any) -> None:
    """The same without renewals: this is what the test above would catch."""
    stack = make_stack()
    job_id = stack.submit()
    claim = stack.store.claim(job_id, "w1", stack.leases.lease_s)
    with stack.leases.hold(job_id, claim.job.fence) as lease:
        stack.clock.now += stack.leases.lease_s + 1
        assert stack.store.claim(job_id, "w2", 60.0).job.fence == 2
        stack.leases.renew_all()
        assert lease.stop_reason() == "lost"


def test_renewal_moves_the_messages_score_only_while_it_is_unacknowledged(make_stack: Any) -> None:
    """The broker's clock is pushed with XX: an acknowledged message does not come back."""
    calls: list[Any] = []

    class Broker:
        def zadd(self, key: str, scores: dict[str, float], *, xx: bool) -> None:
            calls.append((key, list(scores), xx))

    stack = make_stack()
    stack.leases._broker = Broker()
    job_id = stack.submit()
    claim = stack.store.claim(job_id, "w1", 60.0)
    with stack.leases.hold(job_id, claim.job.fence, delivery_tag="tag-1"):
        stack.leases.renew_all()
    stack.leases.renew_all()
    assert calls == [("pq:_broker:unacked_index", ["tag-1"], True)]


def test_redis_away_stops_no_running_job(make_stack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that cannot be answered means go on; the fence guards the commit."""
    stack = make_stack()

    def away(*_: Any) -> Any:
        raise RedisUnreachable("Redis cannot be reached")

    monkeypatch.setattr(stack.store, "stop_reasons", away)
    with stack.leases.hold("acme.x", 1) as lease:
        with pytest.raises(RedisUnreachable):
            stack.leases.look_all()
        assert lease.stop_reason() is None


def test_engine_is_never_kept_waiting_by_redis(
    make_stack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its steps the engine reads what was found; it asks no store, however slow that is."""
    stack = make_stack()
    for name in ("stop_reason", "stop_reasons", "renew", "renew_many"):
        monkeypatch.setattr(stack.store, name, None)
    with stack.leases.hold("acme.x", 1) as lease:
        assert [lease.stop_reason() for _ in range(100)] == [None] * 100


def test_one_refused_renewal_hinders_no_other(
    make_stack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged record's refusal stands in its place; the lease after it is renewed or ended."""
    stack = make_stack()
    monkeypatch.setattr(
        stack.store, "renew_many", lambda *_: [RedisRefused("wrong type"), "lost", "ok"]
    )
    with (
        stack.leases.hold("acme.a", 1) as refused,
        stack.leases.hold("acme.b", 1) as lost,
        stack.leases.hold("acme.c", 1) as kept,
    ):
        stack.leases.renew_all()
        assert [it.stop_reason() for it in (refused, lost, kept)] == [None, "lost", None]


def test_a_look_finds_cancels_and_deadlines(make_stack: Any) -> None:
    """Each running job is told its own reason, and only once it has one."""
    stack = make_stack()
    cancelled, late, fine = stack.submit("a"), stack.submit("b", deadline_s=5), stack.submit("c")
    claims = [stack.store.claim(job_id, "w1", 60.0) for job_id in (cancelled, late, fine)]
    with ExitStack() as stack_of_leases:
        held = [
            stack_of_leases.enter_context(stack.leases.hold(claim.job.id, claim.job.fence))
            for claim in claims
        ]
        stack.leases.look_all()
        assert [lease.stop_reason() for lease in held] == [None, None, None]
        stack.store.cancel(cancelled)
        stack.clock.now += 6
        stack.leases.look_all()
        assert [lease.stop_reason() for lease in held] == ["cancelled", "expired", None]
