"""Leases: renewed while a job runs, and the way in which a job learns to stop."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from contract.errors import RedisUnreachable


def test_renewal_keeps_a_long_job_its_workers(make_stack: Any) -> None:
    """Case Q3: with renewals every quarter, a job longer than its lease is not given away."""
    stack = make_stack()
    job_id = stack.submit()
    claim = stack.store.claim(job_id, "w1", stack.leases.lease_s)
    with stack.leases.hold(job_id, claim.job.fence) as lease:
        for _ in range(20):
            stack.clock.now += 15
            stack.leases.renew_all()
            assert stack.store.claim(job_id, "w2", 60.0).reason == "leased"
        assert lease.known_stop is None


def test_without_renewal_the_job_is_given_away_and_its_holder_told(make_stack: Any) -> None:
    """The same without renewals: this is what the test above would catch."""
    stack = make_stack()
    job_id = stack.submit()
    claim = stack.store.claim(job_id, "w1", stack.leases.lease_s)
    with stack.leases.hold(job_id, claim.job.fence) as lease:
        stack.clock.now += 61
        assert stack.store.claim(job_id, "w2", 60.0).job.fence == 2
        stack.leases.renew_all()
        assert lease.known_stop == "lost"


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
    """A stop check that cannot be answered means go on; the fence guards the commit."""
    stack = make_stack()

    def away(_: Any) -> Any:
        raise RedisUnreachable("Redis cannot be reached")

    monkeypatch.setattr(stack.store, "stop_reasons", away)
    with stack.leases.hold("acme.x", 1) as lease:
        stack.leases.look_all()
        assert lease.stop_reason() is None


def test_one_look_tells_each_job_its_own_reason(make_stack: Any) -> None:
    """A cancelled, a late, a stolen and an untouched job, in one call of the store."""
    stack = make_stack()
    jobs = [stack.submit(str(n), deadline_s=30 if n == 1 else 3600) for n in range(4)]
    with ExitStack() as held:
        leases = []
        for number, job_id in enumerate(jobs):
            claim = stack.store.claim(job_id, "w1", 20.0 if number == 2 else 60.0)
            leases.append(held.enter_context(stack.leases.hold(job_id, claim.job.fence)))
        stack.store.cancel(jobs[0])
        stack.clock.now += 31
        stack.store.claim(jobs[2], "w2", 60.0)
        stack.leases.look_all()
        reasons = [lease.stop_reason() for lease in leases]
    assert reasons == ["cancelled", "expired", "lost", None]
