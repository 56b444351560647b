"""The message that tells a template's workers of a job, as kombu writes it to Redis."""

from __future__ import annotations

import base64
import json
from typing import Any
from uuid import uuid4

from contract import keys
from contract.calls import Command, command
from contract.celery_app import TASK_NAME, check_own_queue
from contract.codec import pack

CONTENT_TYPE = "application/x-msgpack"


def made(job_id: str, queue: str, *, tag: str | None = None) -> dict[str, Any]:
    """A message that tells the workers of a queue of a job, as kombu has it in memory and, in JSON,
    in Redis.

    With `tag` it is the same each time; else no two are. Workers read no more of it than the job's
    id (`worker.doorbell`), and give it a tag of their own.
    """
    task_id = tag or str(uuid4())
    return {
        "body": base64.b64encode(pack([[job_id], {}, {}])).decode("ascii"),
        "content-type": CONTENT_TYPE,
        "content-encoding": "binary",
        "headers": {"lang": "py", "task": TASK_NAME, "id": task_id},
        "properties": {
            "body_encoding": "base64",
            "correlation_id": task_id,
            # Where it goes if it is put back, and under which tag until then.
            "delivery_info": {"exchange": "", "routing_key": queue},
            "delivery_tag": tag or str(uuid4()),
            "delivery_mode": 2,
            "priority": 0,
        },
    }


def ring_last(job_id: str, queue: str) -> Command:
    """Ring behind all others that wait, as kombu does. Raises InvalidInput for another tenant's
    queue.
    """
    check_own_queue(job_id, queue)
    return command("LPUSH", keys.messages(queue), json.dumps(made(job_id, queue)))
