"""The order in which waiting jobs are taken: tenants in turn, each tenant's templates in turn.

As `worker.rotation` has it, for one queue that all workers share.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from scale.trace import Work


class Turns:
    """Jobs that wait, and whose turn is next. Each call takes the same time, however many wait."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, OrderedDict[str, deque[Work]]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, work: Work) -> None:
        """Behind the others of its template."""
        template = work.version.partition("@")[0]
        templates = self._tenants.setdefault(work.tenant, OrderedDict())
        templates.setdefault(template, deque()).append(work)
        self._count += 1

    def take(self) -> Work:
        """The next one. Raises KeyError if none waits."""
        tenant, templates = self._tenants.popitem(last=False)
        template, works = templates.popitem(last=False)
        work = works.popleft()
        self._count -= 1
        if works:
            templates[template] = works
        if templates:
            self._tenants[tenant] = templates
        return work
