"""A worker's own rings: next in line, and for jobs of the queue's tenant alone."""

from __future__ import annotations

import pytest

from contract import keys
from contract.celery_app import make_celery, ring
from contract.codec import unpack
from contract.errors import InvalidInput, RedisUnreachable
from contract.ids import new_job_id
from contract.redis_client import Client, connect
from contract.settings import Settings
from tests.support.tcp import closed_port_url
from worker.doorbell import job_in
from worker.ringing import ring_first

QUEUE = keys.queue("acme", "notes", "a" * 64)


def test_a_job_that_is_rung_for_again_is_next(
    worker_client: Client, worker_settings: Settings, client: Client, settings: Settings
) -> None:
    """Before all that producers have rung for; read by the broker itself."""
    first, again = new_job_id("acme"), new_job_id("acme")
    app = make_celery(settings)
    ring(app, QUEUE, first)
    ring_first(worker_client, worker_settings, QUEUE, again)
    order = [job_in(entry, QUEUE) for entry in reversed(client.lrange(keys.messages(QUEUE), 0, -1))]
    assert order == [again, first]
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        taken = [unpack(channel.basic_get(QUEUE, no_ack=True).body)[0] for _ in order]
    app.close()
    assert taken == [[again], [first]]


def test_another_tenants_queue_is_refused(client: Client, settings: Settings) -> None:
    """The queue comes from a record that a producer wrote."""
    with pytest.raises(InvalidInput, match="own tenant"):
        ring_first(client, settings, QUEUE, new_job_id("globex"))
    assert client.keys("*") == []


def test_broker_that_is_away_is_a_redis_that_is_away() -> None:
    """So that the sweep ends as at any other call, and leases are not trusted at once after it."""
    settings = Settings(redis_url=closed_port_url(), redis_timeout_s=0.5)
    with connect(settings) as client, pytest.raises(RedisUnreachable):
        ring_first(client, settings, QUEUE, f"acme.{'0' * 32}")
