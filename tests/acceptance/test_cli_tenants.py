"""`prefillq tenants`, and the other commands under the users that it makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.redis_client import connect
from contract.settings import Settings
from local.redis_server import EmbeddedRedis
from tests.support.answering import Answering
from tests.support.command_line import CommandLine, Ran


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """Its users are the tests' alone."""
    file = tmp_path_factory.mktemp("redis") / "users.acl"
    file.touch()
    with EmbeddedRedis(config={"aclfile": str(file)}) as running:
        yield running


@pytest.fixture
def settings(server: EmbeddedRedis, tmp_path: Path) -> Settings:
    """An operator's, for a Redis without data, functions or users of ours."""
    chosen = Settings(redis_url=server.url, cache_dir=tmp_path / "cache", lease_s=6.0)
    with connect(chosen) as client:
        client.flushall()
        client.function_flush("SYNC")
        users: Any = client.acl_users()
        for name in users:
            if name != "default":
                client.acl_deluser(name)
        client.acl_log_reset()
    return chosen


def urls_of(ran: Ran) -> dict[str, str]:
    """Role -> URL, from --json."""
    assert ran.code == 0, ran.err
    return {user["role"]: user["url"] for user in ran.json["users"]}


def test_the_whole_way_under_three_users(command_line: CommandLine, notes: Path) -> None:
    """The admin publishes, the producer submits, a worker answers; none does another's part."""
    cli = command_line
    urls = urls_of(cli.run("tenants", "create", "acme", "--json"))
    urls |= urls_of(cli.run("tenants", "worker-user", "--json"))
    producer, admin = ({"PREFILLQ_REDIS_URL": urls[role]} for role in ("producer", "admin"))

    published = cli.run("templates", "publish", notes, "--label", "canary", "--json", **admin)
    assert published.json["published"][0]["labels"] == ["canary", "production"]
    assert cli.run("templates", "list", **producer).out.count("acme/notes") == 1

    variables = ("--vars", '{"note": "hello", "count": 2}')
    batch = cli.folder / "in.jsonl"
    line = {"variables": {"note": "hello", "count": 3}}
    batch.write_text(f"{json.dumps(line)}\n" * 3, "utf-8")
    with Answering(cli.settings.model_copy(update={"redis_url": urls["worker"]})):
        ran = cli.run("submit", "acme/notes", *variables, "--wait", **producer)
        assert (ran.code, ran.out) == (0, "echo: hello 2\n")
        ran = cli.run("batch", batch, "-o", "out.jsonl", "--template", "acme/notes", **producer)
        assert ran.code == 0, ran.err
    assert (cli.folder / "out.jsonl").read_text("utf-8").count("echo: hello 3") == 3
    job_id = cli.run("submit", "acme/notes", *variables, **producer).out.strip()
    assert cli.run("cancel", job_id, **producer).out == "cancelled\n"

    with connect(cli.settings) as client:
        assert client.acl_log() == [], "something that is needed was refused"
    for words, user in (
        (("templates", "label", "acme/notes@1", "mine"), producer),
        (("templates", "publish", notes), producer),
        (("submit", "acme/notes", *variables), admin),
        (("tenants", "create", "globex"), admin),
    ):
        ran = cli.run(*words, "--json", **user)
        assert (ran.code, ran.json["error"]) == (1, "redis_refused"), words


def test_an_admin_syncs_compares_and_lists_orphans(command_line: CommandLine, notes: Path) -> None:
    """Files, and both answers of a shadowed job, are the admin's; jobs are not its to count."""
    cli = command_line
    urls = urls_of(cli.run("tenants", "create", "acme", "--json"))
    producer, admin = ({"PREFILLQ_REDIS_URL": urls[role]} for role in ("producer", "admin"))
    source = cli.folder / "source"
    source.mkdir()
    notes.rename(source / "notes.yaml")
    assert cli.run("templates", "sync", source, "--label", "mine", **admin).code == 0
    text = (source / "notes.yaml").read_text("utf-8").replace("with care", "with great care")
    (source / "notes.yaml").write_text(text, "utf-8")
    assert cli.run("templates", "sync", source, **admin).code == 0

    variables = ("--vars", '{"note": "x", "count": 1}')
    assert cli.run("submit", "acme/notes@2", *variables, **producer).code == 0
    assert cli.run("templates", "orphans", "--json").json["orphans"] == []
    data = cli.run("templates", "orphans", "--json", **admin).json
    assert [one["address"] for one in data["orphans"]] == ["acme/notes@2"]
    assert data["jobs_known"] is False
    ran = cli.run("templates", "orphans", "acme", **admin)
    assert "unfinished jobs were not looked at" in ran.err

    started = cli.run("templates", "rollout", "start", "acme/notes", "--to", "2", "--json", **admin)
    assert started.code == 0, started.out
    compare = ("templates", "rollout", "compare", "acme/notes", "--json")
    assert cli.run(*compare, **admin).json["jobs"] == 0
    with connect(cli.settings) as client:
        assert client.acl_log() == [], "something that is needed was refused"
    refused = cli.run(*compare, **producer)
    assert (refused.code, refused.json["error"]) == (1, "redis_refused")


