"""How many jobs wait to be taken of each template for this worker's model, looked at now and then.

What is counted are messages: a template's waiting set holds the jobs of all its models. A scrape
shows the last look and never asks Redis itself: a Redis that is slow or away must not make
the endpoint so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from contract import keys
from contract.redis_client import Client, errors_explained
from contract.settings import Settings

INTERVAL_S = 5.0
STALE_S = 3 * INTERVAL_S + 1.0

Template = tuple[str, str]  # tenant, name


class QueueLengths:
    """`look` at the queues of the templates that `served` returns, those for the model;
    `lengths` is what was seen."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        *,
        model_digest: str,
        served: Callable[[], Iterable[Template]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._settings = settings
        self._model_digest = model_digest
        self._served = served
        self._clock = clock
        self._seen: dict[Template, int] = {}
        self._seen_at: float | None = None

    def look(self) -> None:
        """Count once, in one round trip."""
        templates = sorted(set(self._served()))
        with errors_explained(self._settings):
            pipe = self._client.pipeline(transaction=False)
            for tenant, name in templates:
                # The one list of a queue: there are no priorities (contract.celery_app).
                pipe.llen(keys.messages(keys.queue(tenant, name, self._model_digest)))
            replies = pipe.execute(raise_on_error=False)
            errors = [reply for reply in replies if not isinstance(reply, int)]
            if errors and len(errors) == len(replies):
                raise errors[0]
        # One tenant's damaged key leaves out its own queue alone.
        self._seen = {
            template: reply
            for template, reply in zip(templates, replies, strict=True)
            if isinstance(reply, int)
        }
        self._seen_at = self._clock()

    def lengths(self) -> dict[Template, int]:
        """As last seen; nothing once that is so old that it says nothing of now."""
        if self._seen_at is None or self._clock() - self._seen_at > STALE_S:
            return {}
        return dict(self._seen)
