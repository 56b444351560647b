"""Making, changing and ending the Redis users of tenants and workers.

A password is made here, shown to the caller and forgotten; Redis is sent its SHA-256 alone, so that
it appears neither in MONITOR nor in the slow log, and keeps nothing else.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from contract import keys
from contract.errors import Conflict, NotFound, PrefillqError
from contract.ids import check_name
from contract.load import load_library
from contract.records import job_library
from contract.redis_client import Client, errors_explained, text
from contract.scripts import LIBRARY_PREFIX, ScriptLibrary
from contract.settings import Settings
from contract.users import TENANT_ROLES, WORKER, RedisUser, Role, parse_user
from templates.moving import registry_library
from tenants.grants import grants_of, rules_of
from tenants.persistence import Saved, save_users

MIN_REDIS = (7, 2)  # functions, selectors, and the names of all commands that clients send
_PASSWORD_BYTES = 32
_OPEN = (
    "The default user of this Redis needs no password: whoever reaches it can read and change "
    "everything. Set 'requirepass', or log in as another operator and end it with "
    "'ACL SETUSER default off'."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A user with its new password, which nobody can be told again."""

    user: RedisUser
    password: str
    url: str  # for PREFILLQ_REDIS_URL

    def __repr__(self) -> str:
        return f"Credentials(user={self.user.name!r}, password=..., url=...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user as Redis has it. `rule` is its line of an ACL file, without any password in clear."""

    user: RedisUser
    enabled: bool
    passwords: int
    rule: str


