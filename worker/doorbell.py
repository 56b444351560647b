"""What a worker takes from a message: the id of one job, and nothing else.

Whoever holds a producer's credentials writes the messages of its tenant's queues, and Celery would
do much of what a message says, with the worker's rights: publish others when a task has ended, put
this one back into a queue that it names, hold it in memory until some hour. So a message is taken
apart at the door, and Celery sees one that was made here.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from contract import keys
from contract.celery_app import TASK_NAME
from contract.codec import unpack
from contract.doorbell import CONTENT_TYPE, made
from contract.errors import CodecError, InvalidInput
from contract.ids import tenant_of


def remade(message: object, queue: str) -> dict[str, Any]:
    """A message with the same job id as `message`, which came out of `queue`.

    Raises InvalidInput, without a word of the content, unless it is a doorbell of that queue.
    """
    return made(_job_id(message, queue), queue)


def job_in(entry: bytes, queue: str) -> str | None:
    """The id of the job that an entry of a queue rings for; None when it is no doorbell."""
    try:
        return _job_id(json.loads(entry), queue)
    except (ValueError, RecursionError, InvalidInput):
        return None


def _job_id(message: object, queue: str) -> str:
    match message:
        case {
            "content-type": content_type,
            "headers": {"task": task},
            "properties": {"body_encoding": "base64"},
            "body": str(body),
        } if (content_type, task) == (CONTENT_TYPE, TASK_NAME):
            pass
        case _:
            raise _refused("another message")
    try:
        content = unpack(base64.b64decode(body, validate=True))
    except (binascii.Error, ValueError, CodecError):
        raise _refused("a body that cannot be read") from None
    match content:
        case [[str(job_id)], kwargs, _] if kwargs == {}:
            pass
        case _:
            raise _refused("other arguments")
    try:
        tenant = tenant_of(job_id)
    except InvalidInput:
        raise _refused("an argument that is no job id") from None
    if tenant != keys.tenant_of_queue(queue):
        raise _refused("a job of another tenant")
    return job_id


def _refused(given: str) -> InvalidInput:
    return InvalidInput(
        "this message is no doorbell of its queue",
        given=given,
        expected=f"the task {TASK_NAME}, as msgpack, with the id of one of the tenant's jobs",
    )
