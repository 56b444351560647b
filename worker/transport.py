"""kombu's Redis transport, made to outlive what it would end the worker for.

An entry in a queue that is no message (somebody pushed it by hand) and a Redis that refuses
writes for a while both raise inside kombu's event loop, which ends the process. Here the first
is logged and dropped, and the second is a connection error, after which Celery reconnects and
tries again.

It is also the door at which messages are taken apart (`worker.doorbell`).
"""

from __future__ import annotations

from queue import Empty
from typing import Any, ClassVar

from kombu import transport
from kombu.transport import redis as kombu_redis
from redis.exceptions import OutOfMemoryError, ReadOnlyError

from contract.errors import InvalidInput
from contract.logs import get_logger
from worker.doorbell import remade

log = get_logger(__name__)


class Channel(kombu_redis.Channel):  # type: ignore[misc]
    """Drops entries that are no messages."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except (Empty, *self.connection_errors):
            raise
        except Exception as error:  # noqa: BLE001 - whatever the entry did to kombu
            # Not its content: it may hold what a log must not.
            log.error("message_unreadable", error=type(error).__name__)  # noqa: TRY400
            return True


class Transport(kombu_redis.Transport):  # type: ignore[misc]
    """`redis://` in a worker."""

    Channel = Channel
    # Read off the class by Celery, off the instance by kombu.
    connection_errors: ClassVar[tuple[type[Exception], ...]] = (
        *kombu_redis.Transport.connection_errors,
        OutOfMemoryError,
        ReadOnlyError,
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection_errors = type(self).connection_errors  # type: ignore[misc]

    def _deliver(self, message: Any, queue: str) -> None:
        try:
            doorbell = remade(message, queue)
        except InvalidInput as error:
            log.warning("message_refused", queue=queue, error=str(error))
            return
        super()._deliver(doorbell, queue)


def install() -> None:
    """Make this process's Celery use it; kombu has no setting for a transport's classes."""
    for scheme in ("redis", "rediss"):
        transport.TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"
