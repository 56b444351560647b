"""The proxy does to a connection what it was told, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.proxy import (
    Proxy,
    cut_reply,
    cut_request,
    cut_within_reply,
    delay_reply,
    hold_reply,
    lose_reply,
)
from tests.support.resp import Splitter, words

SOON_S = 0.3


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    with Proxy(redis_url) as opened:
        yield opened


@pytest.fixture
def through(proxy: Proxy, client: Any) -> Iterator[Any]:
    """A client behind the proxy that gives up soon and tries nothing twice."""
    with redis.Redis.from_url(
        proxy.url, socket_timeout=SOON_S, retry=Retry(NoBackoff(), 0)
    ) as opened:
        opened.ping()
        yield opened


def took(act: Callable[[], object]) -> float:
    started = time.monotonic()
    act()
    return time.monotonic() - started


@pytest.mark.parametrize(
    "value",
    [
        b"+OK\r\n",
        b":5\r\n",
        b"$-1\r\n",
        b"$3\r\na\r\n\r\n",
        b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
        b"%1\r\n+k\r\n$1\r\nv\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b">2\r\n+message\r\n$1\r\nx\r\n",
        b"_\r\n",
        b",1.5\r\n",
    ],
)
def test_a_value_is_whole_only_with_its_last_byte(value: bytes) -> None:
    """Byte by byte nothing comes out early, and what follows is left for later."""
    splitter = Splitter()
    for byte in value[:-1]:
        assert splitter.feed(bytes([byte])) == []
    assert splitter.feed(value[-1:] + b"+next") == [value]
    assert splitter.feed(b"\r\n") == [b"+next\r\n"]


def test_words_of_a_request() -> None:
    """Blobs may hold anything, line ends too."""
    assert words(b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n") == [b"GET", b"a\r\nb"]


def test_nothing_is_changed_without_a_rule(through: Any) -> None:
    """A megabyte goes and comes back, pipelines keep their order."""
    blob = bytes(range(256)) * 4096
    through.set("blob", blob)
    assert through.get("blob") == blob
    pipe = through.pipeline(transaction=True)
    for number in range(500):
        pipe.incrby("count", number)
    assert pipe.execute()[-1] == sum(range(500))


def test_a_lost_reply_leaves_the_client_waiting(proxy: Proxy, through: Any, client: Any) -> None:
    """The server did it; the client hears nothing and nothing is closed."""
    rule = proxy.on("INCRBY", lose_reply)
    with pytest.raises(redis.TimeoutError):
        through.incr("count")
    assert rule.wait(1)
    assert client.get("count") == b"1"
    assert through.incr("count") == 2


def test_a_cut_reply_closes_the_connection(proxy: Proxy, through: Any, client: Any) -> None:
    """The server did it; the client learns that its connection ended."""
    proxy.on("INCRBY", cut_reply)
    with pytest.raises(redis.ConnectionError):
        through.incr("count")
    assert client.get("count") == b"1"


def test_a_cut_request_never_arrives(proxy: Proxy, through: Any, client: Any) -> None:
    """The server did nothing."""
    proxy.on("INCRBY", cut_request)
    with pytest.raises(redis.ConnectionError):
        through.incr("count")
    assert client.get("count") is None


def test_a_reply_cut_within(proxy: Proxy, through: Any, client: Any) -> None:
    """Some bytes come, then the end."""
    client.set("blob", b"x" * 100)
    proxy.on("GET", cut_within_reply(10))
    with pytest.raises(redis.ConnectionError):
        through.get("blob")
    assert through.get("blob") == b"x" * 100


def test_rules_choose_by_request_and_by_reply(proxy: Proxy, through: Any, client: Any) -> None:
    """`holds` and `reply_holds` narrow a rule; `times` bounds it."""
    client.mset({"a": "yes", "b": "no"})
    by_key = proxy.on("GET", cut_reply, holds=b"\r\na\r\n")
    assert through.get("b") == b"no"
    with pytest.raises(redis.ConnectionError):
        through.get("a")
    assert through.get("a") == b"yes"
    by_value = proxy.on("GET", cut_reply, reply_holds=b"no")
    assert through.get("a") == b"yes"
    with pytest.raises(redis.ConnectionError):
        through.get("b")
    assert (by_key.happened, by_value.happened) == (1, 1)


def test_a_held_reply_comes_when_released(proxy: Proxy, through: Any) -> None:
    """Late, whole and in order."""
    rule = proxy.on("SET", hold_reply)
    threading.Timer(0.15, rule.release).start()
    assert took(lambda: through.set("a", "1")) > 0.1
    assert through.get("a") == b"1"


def test_a_delayed_reply_and_a_delay_for_all(proxy: Proxy, through: Any) -> None:
    """One reply late; then every one."""
    proxy.on("GET", delay_reply(0.15))
    assert took(lambda: through.get("a")) > 0.1
    assert took(lambda: through.get("a")) < 0.1
    proxy.delay(0.15)
    assert took(lambda: through.get("a")) > 0.1


def test_a_slow_connection_trickles(proxy: Proxy, through: Any, client: Any) -> None:
    """2 kB at 20 kB/s take a tenth of a second."""
    client.set("blob", b"x" * 2000)
    proxy.slow(20_000)
    assert took(lambda: through.get("blob")) > 0.08


@pytest.mark.parametrize("direction", ["requests", "replies"])
def test_a_stalled_connection_is_half_open(
    proxy: Proxy, through: Any, client: Any, direction: Any
) -> None:
    """Nothing comes, nothing is closed; only what was asked for stands still."""
    proxy.stall(direction)
    with pytest.raises(redis.TimeoutError):
        through.incr("count")
    assert client.get("count") == (b"1" if direction == "replies" else None)
    proxy.resume()
    assert through.ping()


def test_frozen_connections_stay_half_open_and_new_ones_work(proxy: Proxy, through: Any) -> None:
    """What a firewall does that has forgotten its connections."""
    proxy.freeze()
    with pytest.raises(redis.TimeoutError):
        through.ping()
    assert through.ping()


def test_new_connections_can_be_muted(proxy: Proxy, through: Any) -> None:
    """An old connection goes on; a new one is accepted and hears nothing."""
    proxy.mute()
    assert through.ping()
    with (
        redis.Redis.from_url(proxy.url, socket_timeout=SOON_S, retry=Retry(NoBackoff(), 0)) as late,
        pytest.raises(redis.TimeoutError),
    ):
        late.ping()
    proxy.resume()


def test_refused_connections_are_accepted_again(proxy: Proxy, through: Any) -> None:
    """As a server that is stopped and started on its port."""
    proxy.refuse()
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            through.ping()
    proxy.accept()
    assert through.ping()


def test_dropped_connections_are_made_anew(proxy: Proxy, through: Any, client: Any) -> None:
    """The client has another one after it; the server saw the first one end."""
    before = through.client_id()
    proxy.drop()
    assert through.client_id() != before
    assert str(before) not in {one["id"] for one in client.client_list()}


def test_requests_are_remembered(proxy: Proxy, through: Any) -> None:
    """Word by word."""
    through.set("a", "1")
    assert proxy.requests("set") == [[b"SET", b"a", b"1"]]
