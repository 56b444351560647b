"""Users of tenants and workers: made, changed, ended, and kept over a restart of Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import AuthenticationError, ConnectionError as RedisConnectionError

from contract import keys
from contract.errors import Conflict, InvalidInput, NotFound, PrefillqError, RedisRefused
from contract.load import load_library
from contract.records import job_library
from contract.redis_client import Client, connect
from contract.scripts import ScriptLibrary
from contract.settings import Settings
from contract.users import WORKER, RedisUser, Role
from local.redis_server import EmbeddedRedis
from templates.moving import registry_library
from tenants import accounts as accounts_module
from tenants.accounts import Accounts, Credentials, users_of_tenant

ACME, GLOBEX = users_of_tenant("acme"), users_of_tenant("globex")
PRODUCER = RedisUser(tenant="acme", role=Role.PRODUCER)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as running:
        yield running


@pytest.fixture
def settings(server: EmbeddedRedis) -> Settings:
    return Settings(redis_url=server.url)


@pytest.fixture
def operator(settings: Settings) -> Iterator[Any]:
    """A connection to a Redis without users of ours, functions or data."""
    with connect(settings) as client:
        client.flushall()
        client.function_flush("SYNC")
        names = [name for name in client.acl_users() if name != "default"]  # type: ignore[union-attr]
        if names:
            client.acl_deluser(*names)
        yield client


@pytest.fixture
def accounts(operator: Client, settings: Settings) -> Accounts:
    return Accounts(operator, settings)


def logs_in(made: Credentials) -> bool:
    """True when Redis takes the URL as it was printed."""
    with connect(Settings(redis_url=made.url)) as client:
        try:
            return bool(client.ping())
        except AuthenticationError:
            return False


def names(users: list[RedisUser]) -> list[str]:
    return [user.name for user in users]


# --- making


def test_users_are_made_with_urls_that_work(accounts: Accounts, operator: Any) -> None:
    """Both roles, enabled, with one password each; workers look into the tenant from then on."""
    made = accounts.create(ACME)
    assert names([item.user for item in made]) == ["prefillq-acme-producer", "prefillq-acme-admin"]
    assert all(logs_in(item) for item in made)
    assert len({item.password for item in made}) == 2
    assert all(len(item.password) >= 43 for item in made)  # 256 bits in base64
    assert operator.smembers(keys.TENANTS) == {b"acme"}
    assert [(a.enabled, a.passwords) for a in accounts.read()] == [(True, 1)] * 2


def test_users_are_not_made_twice(accounts: Accounts) -> None:
    """A conflict, with nobody's password changed and no other user made."""
    [admin] = accounts.create([ACME[1]])
    with pytest.raises(Conflict, match="prefillq-acme-admin"):
        accounts.create(ACME)
    assert logs_in(admin)
    assert names([a.user for a in accounts.read()]) == ["prefillq-acme-admin"]


@pytest.mark.parametrize("name", ["", "Acme", "acme corp", "acme*", "_tenants", "a" * 65])
def test_names_that_are_none_are_refused(accounts: Accounts, name: str) -> None:
    """A name becomes part of patterns; none may hold a wildcard."""
    with pytest.raises(InvalidInput, match="tenant name"):
        users_of_tenant(name)
    with pytest.raises(InvalidInput, match="tenant name"):
        accounts.create([RedisUser(tenant=name, role=Role.ADMIN)])
    assert accounts.read() == []


def test_a_password_is_in_clear_nowhere(
    accounts: Accounts, operator: Any, settings: Settings, server: EmbeddedRedis
) -> None:
    """Not in MONITOR, the slow log, the list of users, Redis's log, or the object's own text."""
    operator.config_set("slowlog-log-slower-than", 0)
    seen: list[str] = []
    with connect(settings) as watching, watching.monitor() as monitor:
        made = accounts.create([*ACME, WORKER])
        made += accounts.rotate(ACME, keep_old=True)
        operator.set("the end", 1)
        while not (seen and "the end" in seen[-1]):
            seen.append(str(monitor.next_command()))
    operator.config_set("slowlog-log-slower-than", 10_000)
    everywhere = "\n".join(
        [
            *seen,
            str(operator.slowlog_get(1000)),
            str(operator.execute_command("ACL", "LIST")),
            server.log(),
            repr(made),
            str([account.rule for account in accounts.read()]),
        ]
    )
    assert "SADD pq:_tenants" in everywhere, "nothing was seen at all"
    for item in made:
        assert item.password not in everywhere


