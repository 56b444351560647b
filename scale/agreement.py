"""Whether a queue's messages are as many as its records, and if not, why that may be."""

from __future__ import annotations

from contract.load import Load


def disagreements(load: Load) -> list[str]:
    """What differs, each with what it may come from; empty if all agree.

    Records decide what runs; a message is only a doorbell. So none of this loses a job, and the
    numbers that `prefillq scale` reckons with are the records'.
    """
    found = []
    if load.late:
        found.append(
            f"{load.late} running records have a lease that ended: their worker was killed or cut "
            "off; a janitor rings for them, where any worker lives"
        )
    more = load.messages - load.waiting
    if more > 0:
        found.append(
            f"{more} more messages than waiting records: of jobs that were cancelled, ran out of "
            "time or were rung for twice; a worker drops them"
        )
    elif more < 0:
        found.append(f"{-more} fewer messages than waiting records: {_missing(load, -more)}")
    if load.unacked is None:
        found.append("messages that workers have taken are too many to be told apart by queue")
    elif load.unacked > load.running:
        found.append(
            f"{load.unacked - load.running} more messages taken than records running: taken and "
            "not claimed yet, just done, or taken by a worker that was killed (the broker gives "
            "those back after a minute)"
        )
    elif load.unacked < load.running:
        found.append(
            f"{load.running - load.unacked} fewer messages taken than records running: rung for "
            "again, or a worker lost its connection to the broker and is still computing"
        )
    return found


def _missing(load: Load, count: int) -> str:
    reasons = []
    if load.delayed:
        reasons.append(f"{min(load.delayed, count)} wait for another attempt and are rung for then")
    if load.held:
        reasons.append(f"{load.held} of the tenant's are held back by its max_running")
    taken = 0 if load.unacked is None else load.unacked - load.running
    if taken > 0:
        reasons.append(f"{min(taken, count)} are taken and not claimed yet")
    reasons.append(
        "the others are just being submitted, or their message was lost and a janitor rings again "
        "within a lease"
    )
    return "; ".join(reasons)
