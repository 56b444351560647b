"""Grants as ACL rules: exact commands, on patterns that are the tenant's own."""

from __future__ import annotations

import re

import pytest

from contract.users import WORKER, RedisUser, Role
from tenants.grants import Grant, grants_of, rules_of

USERS = [
    RedisUser(tenant="acme", role=Role.PRODUCER),
    RedisUser(tenant="acme", role=Role.ADMIN),
    WORKER,
]
by_name = pytest.mark.parametrize("user", USERS, ids=[user.name for user in USERS])


@by_name
def test_no_categories_and_no_wildcards(user: RedisUser) -> None:
    """Each command is named, so that what a later Redis adds is refused."""
    for grant in grants_of(user):
        assert grant.purpose
        for command in grant.commands.split():
            assert re.fullmatch(r"[a-z_]+(\|[a-z]+)?", command), command


@pytest.mark.parametrize("user", USERS[:2], ids=["producer", "admin"])
def test_all_patterns_are_the_tenants(user: RedisUser) -> None:
    """Keys under pq:acme: and its queues; no shared key, and no channel but its own."""
    for grant in grants_of(user):
        for pattern in grant.on:
            kind, _, name = pattern.partition("pq:")
            assert kind in ("~", "%R~", "%W~", "&"), pattern
            assert name.startswith(("acme:", "_broker:acme/")), pattern


@by_name
def test_nothing_combines(user: RedisUser) -> None:
    """Outside of selectors are no keys and no channels: a command has those of its own grant."""
    rules = rules_of(grants_of(user))
    assert rules[:4] == ["resetkeys", "resetchannels", "-@all", "clearselectors"]
    for rule in rules[4:]:
        assert rule.startswith(("+", "(")), rule


@by_name
def test_nobody_can_see_or_change_the_server(user: RedisUser) -> None:
    """Keys by listing, the server's settings, other users and code of one's own."""
    commands = {c for grant in grants_of(user) for c in grant.commands.split()}
    never = {"keys", "scan", "eval", "config", "acl", "flushall", "monitor", "psubscribe", "info"}
    assert not commands & never
    assert not any(c.startswith(("function", "acl", "config")) for c in commands)


def test_only_workers_may_send_scripts() -> None:
    """redis-py's lock has one, and kombu uses that lock."""
    for user in USERS[:2]:
        commands = {c for grant in grants_of(user) for c in grant.commands.split()}
        assert not commands & {"evalsha", "script|load"}


def test_a_grant_is_one_selector() -> None:
    """Keys first, then commands; without keys only commands."""
    grant = Grant(purpose="x", commands="get set", on=("~pq:a:*",))
    assert grant.rules == ["(~pq:a:* +get +set)"]
    assert Grant(purpose="x", commands="ping time").rules == ["+ping", "+time"]
