"""The order in which workers take waiting jobs: tenants in turn, each tenant's templates in turn.

As `worker.rotation` has it: each worker takes turns of its own, beginning with the names in their
order, and prefers, of a tenant's templates, those whose prefix it holds, within a bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from scale.workload import Work

# As `worker.rotation` has them.
OUT_OF_TURN = 7
OUT_OF_TURN_S = 5.0


class Rotation:
    """Of one worker: whom it served when, and what it took out of turn."""

    __slots__ = ("_passed", "_served", "_times", "held")

    def __init__(self) -> None:
        self.held: set[str] = set()  # templates whose prefix is there
        self._times = 0
        self._served: dict[str, int] = {}  # tenants and templates -> the last of the times
        self._passed: dict[str, tuple[int, float]] = {}  # tenant -> out of turn, since when

    def choose(self, waiting: dict[str, dict[str, deque[Work]]], now: float) -> tuple[str, str]:
        """Tenant and template to take a job of."""
        tenant = self._due(waiting)
        templates = waiting[tenant]
        due = chosen = self._due(templates)
        passed, since = self._passed.get(tenant, (0, now))
        spent = passed >= OUT_OF_TURN or (passed > 0 and now - since >= OUT_OF_TURN_S)
        if self.held and due not in self.held and not spent:
            chosen = self._due(name for name in templates if name in self.held) or due
        if chosen != due:
            self._passed[tenant] = (passed + 1, since)
        elif passed:
            del self._passed[tenant]
        return tenant, chosen

    def serve(self, tenant: str, template: str) -> None:
        """Note that they had a turn."""
        self._times += 1
        self._served[tenant] = self._served[template] = self._times

    def _due(self, names: Iterable[str]) -> str:
        """Served the longest ago; of those that never were, the first. Empty for none."""
        found, served = "", self._times + 1
        for name in names:
            at = self._served.get(name, 0)
            if at < served or (at == served and name < found):
                found, served = name, at
        return found


class Waiting:
    """Jobs that no worker has yet.

    To take one is as fast however many there are, and slower the more templates of a tenant wait.
    """

    def __init__(self) -> None:
        self._tenants: dict[str, dict[str, deque[Work]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, work: Work) -> None:
        """Behind the others of its template."""
        templates = self._tenants.setdefault(work.tenant, {})
        templates.setdefault(template_of(work.version), deque()).append(work)
        self._count += 1

    def take(self, rotation: Rotation, now: float) -> Work:
        """The next one for a worker, which is noted as served; some must wait."""
        tenant, template = rotation.choose(self._tenants, now)
        works = self._tenants[tenant][template]
        work = works.popleft()
        self._count -= 1
        if not works:
            del self._tenants[tenant][template]
            if not self._tenants[tenant]:
                del self._tenants[tenant]
        rotation.serve(tenant, template)
        return work


def template_of(version: str) -> str:
    """`acme/triage` of `acme/triage@1`."""
    return version.partition("@")[0]
