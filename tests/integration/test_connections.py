"""Ways to reach a Redis other than a port, and what a Redis that will not write does."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.celery_app import make_celery, ring
from contract.errors import RedisRefused
from contract.redis_client import connect, errors_explained
from contract.settings import Settings
from local.redis_server import EmbeddedRedis


def test_redis_behind_a_socket_file(tmp_path: Path) -> None:
    """`unix://` serves records and broker alike."""
    path = tmp_path / "redis.sock"
    with EmbeddedRedis(config={"unixsocket": str(path)}):
        settings = Settings(redis_url=f"unix://{path}")
        with connect(settings) as client:
            app = make_celery(settings)
            ring(app, "acme/triage/x", "acme.1")
            app.close()
            assert client.llen("pq:_broker:acme/triage/x") == 1


def test_full_redis_is_a_refusal_that_says_what_to_do() -> None:
    """Case Q22: noeviction; the error names the remedy, and nothing was evicted."""
    with EmbeddedRedis(config={"maxmemory": "2mb"}) as server:
        settings = Settings(redis_url=server.url)
        with connect(settings) as client:
            client.set("kept", "x")
            refused = pytest.raises(RedisRefused, match="maxmemory")
            with refused, errors_explained(settings):
                [client.set(f"big-{index}", b"x" * 500_000) for index in range(100)]
            assert client.get("kept") == b"x"
