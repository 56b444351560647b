"""What a worker says of itself while it lives; `contract.worker_reports` reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from redis.exceptions import ResponseError

from contract import keys
from contract.codec import pack
from contract.errors import RedisRefused
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained
from contract.settings import Settings
from contract.worker_reports import EXPIRES_S, REVISION
from worker.description import TemplateState
from worker.periodic import Periodic

log = get_logger(__name__)

INTERVAL_S = 2.0


class Presence:
    """Reports under `keys.worker(id)` every INTERVAL_S; gone on a clean stop.

    Of its templates, under `keys.worker_templates(id)`, it writes what changed since it last did:
    a thousand of them hardly ever change, and all would take tens of milliseconds each time.
    """

    def __init__(
        self,
        *,
        client: Client,
        settings: Settings,
        worker_id: str,
        describe: Callable[[], dict[str, Any]],
        templates: Callable[[], Mapping[str, TemplateState]],
    ) -> None:
        self._client: Any = client  # redis-py types each reply as a value or an awaitable
        self._settings = settings
        self._worker_id = worker_id
        self._describe = describe
        self._templates = templates
        self._told: Mapping[str, TemplateState] = {}
        self._revision = 0  # of what was told; 0: nothing yet
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
            self._client.delete(
                keys.worker(self._worker_id), keys.worker_templates(self._worker_id)
            )
            self._client.zrem(keys.WORKERS, self._worker_id)

    def report(self) -> None:
        """Write the description once."""
        body, templates = pack(self._describe()), self._templates()
        changed = {a: state for a, state in templates.items() if self._told.get(a) != state}
        gone = self._told.keys() - templates.keys()
        revision = self._revision + bool(changed or gone or not self._revision)
        with errors_explained(self._settings):
            now = self._client.time()[0]
            if not self._write(now, body, changed, gone, revision):
                self._write(now, body, templates, None, revision)
        self._told, self._revision = templates, revision

    def _write(
        self,
        now: int,
        body: bytes,
        changed: Mapping[str, TemplateState],
        gone: set[str] | None,
        revision: int,
    ) -> bool:
        """Write these fields, and remove `gone`, or with None all others.

        False when Redis had not what this worker had told it: the worker was paused and it
        expired, or a replica took over that had less.
        """
        key = keys.worker_templates(self._worker_id)
        pipe = self._client.pipeline(transaction=True)
        if gone is None:
            pipe.delete(key)
        pipe.hget(key, REVISION)
        if gone:
            pipe.hdel(key, *gone)
        fields = {address: pack(state.to_dict()) for address, state in changed.items()}
        pipe.hset(key, mapping={**fields, REVISION: revision})
        pipe.expire(key, EXPIRES_S)
        pipe.set(keys.worker(self._worker_id), body, ex=EXPIRES_S)
        pipe.zadd(keys.WORKERS, {self._worker_id: now})
        pipe.zremrangebyscore(keys.WORKERS, "-inf", now - 10 * EXPIRES_S)
        there, *others = pipe.execute(raise_on_error=gone is None)
        if gone is None or isinstance(there, ResponseError):  # it was overwritten with another type
            return gone is None
        for reply in others:
            if isinstance(reply, Exception):
                raise reply
        return bool(there == (b"%d" % self._revision if self._revision else None))