def test_credentials_are_data_and_all_else_is_talk(command_line: CommandLine) -> None:
    """stdout has the URLs; stderr says that it is the only time, where they are saved, and what
    is wrong with this Redis."""
    ran = command_line.run("tenants", "create", "acme")
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines()]
    assert rows[0] == ["role", "PREFILLQ_REDIS_URL"]
    assert [row[0] for row in rows[1:]] == ["producer", "admin"]
    assert all(row[1].startswith(f"redis://prefillq-acme-{row[0]}:") for row in rows[1:])
    assert "shown this once" in ran.err
    assert "ACL file" in ran.err
    assert "default user of this Redis needs no password" in ran.err
    for row in rows[1:]:
        password = row[1].split(":")[2].partition("@")[0]
        assert password not in ran.err
        assert password not in command_line.run("tenants", "list", "--acl").out


def test_json_holds_the_same(command_line: CommandLine) -> None:
    """One object: users, where they were saved, warnings."""
    made = command_line.run("tenants", "create", "acme", "--role", "producer", "--json").json
    assert made.keys() == {"users", "saved", "note", "warnings"}
    [user] = made["users"]
    assert user["url"].startswith(f"redis://{user['user']}:{user['password']}@")
    assert (user["user"], user["tenant"]) == ("prefillq-acme-producer", "acme")
    assert made["saved"] == "ACL file"
    assert len(made["warnings"]) == 1


def test_list_shows_users_and_never_a_password(command_line: CommandLine) -> None:
    """As a table, as JSON and as lines of an ACL file."""
    assert "prefillq tenants create" in command_line.run("tenants", "list").err
    command_line.run("tenants", "create", "acme")
    command_line.run("tenants", "worker-user")
    table = command_line.run("tenants", "list").out.splitlines()
    assert [line.split()[0] for line in table[1:]] == [
        "prefillq-worker",
        "prefillq-acme-admin",
        "prefillq-acme-producer",
    ]
    listed = command_line.run("tenants", "list", "--json").json
    assert listed["functions"] is True
    assert {user["passwords"] for user in listed["users"]} == {1}
    lines = command_line.run("tenants", "list", "--acl").out.splitlines()
    assert lines == [user["acl"] for user in listed["users"]]


def test_rotating_and_removing(command_line: CommandLine) -> None:
    """New URLs work, old ones do not; what is not there gives exit status 4."""
    cli = command_line
    old = urls_of(cli.run("tenants", "create", "acme", "--json"))
    new = urls_of(cli.run("tenants", "rotate", "acme", "--role", "producer", "--json"))
    assert new.keys() == {"producer"}
    codes = [
        cli.run("templates", "list", "acme", PREFILLQ_REDIS_URL=url).code
        for url in (old["producer"], new["producer"], old["admin"])
    ]
    assert codes == [1, 0, 0]
    kept = urls_of(cli.run("tenants", "rotate", "acme", "--role", "admin", "--keep-old", "--json"))
    for url in (old["admin"], kept["admin"]):
        assert cli.run("templates", "list", "acme", PREFILLQ_REDIS_URL=url).code == 0
    removed = cli.run("tenants", "remove", "acme", "--json").json
    assert removed["removed"] == ["prefillq-acme-producer", "prefillq-acme-admin"]
    assert cli.run("templates", "list", "acme", PREFILLQ_REDIS_URL=kept["admin"]).code == 1
    assert cli.run("tenants", "remove", "acme").code == 4
    assert cli.run("tenants", "rotate", "acme").code == 4


def test_the_workers_user_is_made_rotated_and_ended(command_line: CommandLine) -> None:
    """By one command, which takes one of both options."""
    cli = command_line
    assert cli.run("tenants", "worker-user", "--rotate").code == 4
    first = urls_of(cli.run("tenants", "worker-user", "--json"))
    assert cli.run("tenants", "worker-user").code == 7
    second = urls_of(cli.run("tenants", "worker-user", "--rotate", "--keep-old", "--json"))
    for url in (first["worker"], second["worker"]):
        assert cli.run("worker", "list", "--json", PREFILLQ_REDIS_URL=url).json == []
    assert cli.run("tenants", "worker-user", "--rotate", "--remove").code == 1
    assert cli.run("tenants", "worker-user", "--keep-old").code == 1
    assert cli.run("tenants", "worker-user", "--remove").code == 0
    assert cli.run("worker", "list", PREFILLQ_REDIS_URL=second["worker"]).code == 1


def test_update_mends_users_and_functions(command_line: CommandLine) -> None:
    """What an upgrade of prefillq asks for, said by the list that finds them old."""
    cli = command_line
    urls = urls_of(cli.run("tenants", "create", "acme", "--json"))
    with connect(cli.settings) as client:
        client.function_flush("SYNC")
    assert "prefillq tenants update" in cli.run("tenants", "list").err
    job = "acme." + "0" * 32
    missing = cli.run("status", job, "--json", PREFILLQ_REDIS_URL=urls["producer"])
    assert (missing.code, missing.json["error"]) == (1, "redis_refused")
    assert "prefillq tenants update" in missing.json["remedy"]
    updated = cli.run("tenants", "update", "--drop-old", "--json").json["updated"]
    assert set(updated) == {"prefillq-acme-producer", "prefillq-acme-admin"}
    assert cli.run("status", job, PREFILLQ_REDIS_URL=urls["producer"]).code == 4


@pytest.mark.parametrize(
    ("words", "code"),
    [(("create", "acme"), 7), (("create", "Acme"), 1), (("rotate", "globex"), 4)],
)
def test_exit_codes(command_line: CommandLine, words: tuple[str, ...], code: int) -> None:
    """There already, no name, not there."""
    command_line.run("tenants", "create", "acme")
    assert command_line.run("tenants", *words, "--json").code == code
