"""Who the tests log in as: one URL for everything, or restricted users under `pytest --acl`.

The users of the suite hold the grants of several tenants at once, because its tests share one
producer between tenants. That shows whether the grants are enough; whether they are too much, for
one tenant's users, is what test_acl_matrix.py shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from contract import keys
from contract.job_store import JobStore
from contract.records import RedisJobStore
from contract.redis_client import Client
from contract.settings import Settings
from contract.users import WORKER, RedisUser, Role
from tenants.accounts import Accounts
from tenants.grants import grants_of, rules_of

TENANTS = ("acme", "broken", "evil", "globex")
_USERS = {
    Role.PRODUCER: RedisUser(tenant="acme", role=Role.PRODUCER),
    Role.ADMIN: RedisUser(tenant="acme", role=Role.ADMIN),
    Role.WORKER: WORKER,
}
_OF_PRODUCERS = {
    "submit",
    "submit_many",
    "find",
    "withdraw",
    "cancel",
    "get",
    "score",
    "states",
    "notices",
    "pieces",
    "piece",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Logins:
    """A URL for each part that is played; `restricted` when they differ."""

    operator: str
    producer: str
    admin: str
    worker: str
    restricted: bool

    @classmethod
    def everyone(cls, url: str) -> Logins:
        return cls(operator=url, producer=url, admin=url, worker=url, restricted=False)


class SplitStore:
    """A job store whose every call is made by the user that makes it in production."""

    def __init__(self, producers: JobStore, workers: JobStore) -> None:
        self._producers, self._workers = producers, workers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producers if name in _OF_PRODUCERS else self._workers, name)


def split_store(
    settings: Settings, producers: tuple[Client, str], workers: tuple[Client, str]
) -> Any:
    """A SplitStore over two clients and the URLs they log in with."""
    of_both = [
        RedisJobStore(client, settings.model_copy(update={"redis_url": url}))
        for client, url in (producers, workers)
    ]
    return SplitStore(*of_both)


@contextmanager
def restricted_users(client: Client, settings: Settings) -> Iterator[Logins]:
    """Users for the time of the block, with the grants of all TENANTS."""
    accounts, users = Accounts(client, settings), list(_USERS.values())
    made = {item.user.role: item.url for item in accounts.create(users)}
    try:
        for user in users:
            tenants = [user.tenant] if user.tenant is None else TENANTS
            grants = [
                grant
                for tenant in tenants
                for grant in grants_of(RedisUser(tenant=tenant, role=user.role))
            ]
            client.execute_command("ACL", "SETUSER", user.name, *rules_of(grants))
        yield Logins(
            operator=settings.redis_url,
            producer=made[Role.PRODUCER],
            admin=made[Role.ADMIN],
            worker=made[Role.WORKER],
            restricted=True,
        )
    finally:
        accounts.remove(users)


def refusals(client: Any) -> list[str]:
    """What Redis refused to users of ours since the last call, in words."""
    entries = client.acl_log()
    client.acl_log_reset()
    return [
        f"{entry['username']}: {entry['reason']} {entry['object']} ({entry['context']})"
        for entry in entries
        if entry["username"].startswith("prefillq-")
    ]


def enter_tenants(client: Any) -> None:
    """What `prefillq tenants create` does besides users, after a database was emptied."""
    client.sadd(keys.TENANTS, *TENANTS)
