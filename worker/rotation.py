"""Whose turn it is: tenants in rotation, and each tenant's templates in rotation.

Redis hands out the first message among a list of queues, so the order of the list decides. With all
queues in one rotation, a tenant with a hundred templates would have a hundred turns for another's
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


class TenantRotation:
    """An order of queues, with the methods of kombu's `round_robin_cycle`.

    A queue is `tenant/template/...`; see `contract.keys.queue`. Whoever was served last is last,
    the tenant among tenants and the queue among its tenant's.
    """

    def __init__(self) -> None:
        # Dicts for their order.
        self._tenants: dict[str, dict[str, None]] = {}

    def update(self, queues: Iterable[str]) -> None:
        """These queues from now on. Those that stay keep their place, new ones are served next."""
        wanted: dict[str, dict[str, None]] = {}
        for queue in queues:
            wanted.setdefault(_tenant(queue), {})[queue] = None
        self._tenants = {
            tenant: _in_turn(those, self._tenants.get(tenant, {}))
            for tenant, those in _in_turn(wanted, self._tenants).items()
        }

    def consume(self, count: int) -> list[str]:
        """The first `count` queues, in the order in which they are to be looked into."""
        return list(islice((q for queues in self._tenants.values() for q in queues), count))

    def rotate(self, last_used: str) -> str:
        """The queue that was served goes last, and so does its tenant."""
        tenant = _tenant(last_used)
        queues = self._tenants.get(tenant)
        if queues is not None and last_used in queues:
            del queues[last_used], self._tenants[tenant]
            queues[last_used] = None
            self._tenants[tenant] = queues
        return last_used


def _in_turn(wanted: Mapping[str, T], before: Mapping[str, object]) -> dict[str, T]:
    """`wanted` in the order that `before` had them in, after those that are new."""
    new = {name: wanted[name] for name in wanted if name not in before}
    return new | {name: wanted[name] for name in before if name in wanted}


def _tenant(queue: str) -> str:
    return queue.partition("/")[0]
