"""What moves of many templates, followed with few round trips however many there are.

All revisions are asked for at once, and the rest only of templates that were moved since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from contract import keys
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained
from contract.settings import Settings
from contract.types import VersionRef
from templates.stored import read_names, read_numbers, read_refs, version_number

log = get_logger(__name__)

T = TypeVar("T")
Template = tuple[str, str]  # tenant, name

_AT_ONCE = 256  # templates asked about in one round trip
# Every look reads one in this many again, moved or not: after a failover that lost a move, another
# one has the same revision.
ROUNDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One template's versions and where they stand, as of one look."""

    refs: tuple[VersionRef, ...]  # oldest first
    labels: Mapping[str, int] = field(default_factory=dict)  # label -> version number
    retired: frozenset[int] = frozenset()


class Standings:
    """Remembers what it read; not to be shared between threads."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client: Any = client  # redis-py types each reply as a value or an awaitable
        self._settings = settings
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
        for some in _parts(moved):
            self._read(some, revisions)
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
        with errors_explained(self._settings):
            pipe = self._client.pipeline(transaction=False)
            for template in templates:
                pipe.hgetall(keys.versions(*template))
                pipe.hgetall(keys.labels(*template))
                pipe.hkeys(keys.retired(*template))
            # A key that its tenant's admin spoilt must not hide the others.
            replies = pipe.execute(raise_on_error=False)
        for at, template in enumerate(templates):
            versions, labels, retired = replies[3 * at : 3 * at + 3]
            self._note(template, [versions, labels, retired])
            if isinstance(versions, ResponseError):
                continue
            self._known[template] = (
                revisions[template],
                Standing(
                    refs=tuple(read_refs(*template, versions)),
                    labels={} if isinstance(labels, ResponseError) else _labels(labels),
                    retired=frozenset(
                        () if isinstance(retired, ResponseError) else read_numbers(retired)
                    ),
                ),
            )

    def _note(self, template: Template, replies: list[object]) -> None:
        errors = [reply for reply in replies if isinstance(reply, ResponseError)]
        if not errors:
            self._damaged.discard(template)
        elif template not in self._damaged:
            self._damaged.add(template)
            tenant, name = template
            log.warning(
                "template_not_read", tenant=tenant, template=name, error=str(errors[0])[:200]
            )


def _labels(found: Mapping[bytes, bytes]) -> dict[str, int]:
    """Labels that point to a number; what an admin wrote by hand hides no other."""
    numbers = {label: version_number(found[label.encode()]) for label in read_names(found)}
    return {label: number for label, number in numbers.items() if number is not None}


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _AT_ONCE):
        yield items[start : start + _AT_ONCE]