def test_an_older_redis_is_refused(
    accounts: Accounts, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is changed, naming what it takes."""
    monkeypatch.setattr(operator, "info", lambda *_: {"redis_version": "6.2.14"})
    with pytest.raises(PrefillqError, match=r"7\.2"):
        accounts.create(ACME)
    assert accounts.read() == []


# --- rotating and removing


def test_rotating_ends_the_old_password_and_its_connections(accounts: Accounts) -> None:
    """Whoever stole the old one is out at once; the other role's is untouched."""
    producer, admin = accounts.create(ACME)
    with connect(Settings(redis_url=producer.url)) as client:
        client.ping()
        [changed] = accounts.rotate([producer.user])
        with pytest.raises((AuthenticationError, RedisConnectionError)):
            client.ping()
    assert [logs_in(item) for item in (producer, changed, admin)] == [False, True, True]


def test_keeping_the_old_password_until_the_next_rotation(accounts: Accounts) -> None:
    """Producers move to the new one without a break."""
    [old] = accounts.create([PRODUCER])
    with connect(Settings(redis_url=old.url)) as client:
        client.ping()
        [new] = accounts.rotate([PRODUCER], keep_old=True)
        assert client.ping(), "the connection is still there"
    assert (logs_in(old), logs_in(new)) == (True, True)
    [newest] = accounts.rotate([PRODUCER])
    assert [logs_in(item) for item in (old, new, newest)] == [False, False, True]


def test_only_the_last_password_is_kept(accounts: Accounts) -> None:
    """With --keep-old each time: the present one and the one before, no others."""
    made = accounts.create([PRODUCER])
    for _ in range(3):
        made += accounts.rotate([PRODUCER], keep_old=True)
    assert [logs_in(item) for item in made] == [False, False, True, True]


def test_removing_ends_users_and_their_connections(accounts: Accounts, operator: Any) -> None:
    """The tenant's data stays, and other tenants' users do."""
    producer, _ = accounts.create(ACME)
    others = accounts.create(GLOBEX)
    operator.set("pq:acme:x", 1)
    with connect(Settings(redis_url=producer.url)) as client:
        client.ping()
        assert accounts.remove(ACME) == ACME
        with pytest.raises((AuthenticationError, RedisConnectionError)):
            client.ping()
    assert not logs_in(producer)
    assert all(logs_in(item) for item in others)
    assert operator.get("pq:acme:x") == b"1"


def test_what_is_not_there_is_not_found(accounts: Accounts) -> None:
    """Neither rotated nor removed; when one of two is missing, no password changes."""
    [producer] = accounts.create([PRODUCER])
    with pytest.raises(NotFound, match="prefillq-acme-admin"):
        accounts.rotate(ACME)
    with pytest.raises(NotFound, match="prefillq-worker"):
        accounts.remove([WORKER])
    assert logs_in(producer)


# --- another release


def test_update_gives_the_rights_of_this_release(accounts: Accounts, operator: Any) -> None:
    """Rights that were added by hand go, missing ones come, and passwords stay."""
    [producer] = accounts.create([PRODUCER])
    before = accounts.read()
    operator.execute_command("ACL", "SETUSER", PRODUCER.name, "~*", "+@all", "clearselectors")
    operator.srem(keys.TENANTS, "acme")
    assert accounts.read() != before
    assert accounts.update() == [PRODUCER]
    assert accounts.read() == before
    assert operator.smembers(keys.TENANTS) == {b"acme"}
    assert logs_in(producer)


def test_functions_of_two_releases_stand_beside_each_other(
    accounts: Accounts, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update adds this release's; older clients lose theirs only when told so."""
    accounts.create([PRODUCER])
    assert accounts.has_functions()
    later = ScriptLibrary(name="jobs", sources={"state": "return 'later'"})
    monkeypatch.setattr(accounts_module, "job_library", lambda: later)
    assert not accounts.has_functions()
    accounts.update()
    assert accounts.has_functions()
    ours = {lib().library for lib in (job_library, load_library, registry_library)}
    assert accounts._held_libraries() == ours | {later.library}
    assert operator.fcall(f"{later.library}_state", 0) == b"later"
    accounts.update(drop_old=True)
    assert accounts._held_libraries() == ours - {job_library().library} | {later.library}


def test_functions_of_others_are_left_alone(accounts: Accounts, operator: Any) -> None:
    """Whatever an application stored beside ours."""
    operator.function_load("#!lua name=theirs\nredis.register_function('f', function() end)")
    accounts.create([PRODUCER])
    accounts.update(drop_old=True)
    assert operator.execute_command("FUNCTION", "LIST", "LIBRARYNAME", "theirs")


# --- what is said about the server


def test_an_open_default_user_is_warned_of(accounts: Accounts, operator: Any) -> None:
    """Restricted users are worth little beside one that needs no password."""
    [warning] = accounts.warnings()
    assert "default user" in warning
    operator.execute_command("ACL", "SETUSER", "default", "resetpass", ">secret")
    try:
        assert accounts.warnings() == []
    finally:
        operator.execute_command("ACL", "SETUSER", "default", "nopass")


def test_an_operator_without_the_right_is_told(accounts: Accounts, settings: Settings) -> None:
    """A tenant's admin makes no users."""
    made = {item.user.role: item for item in accounts.create(ACME)}
    limited = Settings(redis_url=made[Role.ADMIN].url)
    with connect(limited) as client, pytest.raises(RedisRefused, match="refused this command"):
        Accounts(client, limited).create(GLOBEX)
    assert names([a.user for a in accounts.read()]) == [
        "prefillq-acme-admin",
        "prefillq-acme-producer",
    ]


# --- a restart of Redis


def restarted(server: EmbeddedRedis, settings: Settings) -> tuple[Accounts, Client]:
    server.restart()
    client = connect(settings)
    return Accounts(client, settings), client


def test_users_in_memory_alone_are_gone_and_that_was_said(tmp_path: Path) -> None:
    """The note says how to keep them."""
    with EmbeddedRedis() as own:
        settings = Settings(redis_url=own.url)
        with connect(settings) as client:
            accounts = Accounts(client, settings)
            accounts.create(ACME)
            saved = accounts.save()
        assert saved.place is None
        assert "gone after its next restart" in saved.note
        assert "aclfile" in saved.note
        after, client = restarted(own, settings)
        with client:
            assert after.read() == []
            assert after.has_functions(), "functions are data, and in the append-only file"


def test_an_acl_file_keeps_users_and_every_change(tmp_path: Path) -> None:
    """Saved without being asked, hashes only; `list --acl` prints the same lines."""
    file = tmp_path / "users.acl"
    file.touch()
    with EmbeddedRedis(config={"aclfile": str(file)}) as own:
        settings = Settings(redis_url=own.url)
        with connect(settings) as client:
            accounts = Accounts(client, settings)
            made = accounts.create([*ACME, WORKER])
            assert accounts.save().place == "ACL file"
            kept = accounts.read()
        lines = file.read_text("utf-8").splitlines()
        assert {account.rule for account in kept} <= set(lines)
        assert not any(item.password in line for item in made for line in lines)
        after, client = restarted(own, settings)
        with client:
            assert after.read() == kept
        assert all(logs_in(item) for item in made)


def test_lines_for_an_acl_file_make_the_same_users_elsewhere(
    accounts: Accounts, tmp_path: Path
) -> None:
    """Redis replicates no users: a replica has them from its own file."""
    made = accounts.create([*ACME, WORKER])
    file = tmp_path / "users.acl"
    file.write_text("".join(f"{account.rule}\n" for account in accounts.read()), "utf-8")
    with EmbeddedRedis(config={"aclfile": str(file)}) as other:
        settings = Settings(redis_url=other.url)
        with connect(settings) as client:
            assert Accounts(client, settings).read() == accounts.read()
        for item in made:
            moved = item.url.rpartition("@")[0] + "@" + other.url.removeprefix("redis://")
            with connect(Settings(redis_url=moved)) as client:
                assert client.ping()


def test_a_configuration_file_keeps_users_too(tmp_path: Path) -> None:
    """Where there is no ACL file, Redis writes users into its own configuration."""
    file = tmp_path / "redis.conf"
    file.write_text("# a configuration\n", "utf-8")
    with EmbeddedRedis(config_file=file) as own:
        settings = Settings(redis_url=own.url)
        with connect(settings) as client:
            accounts = Accounts(client, settings)
            [made] = accounts.create([PRODUCER])
            assert accounts.save().place == "configuration file"
        assert "prefillq-acme-producer" in file.read_text("utf-8")
        assert made.password not in file.read_text("utf-8")
        _, client = restarted(own, settings)
        client.close()
        assert logs_in(made)


def test_an_acl_file_that_cannot_be_written_is_no_success(tmp_path: Path) -> None:
    """The configuration file is no way out: with an ACL file Redis writes no users into it."""
    folder = tmp_path / "gone"
    folder.mkdir()
    file = folder / "users.acl"
    file.touch()
    config = tmp_path / "redis.conf"
    config.touch()
    with EmbeddedRedis(config={"aclfile": str(file)}, config_file=config) as own:
        settings = Settings(redis_url=own.url)
        with connect(settings) as client:
            accounts = Accounts(client, settings)
            accounts.create([PRODUCER])
            file.unlink()
            folder.rmdir()
            saved = accounts.save()
    assert saved.place is None
    assert "would not save its ACL file" in saved.note
