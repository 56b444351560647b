"""What a worker says of itself while it lives; `contract.worker_reports` reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from contract import keys
from contract.codec import pack
from contract.errors import RedisRefused
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained
from contract.settings import Settings
from contract.worker_reports import EXPIRES_S
from worker.periodic import Periodic

log = get_logger(__name__)

INTERVAL_S = 2.0


class Presence:
    """Reports under `keys.worker(id)` every INTERVAL_S; gone on a clean stop."""

    def __init__(
        self,
        *,
        client: Client,
        settings: Settings,
        worker_id: str,
        describe: Callable[[], dict[str, Any]],
    ) -> None:
        self._client = client
        self._settings = settings
        self._worker_id = worker_id
        self._describe = describe
        self._thread = Periodic("presence", self.report, interval_s=INTERVAL_S)

    def start(self) -> None:
        try:
            self.report()
        except RedisRefused as error:
            # A full Redis is no reason not to work; the next report may be taken.
            log.warning("report_refused", error=str(error))
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()
        with errors_explained(self._settings):
            self._client.delete(keys.worker(self._worker_id))
            self._client.zrem(keys.WORKERS, self._worker_id)

    def report(self) -> None:
        """Write the description once."""
        body = pack(self._describe())
        with errors_explained(self._settings):
            now = self._client.time()[0]
            pipe = self._client.pipeline(transaction=False)
            pipe.set(keys.worker(self._worker_id), body, ex=EXPIRES_S)
            pipe.zadd(keys.WORKERS, {self._worker_id: now})
            pipe.zremrangebyscore(keys.WORKERS, "-inf", now - 10 * EXPIRES_S)
            pipe.execute()
