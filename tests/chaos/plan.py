"""What a seed comes to: the jobs that each producer submits, and what is broken when.

Both are functions of the seed alone, so that a producer that was killed knows what it was about
to do, and an auditor knows what was asked without asking Redis. How the processes' work falls
between the deeds is up to the machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

LEASE_S = 4.0  # the shortest allowed: more leases run out in a minute
MAX_ATTEMPTS = 4

TEMPLATES = ("acme/notes", "acme/mail", "globex/notes", "initech/forms")
FIRST_PRODUCER = "producer-1"
OWN = "roll"  # tenant of the templates that one worker alone serves, named after it

# Texts on which the fake workers act; see tests.support.fake_worker.
POISON, NAN, CRASH = "nightshade", "quicksand", "tripwire"


class Kind(StrEnum):
    """What a job is meant to meet."""

    PLAIN = "plain"
    LONG = "long"  # runs for longer than a lease
    CANCELLED = "cancelled"  # its producer cancels it, before, during or after
    HASTY = "hasty"  # its deadline is short
    PASSING = "passing"  # some workers fail on it for a reason that may pass
    CRASHING = "crashing"  # the fake workers' code fails on it
    POISON = "poison"  # kills the fake workers, each time


_KIND_WEIGHTS = {
    Kind.PLAIN: 74,
    Kind.LONG: 6,
    Kind.CANCELLED: 8,
    Kind.HASTY: 7,
    Kind.PASSING: 3,
    Kind.CRASHING: 1.7,
    Kind.POISON: 0.3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """One job to submit."""

    number: int
    key: str  # its idempotency key, which is also in its input
    template: str
    kind: Kind
    note: str
    deadline_s: float | None
    cancel_after_s: float | None
    gives_up: bool  # is not submitted again when its first submit says that nothing was enqueued


def planned_job(seed: int, producer: str, number: int, *, own: tuple[str, ...] = ()) -> PlannedJob:
    """The job that comes `number`th in this producer's life. `own` are templates of one worker."""
    key = f"{producer}-{number}"
    rng = random.Random(f"{seed}/{key}")
    kinds = tuple(Kind)
    # One producer's first have every kind once, so that the shortest run has them all.
    [kind] = (
        [kinds[number]]
        if producer == FIRST_PRODUCER and number < len(kinds)
        else rng.choices(list(_KIND_WEIGHTS), list(_KIND_WEIGHTS.values()))
    )
    work_s = rng.uniform(1.3, 1.7) * LEASE_S if kind is Kind.LONG else rng.expovariate(3.0)
    word = {Kind.POISON: POISON, Kind.PASSING: NAN, Kind.CRASHING: CRASH}.get(kind, "")
    return PlannedJob(
        number=number,
        key=key,
        template=rng.choice(own) if own and rng.random() < 0.1 else rng.choice(TEMPLATES),
        kind=kind,
        note=f"work={work_s:.2f} [{key}] {word}".strip(),
        deadline_s=rng.uniform(0.1, 3.0) if kind is Kind.HASTY else None,
        cancel_after_s=rng.uniform(0.0, 1.5) if kind is Kind.CANCELLED else None,
        gives_up=rng.random() < 0.5,
    )


class Act(StrEnum):
    """What is done to the system."""

    KILL = "kill"  # kill -9 of a fake worker
    KILL_REAL = "kill_real"
    TERMINATE = "terminate"  # SIGTERM
    HURRY = "hurry"  # SIGTERM twice: all jobs are returned
    PAUSE = "pause"  # SIGSTOP for longer than a lease, then SIGCONT
    RESTART_REDIS = "restart_redis"
    CRASH_REDIS = "crash_redis"  # kill -9, down for a while, started on the same data
    CUT = "cut"  # all of a worker's connections
    STALL = "stall"  # a worker's connections go silent for a while
    REFUSE = "refuse"  # a worker's connections are closed and new ones refused for a while
    CUT_REPLY = "cut_reply"  # a script ran, and the worker never hears of it
    LOSE_MESSAGE = "lose_message"  # cut while a worker takes a message from its queue
    CUT_PRODUCER = "cut_producer"
    CUT_SUBMIT = "cut_submit"  # a producer's script ran, and it never hears of it
    STALL_PRODUCER = "stall_producer"
    KILL_PRODUCER = "kill_producer"


_ACT_WEIGHTS = {
    Act.KILL: 42,
    Act.KILL_REAL: 1.5,
    Act.TERMINATE: 6,
    Act.HURRY: 4,
    Act.PAUSE: 5,
    Act.RESTART_REDIS: 3,
    Act.CRASH_REDIS: 4,
    Act.CUT: 6,
    Act.STALL: 4,
    Act.REFUSE: 4,
    Act.CUT_REPLY: 6,
    Act.LOSE_MESSAGE: 6,
    Act.CUT_PRODUCER: 3,
    Act.CUT_SUBMIT: 4,
    Act.STALL_PRODUCER: 2,
    Act.KILL_PRODUCER: 2,
}

_LENGTHS_S = {
    Act.PAUSE: (1.2 * LEASE_S, 1.8 * LEASE_S),
    Act.CRASH_REDIS: (0.0, 2.5),
    Act.STALL: (0.5, 1.5 * LEASE_S),
    Act.REFUSE: (0.5, LEASE_S),
    Act.STALL_PRODUCER: (0.5, LEASE_S),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDeed:
    """One thing to break."""

    at_s: float  # from the start
    act: Act
    pick: float  # 0 to 1: which of those that it can be done to
    length_s: float = 0.0


def planned_deeds(seed: int, *, seconds: float, every_s: float) -> list[PlannedDeed]:
    """Every act once in random order, then acts by weight, one every `every_s` on average.

    In a run too short for that they come as fast as they must.
    """
    rng = random.Random(f"{seed}/deeds")
    pause_s = min(every_s, 0.9 * seconds / len(Act))
    order = rng.sample(list(Act), k=len(Act))
    deeds, at_s = [], 0.0
    while True:
        # The first pass keeps its time, or the last of it might come too late.
        at_s += pause_s if len(deeds) < len(order) else rng.expovariate(1 / every_s)
        if at_s > seconds:
            return deeds
        act = (
            order[len(deeds)]
            if len(deeds) < len(order)
            else rng.choices(list(_ACT_WEIGHTS), list(_ACT_WEIGHTS.values()))[0]
        )
        low, high = _LENGTHS_S.get(act, (0.0, 0.0))
        deeds.append(
            PlannedDeed(at_s=at_s, act=act, pick=rng.random(), length_s=rng.uniform(low, high))
        )
