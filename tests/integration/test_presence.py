"""The list of live workers in a real Redis: who reports is on it, who stops or dies is not."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError

from contract import keys
from contract.codec import pack
from contract.errors import RedisUnreachable
from contract.redis_client import connect
from contract.settings import Settings
from contract.types import VersionRef
from contract.worker_reports import EXPIRES_S, REVISION, list_workers
from tests.support.tcp import closed_port_url
from worker import presence as presence_module
from worker.description import TemplateState, VersionState
from worker.engine.parity import Parity
from worker.prefix.entry import PrefixKey
from worker.prefixes import WarmVersion
from worker.presence import INTERVAL_S, Presence

MakePresence = Callable[..., Presence]
WARM = WarmVersion(
    key=PrefixKey(
        tenant="acme",
        digest="d" * 64,
        model_digest="a" * 64,
        tokenizer_digest="b" * 64,
        dtype="float32",
        device="cpu",
    ),
    ref=VersionRef(tenant="acme", template="triage", version=1, digest="d" * 64),
    prefix_tokens=600,
    nbytes=2**24,
    prefill_s=1.5,
    parity=Parity(
        outcome="identical",
        checked_tokens=16,
        first_difference=None,
        max_logit_error=0.0,
        seconds=0.5,
    ),
)


@pytest.fixture
def make_presence(worker_client: Any, worker_settings: Settings) -> MakePresence:
    """A worker's presence with a small description."""

    def make(
        worker_id: str = "w1",
        describe: Callable[[], dict[str, Any]] | None = None,
        templates: Callable[[], dict[str, TemplateState]] = dict,
    ) -> Presence:
        return Presence(
            client=worker_client,
            settings=worker_settings,
            worker_id=worker_id,
            describe=describe or (lambda: {"id": worker_id}),
            templates=templates,
        )

    return make


def told(worker_id: str, **more: Any) -> dict[str, Any]:
    """What is listed of a worker that serves nothing."""
    return {"id": worker_id, "templates": [], "versions": [], **more}


def state(served: bool = True, *, pinned: bool = False) -> TemplateState:
    """A template with one warm version."""
    return TemplateState(
        served=served, versions=(VersionState(warm=WARM, cached=True, pinned=pinned),)
    )


def written(client: Any, make: Callable[[], object]) -> set[str]:
    """Fields that were written into the worker's hash meanwhile."""
    with client.monitor() as monitor:
        make()
        client.echo("done")
        words = []
        while (line := monitor.next_command()["command"]) != "ECHO done":
            words.append(line.split())
    return {
        field
        for command, _, *fields in (w for w in words if w[0] in ("HSET", "HDEL") and len(w) > 1)
        for field in fields
        if re.fullmatch(r"\w+/\w+", field)
    }


def test_what_was_reported_is_listed(
    client: Any, settings: Settings, make_presence: MakePresence
) -> None:
    """Each description comes back as it was, by the worker's id."""
    assert list_workers(client, settings) == []
    of_it = {"id": "w2", "cache": {"bytes": 2**40}, "x": None}
    states = {"acme/triage": state(), "acme/mail": TemplateState(served=True, versions=())}
    make_presence("w2", lambda: of_it, lambda: states).report()
    make_presence("w1").report()
    first, second = list_workers(client, settings)
    assert first == told("w1")
    [version] = second["versions"]
    assert (version["version"], version["digest"]) == (str(WARM.ref), WARM.ref.digest)
    assert second == {**of_it, "templates": ["acme/mail", "acme/triage"], "versions": [version]}
    # Of the templates that are asked for nothing is missing.
    [_, some] = list_workers(client, settings, templates=["acme/triage", "acme/none"])
    assert (some["templates"], some["versions"]) == (["acme/triage"], [version])
    assert list_workers(client, settings, templates=[])[1]["templates"] == []
    many = [f"acme/t{n}" for n in range(1000)]
    assert list_workers(client, settings, templates=["acme/triage", *many])[1] == second


def test_only_what_changed_is_written(
    client: Any, settings: Settings, make_presence: MakePresence
) -> None:
    """A thousand templates that stay as they are cost nothing at each report."""
    states = {f"acme/t{n}": state() for n in range(5)}
    presence = make_presence("w1", templates=lambda: dict(states))
    assert len(written(client, presence.report)) == 5
    assert written(client, presence.report) == set()
    states["acme/t1"] = state(pinned=True)
    states["acme/t2"] = state(served=False)
    del states["acme/t3"]
    assert written(client, presence.report) == {"acme/t1", "acme/t2", "acme/t3"}
    [report] = list_workers(client, settings)
    assert report["templates"] == ["acme/t0", "acme/t1", "acme/t4"]
    assert [v["pinned"] for v in report["versions"]] == [False, True, False, False]
    assert 0 < client.ttl(keys.worker_templates("w1")) <= EXPIRES_S


