"""A ring of the janitor's that does not reach the broker."""

from __future__ import annotations

import pytest

from contract.celery_app import make_celery
from contract.errors import RedisUnreachable
from contract.settings import Settings
from tests.support.tcp import closed_port_url
from worker.celery_worker import _ring


def test_broker_that_is_away_is_a_redis_that_is_away() -> None:
    """So that the sweep ends as at any other call, and leases are not trusted at once after it."""
    settings = Settings(redis_url=closed_port_url(), redis_timeout_s=0.5)
    with pytest.raises(RedisUnreachable):
        _ring(make_celery(settings), settings, "acme/notes/0123456789ab", f"acme.{'0' * 32}")
