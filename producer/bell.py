"""Ringing: the Celery message that tells a template's workers of a queued job."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from contract.celery_app import make_celery, ring
from contract.errors import RedisUnreachable
from contract.redis_client import errors_explained
from contract.redis_url import redacted
from contract.settings import Settings

if TYPE_CHECKING:
    from kombu.pools import ProducerPool

_CONNECTIONS = 32  # made when needed; more threads than that wait for each other
_BATCH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Whom to tell of which job."""

    queue: str
    job_id: str


class Bell(Protocol):
    """Where producers announce jobs. A lost announcement delays a job, the record stays."""

    def ring(self, rings: Iterable[Ring]) -> None:
        """Announce each job. Raises RedisUnreachable or RedisRefused; some may be announced."""
        ...

    def close(self) -> None: ...


class CeleryBell:
    """`Bell` over one Celery app with broker connections of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._app: Any = None
        self._pool: ProducerPool | None = None

    def ring(self, rings: Iterable[Ring]) -> None:
        from kombu.exceptions import BatchPublishError, OperationalError

        trouble: Exception | None = None
        try:
            with (
                errors_explained(self._settings),
                self._producers().acquire(block=True) as producer,
                producer.batch(max_size=_BATCH),
            ):
                for one in rings:
                    ring(self._app, one.queue, one.job_id, producer=producer)
        except (OperationalError, BatchPublishError) as error:
            trouble = error
        if trouble is None:
            return
        # Not in the handler: raised there, the cause would forget what it was raised for.
        with errors_explained(self._settings):
            if isinstance(trouble.__cause__, Exception):
                raise trouble.__cause__
        raise RedisUnreachable(
            "the broker cannot be reached",
            given=redacted(self._settings.redis_url),
            remedy="Start Redis or set PREFILLQ_REDIS_URL.",
        ) from trouble

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.force_close_all()
            pool.connections.force_close_all()

    def _producers(self) -> ProducerPool:
        from kombu.pools import ProducerPool

        with self._lock:
            if self._pool is None:
                self._app = make_celery(self._settings)
                # kombu's own pools are shared by all that have the same URL; closing one
                # producer must not close another's.
                connections = self._app.connection_for_write().Pool(limit=_CONNECTIONS)
                self._pool = ProducerPool(connections, limit=_CONNECTIONS)
            return self._pool
