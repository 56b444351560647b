"""A worker's own rings: for jobs that have waited before, at the head of their queue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from contract import keys
from contract.celery_app import check_own_queue
from contract.doorbell import made
from contract.ids import tenant_of
from contract.job_store import Doorbell
from contract.records import job_library
from contract.redis_client import Client, errors_explained
from contract.scripts import Scripts
from contract.settings import Settings
from worker.doorbell import job_in

Ring = Callable[[str, str], None]  # queue, job id

LATER_MS = 1000  # producers' clocks differ; being wrong costs one refused claim
LONGEST = 4096  # bytes of a message; ours have fewer
WINDOW = 4096  # messages, from the next one on, among which a job's ring is looked for


def ring_first(client: Client, settings: Settings, queue: str, job_id: str) -> None:
    """Tell the workers of a queue of a job that is next.

    Written to Redis as kombu would, which can only put a message behind all others: a job whose
    worker was killed has had its turn, and must not wait for a backlog to pass.

    Raises RedisUnreachable and RedisRefused, and InvalidInput for another tenant's queue: a job's
    record names its queue, and whoever submits can write the record.
    """
    message = _message(queue, job_id)
    with errors_explained(settings):
        client.rpush(keys.messages(queue), message)


class Rings:
    """The janitor's look for messages in queues, and its rings, of one tenant's jobs at a time.

    A ring for a job is always the same bytes, so that Redis can say whether it is still there: in a
    queue that nobody consumes a job has one ring, however often it is overdue. Both calls are one
    round trip, and no message of another's making is read that is longer than ours are.

    Raise RedisUnreachable and RedisRefused.
    """

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._scripts = Scripts(client, settings, job_library())

    def missing(self, jobs: Sequence[Doorbell]) -> list[Doorbell]:
        """Those that need a ring."""
        if not jobs:
            return []
        tenant, queues = tenant_of(jobs[0].job_id), sorted({job.queue for job in jobs})
        with errors_explained(self._settings):
            pipe = self._client.pipeline(transaction=False)
            for job in jobs:
                message = _message(job.queue, job.job_id)
                pipe.lpos(keys.messages(job.queue), message, rank=-1, maxlen=WINDOW)
            for queue in queues:
                pipe.llen(keys.messages(queue))
                self._scripts.run("head", keys=[keys.messages(queue)], args=[LONGEST], pipe=pipe)
            pipe.zcard(keys.queued(tenant))
            pipe.zcard(keys.running(tenant))
            replies: Iterator[Any] = iter(pipe.execute())
        there = [next(replies) is not None for _ in jobs]
        found = {queue: (int(next(replies)), next(replies)) for queue in queues}
        unfinished = sum(replies)
        return [
            job
            for job, rung in zip(jobs, there, strict=True)
            if not rung and _lacks_message(job, *found[job.queue], unfinished)
        ]

    def ring(self, jobs: Sequence[Doorbell]) -> None:
        """Put them at the heads of their queues, the first one of all next."""
        with errors_explained(self._settings):
            pipe = self._client.pipeline(transaction=False)
            for job in reversed(jobs):
                pipe.rpush(keys.messages(job.queue), _message(job.queue, job.job_id))
            pipe.execute()


def _message(queue: str, job_id: str) -> str:
    check_own_queue(job_id, queue)
    return json.dumps(made(job_id, queue, tag=job_id[-32:]))


def _lacks_message(job: Doorbell, length: int, head: bytes | None, unfinished: int) -> bool:
    """Whether a job needs a ring that has none among the next messages of its queue.

    `length` is the number of the queue's messages, `head` the next one, `unfinished` the number of
    the tenant's jobs that have not ended.
    """
    if length > max(WINDOW, 2 * unfinished):
        return False  # it may be further back, and those before it are of jobs that have ended
    if job.silent or head is None:
        return True
    # It very likely has the message of its submit. It has none if the next message to be taken is
    # of a job that was submitted later.
    next_job = job_in(head, job.queue)
    return next_job is not None and _submitted_ms(next_job) > _submitted_ms(job.job_id) + LATER_MS


def _submitted_ms(job_id: str) -> int:
    return int(job_id[-32:-20], 16)
