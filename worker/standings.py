"""What moves of many templates, followed with few round trips however many there are.

All revisions are asked for at once, and the rest only of templates that were moved since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from contract import keys
from contract.awaited import run_now
from contract.calls import BlockingServer
from contract.errors import RedisRefused
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained
from contract.settings import Settings
from templates.standing import Standing, Template, read_standings

log = get_logger(__name__)

T = TypeVar("T")

_AT_ONCE = 256  # templates asked about in one round trip
# Every look reads one in this many again, moved or not: after a failover that lost a move, another
# one has the same revision.
ROUNDS = 30


class Standings:
    """Remembers what it read; not to be shared between threads."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client: Any = client  # redis-py types each reply as a value or an awaitable
        self._settings = settings
        self._server = BlockingServer(client, settings)
        self._known: dict[Template, tuple[bytes | None, Standing]] = {}
        self._damaged: set[Template] = set()  # logged once, until they can be read
        self._round = 0

    def look(self, templates: Sequence[Template]) -> dict[Template, Standing]:
        """As of now, of all these; whose versions cannot be read is as it was, or left out."""
        revisions = self._revisions(templates)
        self._round = (self._round + 1) % ROUNDS
        moved = [
            template
            for place, template in enumerate(templates)
            if revisions[template] is None
            or template in self._damaged
            or place % ROUNDS == self._round
            or template not in self._known
            or self._known[template][0] != revisions[template]
        ]
        # After the revisions: what is read now is of that one, or will be read again.
        self._read(moved, revisions)
        for gone in self._known.keys() - revisions.keys():
            del self._known[gone]
        self._damaged &= revisions.keys()
        return {t: self._known[t][1] for t in templates if t in self._known}

    def _revisions(self, templates: Sequence[Template]) -> dict[Template, bytes | None]:
        found: dict[Template, bytes | None] = {}
        for some in _parts(templates):
            with errors_explained(self._settings):
                values = self._client.mget([keys.revision(*template) for template in some])
            found |= dict(zip(some, values, strict=True))
        return found

    def _read(
        self, templates: Sequence[Template], revisions: Mapping[Template, bytes | None]
    ) -> None:
        reads = run_now(read_standings(self._server, templates))
        for template, read in zip(templates, reads, strict=True):
            self._note(template, read.damage)
            if read.standing is not None:
                self._known[template] = (revisions[template], read.standing)

    def _note(self, template: Template, damage: RedisRefused | None) -> None:
        if damage is None:
            self._damaged.discard(template)
        elif template not in self._damaged:
            self._damaged.add(template)
            tenant, name = template
            log.warning("template_not_read", tenant=tenant, template=name, error=str(damage)[:200])


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _AT_ONCE):
        yield items[start : start + _AT_ONCE]
