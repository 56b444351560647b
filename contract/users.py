"""The Redis users that `prefillq tenants` makes, known by their names.

Each tenant has a producer (submits jobs, reads results) and an admin (publishes templates, moves
labels); all workers share one user. What each may do is in `tenants.grants`. A client reads its
role off the user in its URL: such a user may not send scripts and runs the functions that an
operator stored (`contract.scripts`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from contract.ids import NAME


class Role(StrEnum):
    """What a user is for."""

    PRODUCER = "producer"
    ADMIN = "admin"
    WORKER = "worker"


TENANT_ROLES = (Role.PRODUCER, Role.ADMIN)
_USER = re.compile(rf"prefillq-(?:worker|(?P<tenant>{NAME})-(?P<role>producer|admin))")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RedisUser:
    """One ACL user of ours. `tenant` is None for the workers' user."""

    tenant: str | None
    role: Role

    @property
    def name(self) -> str:
        """`prefillq-acme-producer`, `prefillq-worker`."""
        return "-".join(part for part in ("prefillq", self.tenant, self.role) if part)


WORKER = RedisUser(tenant=None, role=Role.WORKER)


def parse_user(name: str) -> RedisUser | None:
    """The user of that name; None when it is none of ours."""
    match = _USER.fullmatch(name)
    if match is None:
        return None
    if match["tenant"] is None:
        return WORKER
    return RedisUser(tenant=match["tenant"], role=Role(match["role"]))


def user_of(redis_url: str) -> RedisUser | None:
    """The user that a client with this URL logs in as; None for the default user and others."""
    return parse_user(unquote(urlsplit(redis_url).username or ""))
