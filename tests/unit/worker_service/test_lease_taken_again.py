"""A job that comes back to the worker that lost it, while its former run still goes on."""

from __future__ import annotations

from typing import Any


def test_end_of_the_former_run_leaves_the_new_lease_alone(make_stack: Any) -> None:
    """The new run's lease is renewed after the former run noticed that it had lost its own."""
    stack = make_stack()
    job_id = stack.submit()
    former = stack.store.claim(job_id, "w1", stack.leases.lease_s)
    with stack.leases.hold(job_id, former.job.fence) as lost:
        stack.clock.now += stack.leases.lease_s + 1
        new = stack.store.claim(job_id, "w1", stack.leases.lease_s)
        held = stack.leases.hold(job_id, new.job.fence)
        lease = held.__enter__()
        assert stack.leases.running == 2
        stack.leases.renew_all()
        assert (lost.stop_reason(), lease.stop_reason()) == ("lost", None)
    stack.clock.now += 0.75 * stack.leases.lease_s
    stack.leases.renew_all()
    stack.clock.now += 0.75 * stack.leases.lease_s
    assert stack.store.claim(job_id, "w2", 60.0).reason == "leased"
    held.__exit__(None, None, None)
    assert stack.leases.running == 0
