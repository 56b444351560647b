"""kombu's Redis transports, made to outlive what would end the worker or leave it idle.

- An entry in a queue that is no message (somebody pushed it by hand) raises inside kombu's event
  loop, which ends the process. Here it is counted and dropped.
- A Redis that refuses (full, a replica now, without replicas, no permission) does the same.
  Here that is a connection error, after which Celery reconnects and tries again.
- An acknowledgement that cannot be sent keeps its place in the prefetch count for ever, until the
  worker is connected but takes nothing more. Here the place is free; the broker delivers the
  message once more, and finds its job ended.
- A message that came over a connection which was closed since cannot be acknowledged, and trying to
  ends the process. Here its place is freed, and that is all.
- The set of queues is gone through anew for each queue added and each turn of the event loop, which
  a thousand queues feel. Here it is done once after a change.

It is also the door at which messages are taken apart (`worker.doorbell`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Set as AbstractSet
from contextlib import contextmanager
from queue import Empty
from typing import Any, ClassVar

from kombu import transport
from kombu.transport import redis as kombu_redis, virtual
from redis.exceptions import ResponseError

from contract.errors import InvalidInput
from worker.doorbell import remade
from worker.refusals import REFUSALS
from worker.rotation import TenantRotation

# Read off the class by Celery, off the instance by kombu.
CONNECTION_ERRORS: tuple[type[Exception], ...] = (
    *kombu_redis.Transport.connection_errors,
    ResponseError,
)
_NOT_THE_ENTRYS: tuple[type[Exception], ...] = (Empty, *CONNECTION_ERRORS)


class QoS(kombu_redis.QoS):  # type: ignore[misc]
    """Frees a message's place even when Redis cannot be told."""

    def ack(self, delivery_tag: str) -> None:
        with self._place_freed(delivery_tag) as told:
            if told:
                super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        with self._place_freed(delivery_tag) as told:
            if told:
                super().reject(delivery_tag, requeue=requeue)

    @contextmanager
    def _place_freed(self, delivery_tag: str) -> Iterator[bool]:
        """Gives whether Redis can be told over the connection that brought the message.

        Where that was closed since, kombu would fall over it, and there is nothing to mend: the
        broker delivers the message once more.
        """
        if self.channel.connection is None:
            virtual.QoS.ack(self, delivery_tag)
            yield False
            return
        try:
            yield True
        except CONNECTION_ERRORS:
            virtual.QoS.ack(self, delivery_tag)
            raise


class _Tolerant:
    """What both kinds of channel do about messages, refusals and turns."""

    QoS = QoS
    # Which queues to prefer. kombu makes the channels, so it stands with the class; see `install`.
    warm: ClassVar[Callable[[], AbstractSet[str]]] = frozenset
    # What kombu's channels have.
    client: Any
    brpop_timeout: float
    global_keyprefix: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._consumed: list[str] | None = None  # as they are consumed now; None: not known
        self._words: dict[str, bytes] = {}  # queue -> its key, as it stands in a command
        super().__init__(*args, **kwargs)
        # kombu's own orders, one of which is chosen by name, know nothing of tenants.
        self._queue_cycle = TenantRotation()

    @property
    def active_queues(self) -> list[str]:
        """What kombu's property gives."""
        if self._consumed is None:
            self._consumed = list(super().active_queues)  # type: ignore[misc]
            self._queue_cycle.update(self._consumed)
        return self._consumed

    def _update_queue_cycle(self) -> None:
        # What kombu calls after each change.
        self._consumed = None
        self._words = {}

    def _brpop_start(self, timeout: float | None = None) -> None:
        """What kombu's does, for one priority, without making each key's bytes anew each time."""
        count = len(self.active_queues)  # this first: it brings the cycle up to date
        self._queue_cycle.prefer(_Tolerant.warm())
        queues = self._queue_cycle.consume(count)
        if not queues:
            return
        seconds = (self.brpop_timeout if timeout is None else timeout) or 0
        words = [_word("BRPOP"), *map(self._word_of, queues), _word(str(seconds))]
        connection = self.client.connection
        self._in_poll = connection
        self._brpop_sent_at = time.monotonic()
        connection.send_packed_command([b"".join([b"*%d\r\n" % len(words), *words])])

    def _word_of(self, queue: str) -> bytes:
        if (word := self._words.get(queue)) is None:
            word = self._words[queue] = _word(f"{self.global_keyprefix}{queue}")
        return word

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except KeyError as error:
            # A message that lacks a part. kombu counts KeyError among its connection errors, so
            # whoever may push to a queue could have the worker reconnect for every message.
            return self._drop(error)
        except _NOT_THE_ENTRYS:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the entry did to kombu
            return self._drop(error)

    @staticmethod
    def _drop(error: Exception) -> bool:
        # Not its content: it may hold what a log must not.
        REFUSALS.note("unreadable", error=type(error).__name__)
        return True


def _word(text: str) -> bytes:
    """One argument of a command, in Redis's protocol."""
    encoded = text.encode()
    return b"$%d\r\n%b\r\n" % (len(encoded), encoded)


class Channel(_Tolerant, kombu_redis.Channel):  # type: ignore[misc]
    """`redis://`."""


class SentinelChannel(_Tolerant, kombu_redis.SentinelChannel):  # type: ignore[misc]
    """`sentinel://`."""


class _Reconnecting:
    connection_errors: ClassVar[tuple[type[Exception], ...]] = CONNECTION_ERRORS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection_errors = CONNECTION_ERRORS  # type: ignore[misc]

    def _deliver(self, message: Any, queue: str) -> None:
        try:
            doorbell = remade(message, queue)
        except InvalidInput as error:
            REFUSALS.note("no_doorbell", error=str(error))
            return
        super()._deliver(doorbell, queue)  # type: ignore[misc]


class Transport(_Reconnecting, kombu_redis.Transport):  # type: ignore[misc]
    """`redis://` in a worker."""

    Channel = Channel


class SentinelTransport(_Reconnecting, kombu_redis.SentinelTransport):  # type: ignore[misc]
    """`sentinel://` in a worker."""

    Channel = SentinelChannel


def install(warm: Callable[[], AbstractSet[str]] = frozenset) -> None:
    """Make this process's Celery use them; kombu has no setting for a transport's classes.

    `warm` is asked for the queues to prefer each time that they are to be looked into.
    """
    _Tolerant.warm = staticmethod(warm)
    for scheme in ("redis", "rediss"):
        transport.TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"
    transport.TRANSPORT_ALIASES["sentinel"] = f"{__name__}:SentinelTransport"
