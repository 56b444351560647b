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
        self._told: Mapping[str, TemplateState] | None = None  # None: what Redis has is not known
        self._revision = 0  # of the last write, also of one that failed
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
        with errors_explained(self._settings):
            pipe = self._client.pipeline(transaction=False)
            pipe.time()
            pipe.hget(keys.worker_templates(self._worker_id), REVISION)
            time, there = pipe.execute(raise_on_error=False)
            if isinstance(time, Exception):
                raise time
            # Of a write that fails nobody knows whether it was made: after it all is told again.
            told, self._told = self._told, None
            # Looked at before too, so that nobody reads what changed for all that there is.
            known = told is not None and there == self._last
            if not (known and self._write(time[0], body, templates, told)):
                self._write(time[0], body, templates, None)
        self._told = templates

    @property
    def _last(self) -> bytes:
        """What stands under REVISION if Redis has all that was written."""
        return b"%d" % self._revision

    def _write(
        self,
        now: int,
        body: bytes,
        templates: Mapping[str, TemplateState],
        told: Mapping[str, TemplateState] | None,
    ) -> bool:
        """Write what differs from `told`, or with None all, and remove what is no more.

        False when Redis had not what this worker had told it: the worker was paused and it
        expired, or a replica took over that had less.
        """
        key, last, before = keys.worker_templates(self._worker_id), self._last, told or {}
        changed = {a: state for a, state in templates.items() if before.get(a) != state}
        gone = before.keys() - templates.keys()
        # No number twice: of two writes under one, a replica that takes over may have the other.
        self._revision += bool(told is None or changed or gone)
        pipe = self._client.pipeline(transaction=True)
        if told is None:
            pipe.delete(key)
        pipe.hget(key, REVISION)
        if gone:
            pipe.hdel(key, *gone)
        fields = {address: pack(state.to_dict()) for address, state in changed.items()}
        pipe.hset(key, mapping={**fields, REVISION: self._revision})
        pipe.expire(key, EXPIRES_S)
        pipe.set(keys.worker(self._worker_id), body, ex=EXPIRES_S)
        pipe.zadd(keys.WORKERS, {self._worker_id: now})
        pipe.zremrangebyscore(keys.WORKERS, "-inf", now - 10 * EXPIRES_S)
        there, *others = pipe.execute(raise_on_error=told is None)
        if told is None or isinstance(there, ResponseError):  # overwritten with another type
            return told is None
        for reply in others:
            if isinstance(reply, Exception):
                raise reply
        return bool(there == last)
