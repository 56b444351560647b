"""Where the versions of many templates stand, read in few round trips however many there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contract import keys
from contract.calls import Server, command
from contract.errors import PrefillqError, RedisRefused
from contract.types import VersionRef
from templates.stored import read_names, read_numbers, read_refs, version_number

Template = tuple[str, str]  # tenant, name


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One template's versions and where they stand, as of one look."""

    refs: tuple[VersionRef, ...]  # oldest first
    labels: Mapping[str, int] = field(default_factory=dict)  # label -> version number
    retired: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingRead:
    """What came of reading one template's standing."""

    standing: Standing | None  # None where its versions cannot be read
    damage: RedisRefused | None = None  # why that is, or why its labels or retirements are left out


async def read_standings(server: Server, templates: Sequence[Template]) -> list[StandingRead]:
    """In the order of `templates`; an unknown one has no versions. Raises RedisUnreachable.

    A key that its tenant's admin spoilt hides no other template.
    """
    replies = await server.ask_each(
        [
            call
            for template in templates
            for call in (
                command("HGETALL", keys.versions(*template)),
                command("HGETALL", keys.labels(*template)),
                command("HKEYS", keys.retired(*template)),
            )
        ]
    )
    for reply in replies:
        if isinstance(reply, PrefillqError) and not isinstance(reply, RedisRefused):
            raise reply
    found = []
    for at, template in enumerate(templates):
        versions, labels, retired = of_it = replies[3 * at : 3 * at + 3]
        standing = None
        if not isinstance(versions, RedisRefused):
            standing = Standing(
                refs=tuple(read_refs(*template, versions)),
                labels={} if isinstance(labels, RedisRefused) else _labels(labels),
                retired=frozenset(
                    () if isinstance(retired, RedisRefused) else read_numbers(retired)
                ),
            )
        damage = next((reply for reply in of_it if isinstance(reply, RedisRefused)), None)
        found.append(StandingRead(standing=standing, damage=damage))
    return found


def _labels(found: Mapping[bytes, bytes]) -> dict[str, int]:
    """Labels that point to a number; what an admin wrote by hand hides no other."""
    numbers = {label: version_number(found[label.encode()]) for label in read_names(found)}
    return {label: number for label, number in numbers.items() if number is not None}
