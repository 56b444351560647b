"""How many replicas of a worker a queue needs. Pure; docs/scaling.md has the formula in words.

Units: seconds and jobs. A replica has `concurrency` slots and holds a job `service_s` seconds, so
it serves `concurrency / service_s` jobs a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

# A rate measured over a minute is off by chance; slots are not planned to be busier than this.
MAX_UTILISATION = 0.9
# At most this share of the jobs waits longer than the target.
LATE_SHARE = 0.05

Because = Literal[
    "backlog", "arrivals", "running", "max_running", "service_time_unknown", "idle", "min", "max"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What there is to do, and with what."""

    waiting: int  # jobs
    running: int  # jobs
    arrivals_per_s: float
    service_s: float | None  # that a worker holds a job, on average; None if not known
    concurrency: float  # jobs that one replica holds at once, on average
    replicas: int  # there are now
    most_running: int | None = None  # jobs that tenants' limits let run at once; None: any number


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is wanted."""

    wait_s: float  # above 0: no job shall wait longer
    minimum: int = 0
    maximum: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """How many replicas, and what decides. The parts are before `minimum` and `maximum`."""

    replicas: int
    because: Because
    for_backlog: int
    for_arrivals: int


def advise(demand: Demand, goal: Goal) -> Advice:
    """The fewest replicas with which

    - the job that is last in the queue now begins within `wait_s`; what comes later does not matter
      to it, for the queue is first in, first out: `waiting * service_s / (concurrency * wait_s)`;
    - what arrives waits longer than `wait_s` in LATE_SHARE of the cases at most, as in a queue with
      so many servers, random arrivals and random service times (M/M/c), with no slot busier than
      MAX_UTILISATION.

    But no more than `most_running` jobs fill: further ones would have nothing to do.

    At least 1 if anything waits or runs; `minimum` if nothing does and nothing arrives. Without a
    known service time what is there stays, for nothing else can be known to be better.
    """
    busy = demand.waiting > 0 or demand.running > 0
    if demand.service_s is None:
        wanted = max(demand.replicas, 1) if busy else 0
        return _within(wanted, "service_time_unknown" if busy else "idle", 0, 0, goal)
    # A service time of 0 is one below the clock's grain.
    service_s, slots = max(demand.service_s, 1e-6), max(demand.concurrency, 1e-6)
    for_backlog = math.ceil(round(demand.waiting * service_s / (slots * goal.wait_s), 9))
    for_arrivals = _for_arrivals(demand.arrivals_per_s, service_s, slots, goal)
    wanted = max(for_backlog, for_arrivals)
    because: Because = "backlog" if for_backlog >= for_arrivals else "arrivals"
    if wanted == 0:
        wanted, because = (1, "running") if busy else (0, "idle")
    if demand.most_running is not None:
        filled = max(1, math.ceil(round(max(demand.most_running, demand.running) / slots, 9)))
        if filled < wanted:
            wanted, because = filled, "max_running"
    return _within(wanted, because, for_backlog, for_arrivals, goal)


def _within(
    wanted: int, because: Because, for_backlog: int, for_arrivals: int, goal: Goal
) -> Advice:
    replicas = min(max(wanted, goal.minimum), goal.maximum)
    if replicas > wanted:
        because = "min"
    elif replicas < wanted:
        because = "max"
    return Advice(
        replicas=replicas, because=because, for_backlog=for_backlog, for_arrivals=for_arrivals
    )


def _for_arrivals(rate: float, service_s: float, slots: float, goal: Goal) -> int:
    """Looks no further than one beyond `goal.maximum`."""
    if rate <= 0:
        return 0
    offered = rate * service_s  # slots that are busy on average
    replicas = max(1, math.ceil(round(offered / (MAX_UTILISATION * slots), 9)))
    if replicas > goal.maximum:
        return replicas
    # Erlang's B, from one server to the next; C and the share that waits longer follow from it.
    blocked, servers = 1.0, 0
    while replicas <= goal.maximum:
        # Half a slot serves nobody; a mean concurrency below one is one.
        wanted = max(1, math.floor(replicas * slots))
        while servers < wanted:
            servers += 1
            blocked = offered * blocked / (servers + offered * blocked)
        if _late_share(blocked, servers, offered, goal.wait_s / service_s) <= LATE_SHARE:
            return replicas
        replicas += 1
    return replicas


def _late_share(blocked: float, servers: int, offered: float, wait: float) -> float:
    """The share of jobs that wait longer than `wait` service times (M/M/c)."""
    if servers <= offered:
        return 1.0
    waits = servers * blocked / (servers - offered * (1.0 - blocked))
    return waits * math.exp(-(servers - offered) * wait)
