"""One worker at a time looks after a rollout: a key that expires when its holder dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from contract import keys
from contract.errors import PrefillqError
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained
from contract.settings import Settings
from worker.periodic import Periodic

log = get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Turn:
    """Held by this worker. `rest_s`: how long nobody needs to look again after it."""

    rest_s: float


class Turns:
    """As long as the lease of a job, and renewed as often.

    That is for saving work, not for being right: should two hold a turn at once, each move is a
    compare-and-set, and one of them is refused.
    """

    def __init__(self, client: Client, settings: Settings, worker_id: str) -> None:
        self._client = client
        self._settings = settings
        self._worker_id = worker_id

    @contextmanager
    def take(self, tenant: str, rollout_id: str, *, rest_s: float) -> Iterator[Turn | None]:
        """The turn, or None while another worker has it or has just had it."""
        key = keys.conductor(tenant, rollout_id)
        lease_s = self._settings.lease_s
        with errors_explained(self._settings):
            mine = self._client.set(key, self._worker_id, nx=True, px=round(lease_s * 1000))
        if not mine:
            yield None
            return
        turn = Turn(rest_s=rest_s)
        renewal = Periodic("turn", lambda: self._keep(key, lease_s), interval_s=lease_s / 4)
        renewal.start()
        try:
            yield turn
        finally:
            renewal.stop()
            try:
                self._keep(key, turn.rest_s)
            except PrefillqError as error:  # it expires
                log.debug("turn_not_ended", error=str(error))

    def _keep(self, key: str, seconds: float) -> None:
        """Let it expire so many seconds from now, if it is still this worker's."""
        with errors_explained(self._settings):
            if self._client.get(key) == self._worker_id.encode():
                px = max(1, round(seconds * 1000))
                self._client.set(key, self._worker_id, xx=True, px=px)
