"""Which versions had jobs lately, written down by all workers of a model for the next that starts.

One sorted set per model: versions by the server's time of their last job, the newest KEPT of them.
"""

from __future__ import annotations

import threading
from typing import Any

from contract import keys
from contract.errors import InvalidInput
from contract.ids import TemplateAddress, parse_address
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained, text
from contract.settings import Settings
from contract.types import VersionRef

log = get_logger(__name__)

KEPT = 4096
LATELY_S = 86_400  # what had no job for so long is not warmed
FLUSH_S = 5.0


class UsedVersions:
    """`note` is called from threads that run jobs; `flush` every FLUSH_S."""

    def __init__(self, client: Client, settings: Settings, *, model_digest: str) -> None:
        self._client: Any = client  # redis-py types each reply as a value or an awaitable
        self._settings = settings
        self._key = keys.used(model_digest)
        self._new: set[str] = set()
        self._lock = threading.Lock()

    def note(self, ref: VersionRef) -> None:
        """A job of this version was answered here."""
        with self._lock:
            self._new.add(str(ref))

    def flush(self) -> None:
        """Write down what was noted since; kept for the next time when Redis will not have it."""
        with self._lock:
            new, self._new = self._new, set()
        if not new:
            return
        try:
            with errors_explained(self._settings):
                now = self._client.time()[0]
                pipe = self._client.pipeline(transaction=False)
                pipe.zadd(self._key, dict.fromkeys(new, now))
                pipe.zremrangebyrank(self._key, 0, -KEPT - 1)
                pipe.expire(self._key, LATELY_S)
                pipe.execute()
        except BaseException:
            with self._lock:
                self._new |= new
            raise

    def recent(self) -> list[TemplateAddress]:
        """Versions that had jobs within LATELY_S, the last used first."""
        with errors_explained(self._settings):
            since = self._client.time()[0] - LATELY_S
            found = self._client.zrevrangebyscore(self._key, "+inf", since, start=0, num=KEPT)
        addresses = []
        for member in found:
            try:
                address = parse_address(text(member))
            except InvalidInput:
                log.warning("used_version_unreadable")
                continue
            if address.version is not None:
                addresses.append(address)
        return addresses