def test_a_prefix_that_is_infinitely_wrong_takes_no_worker_off_the_list(
    client: Any, settings: Settings, make_presence: MakePresence
) -> None:
    """Cached and uncached scores of which one is minus infinity; such a prefix is not used."""
    parity = replace(WARM.parity, outcome="differs", max_logit_error=math.inf)
    wrong = VersionState(warm=replace(WARM, parity=parity), cached=True, pinned=False)
    states = {
        "acme/triage": TemplateState(served=True, versions=(wrong,)),
        "acme/mail": TemplateState(served=True, versions=()),
    }
    make_presence("w1", templates=lambda: states).report()
    [report] = list_workers(client, settings)
    assert report["templates"] == ["acme/mail", "acme/triage"]
    [version] = report["versions"]
    assert (version["parity"], version["max_logit_error"]) == ("differs", None)


@pytest.mark.parametrize("lost", ["all", "the last change", "its type"])
def test_what_redis_lost_is_told_again(
    client: Any, settings: Settings, make_presence: MakePresence, lost: str
) -> None:
    """After a pause longer than the expiry, or when a replica took over that had less."""
    states = {f"acme/t{n}": state() for n in range(3)}
    presence, key = make_presence("w1", templates=lambda: dict(states)), keys.worker_templates("w1")
    presence.report()
    before = client.dump(key)
    states["acme/t3"] = state()
    presence.report()
    match lost:
        case "all":
            client.delete(key)
        case "the last change":
            client.restore(key, 0, before, replace=True)
        case _:
            client.set(key, "x")
    presence.report()
    [report] = list_workers(client, settings)
    assert report["templates"] == sorted(states)
    assert len(report["versions"]) == 4


