"""Whose requests are answered, and with which headers."""

from __future__ import annotations

import pytest

from contract.errors import InvalidInput
from contract.settings import Settings
from ui.guard import HEADERS, Guard
from ui.scope import Scope, scope_of


@pytest.mark.parametrize(
    ("host", "answered"),
    [
        ("127.0.0.1:8650", True),
        ("[::1]:8650", True),
        ("192.168.1.7", True),
        ("localhost:8650", True),
        ("LOCALHOST.", True),
        ("page.example:443", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example:8650", False),
        ("localhost.evil.example", False),
        ("localhost:8650@evil.example", False),
        ("evil.example:8650:8650", False),
        ("", False),
    ],
)
def test_hosts(host: str, answered: bool) -> None:
    """Addresses and the names that were given; every other name may be an attacker's."""
    assert Guard(_nothing, names=["localhost", "page.example"]).answers([host]) is answered


def test_one_host_alone() -> None:
    """Two Host headers are one too many, and none is too few."""
    guard = Guard(_nothing, names=["localhost"])
    assert not guard.answers([])
    assert not guard.answers(["localhost", "localhost"])


async def _nothing(*_: object) -> None:
    raise AssertionError


def test_policy_names_no_other_origin() -> None:
    """And nothing inline: neither script nor style."""
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "script-src 'self'" in policy


def test_scope_of_users() -> None:
    """Who logs in as a tenant's user sees that tenant; its admin sees no records."""
    assert scope_of(_as("")) == Scope()
    assert scope_of(_as("prefillq-worker:x@"), ["acme"]) == Scope(tenants=("acme",))
    assert scope_of(_as("prefillq-acme-admin:x@")) == Scope(
        tenants=("acme",), workers=False, records=False
    )
    assert scope_of(_as("prefillq-acme-producer:x@"), ["acme"]) == Scope(
        tenants=("acme",), workers=False, records=True
    )


def test_scope_of_another_tenant() -> None:
    """It is said at once, and not page by page."""
    with pytest.raises(InvalidInput, match="sees one tenant"):
        scope_of(_as("prefillq-acme-admin:x@"), ["globex"])
    with pytest.raises(InvalidInput, match="tenant name"):
        scope_of(_as(""), ["no such name"])


def _as(login: str) -> Settings:
    return Settings(redis_url=f"redis://{login}127.0.0.1:1/0")
