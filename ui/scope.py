"""What the Redis user of a page may read, known from the user's name.

Redis would refuse the rest anyway, but each refusal is an entry of its ACL LOG, which an operator
watches, and there would be one at every look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contract.errors import InvalidInput
from contract.ids import check_name
from contract.settings import Settings
from contract.users import Role, user_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose data a page shows, and which kinds of it."""

    tenants: tuple[str, ...] | None = None  # None: all that Redis has
    workers: bool = True  # reports of workers, which name templates of all tenants
    records: bool = True  # what is in a job's record, and notices of jobs that ended

    def covers(self, tenant: str) -> bool:
        """True when this tenant's data is to be shown."""
        return self.tenants is None or tenant in self.tenants


def scope_of(settings: Settings, tenants: Sequence[str] = ()) -> Scope:
    """What a page shows: `tenants`, or all that its user may see.

    Raises InvalidInput for what is no tenant, and for one that the user may not see.
    """
    wanted = tuple(dict.fromkeys(check_name("tenant", tenant) for tenant in tenants))
    user = user_of(settings.redis_url)
    if user is None or user.tenant is None:
        return Scope(tenants=wanted or None)
    if others := [tenant for tenant in wanted if tenant != user.tenant]:
        raise InvalidInput(
            "this Redis user sees one tenant",
            given=", ".join(others),
            expected=user.tenant,
            remedy="Log in as another user in PREFILLQ_REDIS_URL, or leave --tenant out.",
        )
    return Scope(tenants=(user.tenant,), workers=False, records=user.role is Role.PRODUCER)