@pytest.mark.parametrize("made", [False, True], ids=["not made", "made, its reply lost"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_write_that_fails_is_no_word_of_what_is_there(
    client: Any,
    settings: Settings,
    worker_client: Any,
    make_presence: MakePresence,
    monkeypatch: pytest.MonkeyPatch,
    nth: int,
    made: bool,
) -> None:
    """What expired while Redis was away is told whole, however often it goes away meanwhile."""
    states = {f"acme/t{n}": state() for n in range(3)}
    presence, key = make_presence("w1", templates=lambda: dict(states)), keys.worker_templates("w1")
    presence.report()
    # In the middle of the write: it was there when the worker looked.
    writes = []
    execute = Pipeline.execute

    def interrupted(pipe: Any, **options: Any) -> Any:
        if pipe.command_stack[-1][0][0] == "ZREMRANGEBYSCORE":
            writes.append(pipe)
            if len(writes) == 1:
                client.delete(key)
            if len(writes) == nth:
                if made:
                    execute(pipe, **options)
                raise RedisConnectionError("gone")
        return execute(pipe, **options)

    monkeypatch.setattr(Pipeline, "execute", interrupted)
    with pytest.raises(RedisUnreachable):
        presence.report()
    presence.report()
    [report] = list_workers(client, settings)
    assert report["templates"] == sorted(states)
    assert len(report["versions"]) == 3


def test_nobody_reads_a_part_for_the_whole(
    client: Any,
    settings: Settings,
    make_presence: MakePresence,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Templates that expired come back all at once: rollouts are ended over workers that serve
    none."""
    states = {f"acme/t{n}": state() for n in range(3)}
    presence = make_presence("w1", templates=lambda: dict(states))
    presence.report()
    client.delete(keys.worker("w1"), keys.worker_templates("w1"))
    states["acme/t1"] = state(pinned=True)
    seen: list[Any] = []
    execute = Pipeline.execute

    def followed(pipe: Any, **options: Any) -> Any:
        replies = execute(pipe, **options)
        with monkeypatch.context() as plain:
            plain.setattr(Pipeline, "execute", execute)
            seen.extend(report["templates"] for report in list_workers(client, settings))
        return replies

    with monkeypatch.context() as context:
        context.setattr(Pipeline, "execute", followed)
        presence.report()
    assert seen == [sorted(states)]


def test_no_revision_stands_for_two_contents(
    client: Any, make_presence: MakePresence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that took over with another write of the same number would not be told again."""
    states = {"acme/t0": state()}
    presence, key = make_presence("w1", templates=lambda: dict(states)), keys.worker_templates("w1")
    presence.report()
    states["acme/t1"] = state()
    execute = Pipeline.execute

    def reply_lost(pipe: Any, **options: Any) -> Any:
        replies = execute(pipe, **options)
        if len(replies) > 2:  # the write
            raise RedisConnectionError("gone")
        return replies

    with monkeypatch.context() as context:
        context.setattr(Pipeline, "execute", reply_lost)
        with pytest.raises(RedisUnreachable):
            presence.report()
    first = client.hget(key, REVISION)
    states["acme/t2"] = state()
    presence.report()
    assert client.hget(key, REVISION) != first


def test_damage_of_one_workers_templates_hides_nothing_else(
    client: Any, settings: Settings, make_presence: MakePresence
) -> None:
    """A field that cannot be read, or a key of another type."""
    for worker_id in ("w1", "w2", "w3"):
        make_presence(worker_id, templates=lambda: {"a/x": state(), "a/y": state()}).report()
    client.hset(keys.worker_templates("w1"), "a/x", b"\xc1")
    client.set(keys.worker_templates("w2"), "x")
    for asked in (None, ["a/x", "a/y"]):
        first, second, third = list_workers(client, settings, templates=asked)
        assert (first["templates"], second["templates"]) == (["a/y"], [])
        assert third["templates"] == ["a/x", "a/y"]


def test_a_second_report_replaces_the_first(
    client: Any, settings: Settings, make_presence: MakePresence
) -> None:
    """The list shows the last report, once."""
    counts = iter([1, 2])
    presence = make_presence("w1", lambda: {"id": "w1", "running": next(counts)})
    presence.report()
    presence.report()
    assert list_workers(client, settings) == [told("w1", running=2)]


def test_report_expires_and_outlives_several_intervals(
    client: Any, make_presence: MakePresence
) -> None:
    """A killed worker is off the list in time; one late report takes no live one off."""
    make_presence().report()
    assert 0 < client.ttl(keys.worker("w1")) <= EXPIRES_S
    assert EXPIRES_S >= 3 * INTERVAL_S


def test_worker_whose_report_expired_is_off_the_list(
    client: Any, settings: Settings, make_presence: MakePresence
) -> None:
    """Its id may still be known; without a description it is not shown."""
    for worker_id in ("w1", "w2"):
        make_presence(worker_id).report()
    client.pexpire(keys.worker("w1"), 1)
    deadline = time.monotonic() + 5
    while client.exists(keys.worker("w1")) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert client.zscore(keys.WORKERS, "w1") is not None
    assert list_workers(client, settings) == [told("w2")]


def test_ids_of_workers_long_gone_are_swept(client: Any, make_presence: MakePresence) -> None:
    """Killed workers leave an id behind; any other worker's report removes it in the end."""
    client.zadd(keys.WORKERS, {"dead": client.time()[0] - 3600})
    make_presence().report()
    assert client.zrange(keys.WORKERS, 0, -1) == [b"w1"]


def test_start_reports_at_once_and_again(
    client: Any, settings: Settings, make_presence: MakePresence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is listed as soon as `start` returns, and stays so by itself."""
    monkeypatch.setattr(presence_module, "INTERVAL_S", 0.01)
    presence = make_presence()
    presence.start()
    try:
        assert list_workers(client, settings) == [told("w1")]
        client.delete(keys.worker("w1"))
        deadline = time.monotonic() + 5
        while not list_workers(client, settings) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert list_workers(client, settings) == [told("w1")]
    finally:
        presence.stop()


def test_stop_leaves_nothing_behind(
    client: Any, settings: Settings, make_presence: MakePresence
) -> None:
    """After a clean stop the list, the report and the id are gone, and others' are not."""
    make_presence("w2").report()
    presence = make_presence("w1")
    presence.start()
    presence.stop()
    assert list_workers(client, settings) == [told("w2")]
    assert not client.exists(keys.worker("w1"), keys.worker_templates("w1"))
    assert client.zrange(keys.WORKERS, 0, -1) == [b"w2"]


@pytest.mark.parametrize("body", [b"", b"\xc1", b"{}", pack({"id": "w1"})[:3], pack(7)])
def test_damaged_report_does_not_break_the_list(
    client: Any, settings: Settings, make_presence: MakePresence, body: bytes
) -> None:
    """One worker's unreadable report, or one of another release, hides no other worker."""
    make_presence("w1").report()
    make_presence("w2").report()
    client.set(keys.worker("w1"), body)
    assert list_workers(client, settings) == [told("w2")]


def test_redis_away_is_an_error_that_says_so(settings: Settings) -> None:
    """An unreachable Redis is not an empty list."""
    away = settings.model_copy(update={"redis_url": closed_port_url()})
    with connect(away) as client, pytest.raises(RedisUnreachable):
        list_workers(client, away)
