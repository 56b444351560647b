"""Users by their names: each name is one user's, and a URL tells which."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from contract.users import WORKER, RedisUser, Role, parse_user, user_of

tenants = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?", fullmatch=True)
roles = st.sampled_from([Role.PRODUCER, Role.ADMIN])


@given(tenants, roles)
def test_a_name_is_one_users(tenant: str, role: Role) -> None:
    """The name parses back to the user, also for tenants called like roles."""
    user = RedisUser(tenant=tenant, role=role)
    assert parse_user(user.name) == user
    assert user.name != WORKER.name


@pytest.mark.parametrize("tenant", ["worker", "admin", "acme-producer", "producer"])
def test_tenants_called_like_roles(tenant: str) -> None:
    """`prefillq-acme-producer-admin` is the admin of acme-producer."""
    names = [RedisUser(tenant=tenant, role=role).name for role in (Role.PRODUCER, Role.ADMIN)]
    assert [parse_user(name) for name in names] == [
        RedisUser(tenant=tenant, role=Role.PRODUCER),
        RedisUser(tenant=tenant, role=Role.ADMIN),
    ]


@pytest.mark.parametrize(
    ("url", "user"),
    [
        ("redis://prefillq-acme-producer:pw@host:6379/0", "prefillq-acme-producer"),
        ("rediss://prefillq%2Dworker:pw@host", "prefillq-worker"),
        ("unix://prefillq-acme-admin:pw@/run/redis.sock", "prefillq-acme-admin"),
        ("redis://host:6379/0", None),
        ("redis://:pw@host", None),
        ("redis://default:pw@host", None),
        ("redis://prefillq-:pw@host", None),
        ("redis://prefillq-acme:pw@host", None),
        ("redis://prefillq-Acme-admin:pw@host", None),
        ("unix:///run/prefillq-worker@redis.sock", None),
    ],
)
def test_a_url_tells_its_user(url: str, user: str | None) -> None:
    """Only the names of our own users; every other login is as the default user's."""
    found = user_of(url)
    assert (found and found.name) == user
