"""Acknowledgements over a connection that is not what it was, and how queues are looked into."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kombu.transport import redis as kombu_redis
from redis import Connection

from contract.keys import BROKER_PREFIX
from worker.rotation import TenantRotation
from worker.transport import Channel, QoS, _Tolerant


@pytest.fixture
def qos() -> Any:
    """One message taken, on a channel that was closed meanwhile; there is place for no other."""
    closed = SimpleNamespace(connection=None, do_restore=False, conn_or_acquire=_falls_over)
    made = QoS(closed, prefetch_count=1)
    made._delivered["tag"] = SimpleNamespace(delivery_info={})
    assert not made.can_consume()
    return made


def _falls_over(_client: object = None) -> Any:
    raise AttributeError("'NoneType' object has no attribute 'client'")


def test_job_that_ends_after_its_channel_was_closed_frees_its_place(qos: Any) -> None:
    """Its acknowledgement comes from kombu's event loop, which an error would end."""
    qos.ack("tag")
    assert qos.can_consume()


@pytest.mark.parametrize("requeue", [True, False])
def test_message_given_back_after_its_channel_was_closed_frees_its_place(
    qos: Any, requeue: bool
) -> None:
    """The same of one that is rejected."""
    qos.reject("tag", requeue=requeue)
    assert qos.can_consume()


# --- looking into the queues


class Wire:
    """A connection that keeps what is sent, and packs as redis-py does."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send_packed_command(self, command: list[bytes]) -> None:
        self.sent.append(b"".join(command))

    def send_command(self, *words: object) -> None:
        self.sent.append(b"".join(Connection().pack_command(*words)))


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A channel that consumes from queues, without Redis."""
    made = object.__new__(Channel)
    made.__dict__["client"] = SimpleNamespace(connection=Wire(), _prefix_args=_prefixed)
    made.brpop_timeout = 1
    made._consumed, made._words, made._queue_cycle = None, {}, TenantRotation()
    made._active_queues, made.active_fanout_queues = [], set()
    made.global_keyprefix, made.priority_steps = BROKER_PREFIX, [0]
    monkeypatch.setattr(_Tolerant, "warm", staticmethod(frozenset))
    return made


def _prefixed(words: list[Any]) -> list[Any]:
    return [words[0], *(f"{BROKER_PREFIX}{word}" for word in words[1:-1]), words[-1]]


def consume(channel: Any, *queues: str) -> None:
    """As kombu does when a consumer is added or cancelled."""
    channel._active_queues[:] = queues
    channel._update_queue_cycle()


def test_a_look_into_the_queues_is_what_kombu_would_send(channel: Any) -> None:
    """Byte by byte, for any names and set of queues."""
    for queues in (("a/b/c",), ("a/b/c", "a/ü/c", "zen/tea/0123"), ("zen/tea/0123",)):
        consume(channel, *queues)
        channel._brpop_start()
        kombu_redis.Channel._brpop_start(channel)
        ours, theirs = channel.client.connection.sent[-2:]
        assert ours == theirs
        assert channel._in_poll is channel.client.connection
    channel.client.connection.sent.clear()
    consume(channel)
    channel._brpop_start()
    assert channel.client.connection.sent == []


def test_warm_queues_are_looked_into_first(channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked anew each time, for what is warm changes."""
    warm = [frozenset({"a/2/m"})]
    monkeypatch.setattr(_Tolerant, "warm", staticmethod(lambda: warm[0]))
    consume(channel, "a/1/m", "a/2/m", "a/3/m")
    channel._brpop_start()
    warm[0] = frozenset({"a/3/m"})
    channel._brpop_start()
    first = [sent.split(b"\r\n")[4] for sent in channel.client.connection.sent]
    assert first == [b"pq:_broker:a/2/m", b"pq:_broker:a/3/m"]
