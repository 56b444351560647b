"""Replies of Redis as values. What a tenant's users may write by hand is taken for what it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from contract.codec import pack
from contract.job_store import TenantLimits
from contract.logs import get_logger
from contract.record_hash import fields_of
from ui.look import MAX_ROWS

log = get_logger(__name__)

T = TypeVar("T")

_NO_INPUT = pack({})


def record_of(names: Sequence[str], reply: Sequence[bytes | None]) -> dict[bytes, bytes]:
    """A record as `view_of` reads one, where need be without its input."""
    found = fields_of(names, reply) if reply else {}
    return {b"input": _NO_INPUT, **found} if found else {}


def ids_of(tenant: str, found: Iterable[Any] | None) -> list[str]:
    """Entries of an index that are ids of the tenant's jobs; its producers may write others."""
    prefix, length = f"{tenant}.", len(tenant) + 33
    names = [entry.decode("ascii", "replace") for entry in found or () if isinstance(entry, bytes)]
    return [
        name
        for name in names
        if len(name) == length
        and name.startswith(prefix)
        and all(digit in "0123456789abcdef" for digit in name[len(prefix) :])
    ]


def submitted_at(ids: Sequence[str]) -> float | None:
    """When the oldest was submitted, by its producer's clock: an id begins with that."""
    return min((int(job_id[-32:-20], 16) / 1000 for job_id in ids), default=None)


def fairly(lists: Sequence[list[T]], most: int | None = None) -> list[T]:
    """At most so many (MAX_ROWS), of each list as many as of the others."""
    most = MAX_ROWS if most is None else most
    each = max(1, most // max(1, sum(map(bool, lists))))
    return [item for items in lists for item in items[:each]][:most]


def limits_of(tenant: str, values: Sequence[Any] | None) -> TenantLimits:
    rate, queued, running = values or (None, None, None)
    try:
        return TenantLimits(
            rate_per_s=None if rate is None else float(rate),
            max_queued=None if queued is None else int(queued),
            max_running=None if running is None else int(running),
        )
    except ValueError:
        log.warning("limits_unreadable", tenant=tenant)
        return TenantLimits()


def seconds_of(time: Sequence[Any]) -> float:
    return float(time[0]) + float(time[1]) / 1e6
