"""The list of live workers in a real Redis: who reports is on it, who stops or dies is not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from contract import keys
from contract.codec import pack
from contract.errors import RedisUnreachable
from contract.redis_client import connect
from contract.settings import Settings
from contract.worker_reports import EXPIRES_S, list_workers
from tests.support.tcp import closed_port_url
from worker import presence as presence_module
from worker.presence import INTERVAL_S, Presence

MakePresence = Callable[..., Presence]


@pytest.fixture
def make_presence(worker_client: Any, worker_settings: Settings) -> MakePresence:
    """A worker's presence with a small description."""

    def make(
        worker_id: str = "w1", describe: Callable[[], dict[str, Any]] | None = None
    ) -> Presence:
        return Presence(
            client=worker_client,
            settings=worker_settings,
            worker_id=worker_id,
            describe=describe or (lambda: {"id": worker_id}),
        )

    return make


def test_what_was_reported_is_listed(
    client: Any, settings: Settings, make_presence: MakePresence
) -> None:
    """Each description comes back as it was, by the worker's id."""
    assert list_workers(client, settings) == []
    told = {"id": "w2", "versions": [{"version": "acme/triage@1", "bytes": 2**40}], "x": None}
    make_presence("w2", lambda: told).report()
    make_presence("w1").report()
    assert list_workers(client, settings) == [{"id": "w1"}, told]


def test_a_second_report_replaces_the_first(
    client: Any, settings: Settings, make_presence: MakePresence
) -> None:
    """The list shows the last report, once."""
    counts = iter([1, 2])
    presence = make_presence("w1", lambda: {"id": "w1", "running": next(counts)})
    presence.report()
    presence.report()
    assert list_workers(client, settings) == [{"id": "w1", "running": 2}]


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
    assert list_workers(client, settings) == [{"id": "w2"}]


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
        assert list_workers(client, settings) == [{"id": "w1"}]
        client.delete(keys.worker("w1"))
        deadline = time.monotonic() + 5
        while not list_workers(client, settings) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert list_workers(client, settings) == [{"id": "w1"}]
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
    assert list_workers(client, settings) == [{"id": "w2"}]
    assert not client.exists(keys.worker("w1"))
    assert client.zrange(keys.WORKERS, 0, -1) == [b"w2"]


@pytest.mark.parametrize("body", [b"", b"\xc1", b"{}", pack({"id": "w1"})[:3], pack(7)])
def test_damaged_report_does_not_break_the_list(
    client: Any, settings: Settings, make_presence: MakePresence, body: bytes
) -> None:
    """One worker's unreadable report, or one of another release, hides no other worker."""
    make_presence("w1").report()
    make_presence("w2").report()
    client.set(keys.worker("w1"), body)
    assert list_workers(client, settings) == [{"id": "w2"}]


def test_redis_away_is_an_error_that_says_so(settings: Settings) -> None:
    """An unreachable Redis is not an empty list."""
    away = settings.model_copy(update={"redis_url": closed_port_url()})
    with connect(away) as client, pytest.raises(RedisUnreachable):
        list_workers(client, away)
