"""Who is subscribed to anything on a Redis: producers that wait, and Celery's workers."""

from __future__ import annotations

import time
from typing import Any

PATIENCE_S = 2.0  # Redis learns of a closed connection a moment later


def listeners(client: Any) -> list[str]:
    """Those of the client's own database that are still there after PATIENCE_S seconds."""
    db = str(client.connection_pool.connection_kwargs.get("db") or 0)
    give_up = time.monotonic() + PATIENCE_S
    while found := [one for one in client.client_list(_type="pubsub") if one["db"] == db]:
        if time.monotonic() > give_up:
            return [f"{one['name'] or one['lib-name']}, {one['age']} s old" for one in found]
        time.sleep(0.02)
    return []
