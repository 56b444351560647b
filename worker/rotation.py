"""Whose turn it is: tenants in rotation, and each tenant's templates in rotation, warm ones first.

Redis hands out the first message among a list of queues, so the order of the list decides. With all
queues in one rotation, a tenant with a hundred templates would have a hundred turns for another's
one.

Among the queues of one tenant those are preferred whose prefix the worker holds, within a bound: of
OUT_OF_TURN + 1 jobs of a tenant in a row at least one is taken in turn, and once OUT_OF_TURN_S have
passed since the first that was not, so is the next. In turn means: from the queue, among those that
hold a message, that was served the longest ago. So a queue waits for at most OUT_OF_TURN + 1 times
as many jobs as its tenant has queues. Tenants take turns as if nothing were preferred.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

OUT_OF_TURN = 7
OUT_OF_TURN_S = 5.0


@dataclass(slots=True)
class _Turns:
    """One tenant's queues, and what was taken out of turn since the last job that was in turn."""

    queues: dict[str, None] = field(default_factory=dict)  # for its order: last served, last
    passed: int = 0
    since: float = 0.0  # when the first of those was taken
    plain: bool = True  # the order last given was that of the turns
    order: list[str] | None = None  # that order; None: something moved since


class TenantRotation:
    """An order of queues, with the methods of kombu's `round_robin_cycle`.

    A queue is `tenant/template/...`; see `contract.keys.queue`. Whoever was served last is last,
    the tenant among tenants and the queue among its tenant's.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tenants: dict[str, _Turns] = {}  # for its order
        self._warm: AbstractSet[str] = frozenset()

    def update(self, queues: Iterable[str]) -> None:
        """These queues from now on. Those that stay keep their place, new ones are served next."""
        wanted: dict[str, dict[str, None]] = {}
        for queue in queues:
            wanted.setdefault(_tenant(queue), {})[queue] = None
        before = self._tenants
        self._tenants = {
            tenant: before.get(tenant, _Turns()) for tenant in _in_turn(wanted, before)
        }
        for tenant, turns in self._tenants.items():
            turns.queues, turns.order = _in_turn(wanted[tenant], turns.queues), None

    def prefer(self, warm: AbstractSet[str]) -> None:
        """Queues whose jobs find their prefix in memory, from now on."""
        if warm is not self._warm:
            self._warm = warm
            for turns in self._tenants.values():
                turns.order = None

    def consume(self, count: int) -> list[str]:
        """The first `count` queues, in the order in which they are to be looked into.

        Only of tenants for which something changed since is the order made anew.
        """
        now, order = self._clock(), list[str]()
        for turns in self._tenants.values():
            plain = not self._warm or _spent(turns, now)
            if turns.order is None or turns.plain != plain:
                turns.plain, turns.order = plain, self._order(turns.queues, plain=plain)
            order += turns.order
        return order[:count]

    def rotate(self, last_used: str) -> str:
        """The queue that was served goes last, and so does its tenant."""
        tenant = _tenant(last_used)
        turns = self._tenants.get(tenant)
        if turns is not None and last_used in turns.queues:
            self._count(turns, last_used)
            del turns.queues[last_used], self._tenants[tenant]
            turns.queues[last_used] = None
            turns.order = None
            self._tenants[tenant] = turns
        return last_used

    def _order(self, queues: Iterable[str], *, plain: bool) -> list[str]:
        if plain:
            return list(queues)
        warm = [queue for queue in queues if queue in self._warm]
        return [*warm, *(queue for queue in queues if queue not in self._warm)]

    def _count(self, turns: _Turns, served: str) -> None:
        """Note whether a queue that may hold a message was passed over."""
        if turns.plain or served not in self._warm or served == self._first_cold(turns, served):
            turns.passed = 0
            return
        turns.passed += 1
        if turns.passed == 1:
            turns.since = self._clock()

    def _first_cold(self, turns: _Turns, served: str) -> str:
        """The first queue in turn that was not looked into before `served`, or that itself."""
        return next(q for q in turns.queues if q == served or q not in self._warm)


def _spent(turns: _Turns, now: float) -> bool:
    """True when the tenant's next job is to be taken in turn."""
    return turns.passed > 0 and (turns.passed >= OUT_OF_TURN or now - turns.since >= OUT_OF_TURN_S)


def _in_turn(wanted: Mapping[str, T], before: Mapping[str, object]) -> dict[str, T]:
    """`wanted` in the order that `before` had them in, after those that are new."""
    new = {name: wanted[name] for name in wanted if name not in before}
    return new | {name: wanted[name] for name in before if name in wanted}


def _tenant(queue: str) -> str:
    return queue.partition("/")[0]
