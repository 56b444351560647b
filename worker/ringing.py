"""A worker's own rings: for jobs that have waited before, at the head of their queue."""

from __future__ import annotations

import json
from collections.abc import Callable

from contract import keys
from contract.celery_app import check_own_queue
from contract.doorbell import made
from contract.redis_client import Client, errors_explained
from contract.settings import Settings

Ring = Callable[[str, str], None]  # queue, job id


def ring_first(client: Client, settings: Settings, queue: str, job_id: str) -> None:
    """Tell the workers of a queue of a job that is next.

    Written to Redis as kombu would, which can only put a message behind all others: a job whose
    worker was killed has had its turn, and must not wait for a backlog to pass.

    Raises RedisUnreachable and RedisRefused, and InvalidInput for another tenant's queue: a job's
    record names its queue, and whoever submits can write the record.
    """
    check_own_queue(job_id, queue)
    with errors_explained(settings):
        client.rpush(keys.messages(queue), json.dumps(made(job_id, queue)))
