"""Celery's consumer, changed in three ways.

- Celery waits longer and longer between its tries to reconnect, up to half a minute, which a worker
  would stand idle after an outage. Here it is two seconds at the most.
- When a connection is lost, kombu puts the messages of running jobs back into their queues, for
  others to take. Here they stay where they are: the jobs go on running, under leases of their own.
- Celery writes the whole body of a message that it refuses to the log. Here it is only counted.
"""

from __future__ import annotations

import time
from typing import Any

from celery.utils.log import get_logger as celery_logger
from celery.worker.consumer import Consumer as CeleryConsumer
from celery.worker.state import maybe_shutdown

from contract.logs import get_logger
from worker.refusals import REFUSALS, Reason

log = get_logger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 0.2, 2.0
REFUSED_S = 1.0


class Consumer(CeleryConsumer):  # type: ignore[misc]
    """See above. Named in `app.conf.worker_consumer`."""

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, trying again for as long as it takes and until told to shut down."""
        away = False

        def note(error: Exception, _interval: float) -> None:
            nonlocal away
            if not away:
                log.warning("broker_away", error=type(error).__name__)
            away = True

        conn = conn.ensure_connection(
            note,
            None,
            interval_start=RETRY_FIRST_S,
            interval_step=RETRY_FIRST_S,
            interval_max=RETRY_MAX_S,
            callback=maybe_shutdown,
        )
        self.first_connection_attempt = False
        if away:
            log.info("broker_back")
        return conn

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        # Connected, but refused: Redis is full, or has become a replica.
        log.warning("broker_refuses", error=str(exc)[:200])
        time.sleep(REFUSED_S)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        for channel in self.connection.transport.channels:
            channel.do_restore = False
        super().on_connection_error_after_connected(exc)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        self._refuse(message, "content", exc)

    def on_invalid_task(self, _body: Any, message: Any, exc: Exception) -> None:
        self._refuse(message, "content", exc)

    def on_unknown_message(self, _body: Any, message: Any) -> None:
        self._refuse(message, "no_task")

    def on_unknown_task(self, _body: Any, message: Any, exc: Exception) -> None:
        self._refuse(message, "unknown_task", exc)

    def _refuse(self, message: Any, reason: Reason, exc: Exception | None = None) -> None:
        REFUSALS.note(reason, error="" if exc is None else type(exc).__name__)
        message.reject_log_error(celery_logger(__name__), self.connection_errors)