class Accounts:
    """What an operator does with users; the client must be allowed ACL, FUNCTION and SADD."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client: Any = client  # redis-py types each reply as a value or an awaitable
        self._settings = settings

    def create(self, users: Sequence[RedisUser]) -> list[Credentials]:
        """Make users that are not there yet, and store the functions that they run.

        Raises Conflict, having made none, when one exists.
        """
        for user in users:
            if user.tenant is not None:
                check_name("tenant", user.tenant)
        with errors_explained(self._settings):
            self._check_version()
            if taken := self._existing(users):
                raise Conflict(
                    f"the user {taken[0].name} exists",
                    remedy="Give it another password with 'rotate', or the rights of this "
                    "release with 'update'.",
                )
            self._store_functions()
            self._enter_tenants(users)
            return [self._set(user, ["reset", "on"], rules=True) for user in users]

    def rotate(self, users: Sequence[RedisUser], *, keep_old: bool = False) -> list[Credentials]:
        """New passwords. With `keep_old` the present ones go on working until the next rotation.

        Without it, connections made with an old one are closed. Raises NotFound, having changed
        none, when a user is not there.
        """
        with errors_explained(self._settings):
            existing = self._existing(users)
            if missing := [user for user in users if user not in existing]:
                raise _no_such_user(missing[0])
            changed = []
            for user in users:
                first = self._drop_older(user) if keep_old else ["resetpass"]
                changed.append(self._set(user, first, rules=False))
                if not keep_old:
                    self._client.execute_command("CLIENT", "KILL", "USER", user.name)
        return changed

    def remove(self, users: Sequence[RedisUser]) -> list[RedisUser]:
        """End users and their connections; returns those that were there.

        Templates, records and queued jobs stay. Raises NotFound when there was no such user.
        """
        with errors_explained(self._settings):
            existing = self._existing(users)
            if not existing:
                raise _no_such_user(users[0])
            self._client.acl_deluser(*(user.name for user in existing))
        return existing

    def update(self, *, drop_old: bool = False) -> list[RedisUser]:
        """Give all users the rights of this release and store its functions; passwords stay.

        With `drop_old` the functions of other releases go, and clients of those stop working.
        """
        with errors_explained(self._settings):
            self._check_version()
            users = [account.user for account in self.read()]
            self._store_functions()
            self._enter_tenants(users)
            for user in users:
                self._client.execute_command(
                    "ACL", "SETUSER", user.name, *rules_of(grants_of(user))
                )
            if drop_old:
                self._drop_functions_except({library.library for library in _libraries()})
        return users

    def read(self) -> list[Account]:
        """All users of ours, workers first, then by tenant."""
        with errors_explained(self._settings):
            lines = [text(line) for line in self._client.execute_command("ACL", "LIST")]
        found = []
        for line in lines:
            _, name, *words = line.split(" ")
            user = parse_user(name)
            if user is not None:
                found.append(
                    Account(
                        user=user,
                        enabled="on" in words,
                        passwords=sum(word.startswith("#") for word in words),
                        rule=line,
                    )
                )
        return sorted(found, key=lambda account: (account.user.tenant or "", account.user.role))

    def has_functions(self) -> bool:
        """True when Redis holds this release's functions."""
        with errors_explained(self._settings):
            held = self._held_libraries()
        return all(library.library in held for library in _libraries())

    def warnings(self) -> list[str]:
        """What makes users of little use on this Redis."""
        with errors_explained(self._settings):
            default = next(
                (
                    words
                    for line in self._client.execute_command("ACL", "LIST")
                    if (words := text(line).split(" "))[1] == "default"
                ),
                [],
            )
        if "on" in default and "nopass" in default:
            return [_OPEN]
        return []

    def save(self) -> Saved:
        """Save the users where this Redis can, and say whether that was so."""
        with errors_explained(self._settings):
            return save_users(self._client)

    def _set(self, user: RedisUser, first: Iterable[str], *, rules: bool) -> Credentials:
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
        hashed = hashlib.sha256(password.encode("ascii")).hexdigest()
        rights = rules_of(grants_of(user)) if rules else []
        self._client.execute_command("ACL", "SETUSER", user.name, *first, f"#{hashed}", *rights)
        url = login_url(self._settings.redis_url, user.name, password)
        return Credentials(user=user, password=password, url=url)

    def _drop_older(self, user: RedisUser) -> list[str]:
        """ACL SETUSER's words against all its passwords but the newest, which Redis has last."""
        hashes = self._client.acl_getuser(user.name)["passwords"]
        return [f"!{text(each)}" for each in hashes[:-1]]

    def _existing(self, users: Iterable[RedisUser]) -> list[RedisUser]:
        names = {text(name) for name in self._client.acl_users()}
        return [user for user in users if user.name in names]

    def _enter_tenants(self, users: Iterable[RedisUser]) -> None:
        # Here, because a tenant's admin may not write the set that all workers read.
        if tenants := {user.tenant for user in users if user.tenant is not None}:
            self._client.sadd(keys.TENANTS, *tenants)

    def _store_functions(self) -> None:
        for library in _libraries():
            # REPLACE: equal names mean equal sources, and what was tampered with is mended.
            self._client.function_load(library.code(), replace=True)

    def _drop_functions_except(self, kept: set[str]) -> None:
        for name in self._held_libraries() - kept:
            self._client.function_delete(name)

    def _held_libraries(self) -> set[str]:
        reply = self._client.execute_command(
            "FUNCTION", "LIST", "LIBRARYNAME", f"{LIBRARY_PREFIX}*"
        )
        return {text(name) for entry in reply for name in _library_name(entry)}

    def _check_version(self) -> None:
        version = text(self._client.info("server")["redis_version"])
        if tuple(map(int, version.split(".")[:2])) < MIN_REDIS:
            raise PrefillqError(
                "users for tenants need a newer Redis",
                given=f"Redis {version}",
                expected=f"{'.'.join(map(str, MIN_REDIS))} or later",
                remedy="Upgrade Redis, or give each tenant a Redis of its own.",
            )


def users_of_tenant(tenant: str, roles: Iterable[Role] = TENANT_ROLES) -> list[RedisUser]:
    """A tenant's users, by role. Raises InvalidInput for what is no tenant name."""
    check_name("tenant", tenant)
    return [RedisUser(tenant=tenant, role=role) for role in roles]


def login_url(url: str, name: str, password: str) -> str:
    """The same Redis for another user. Neither part needs quoting in a URL."""
    parts = urlsplit(url)
    where = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{name}:{password}@{where}"))


def _libraries() -> list[ScriptLibrary]:
    return [job_library(), load_library(), registry_library()]


def _library_name(entry: Any) -> Iterable[bytes]:
    """RESP2 gives a list of names and values, RESP3 a map."""
    pairs = entry.items() if isinstance(entry, dict) else zip(entry[::2], entry[1::2], strict=False)
    return [value for name, value in pairs if name in (b"library_name", "library_name")]


def _no_such_user(user: RedisUser) -> NotFound:
    return NotFound(
        "no such user in this Redis",
        given=user.name,
        remedy="See 'prefillq tenants list'."
        if user is not WORKER
        else "Make it with 'prefillq tenants worker-user'.",
    )
