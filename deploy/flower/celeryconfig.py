"""How Flower sees prefillq's queues: their lengths, and nothing else.

Workers send no events and take no remote control, and a message carries a job's id only, so that
Flower's pages of workers and tasks stay empty. Its broker page shows the queues that held messages
when Flower started, and those in QUEUES (names separated by commas, `tenant/template/model`), and
`_unused`, Celery's default queue, which Flower always adds.
"""

import os

from kombu import Exchange, Queue
from redis import Redis

broker_url = os.environ["BROKER_URL"]
_prefix = "pq:_broker:"  # contract.keys.BROKER_PREFIX
broker_transport_options = {"global_keyprefix": _prefix}

_given = filter(None, os.environ.get("QUEUES", "").split(","))
_found = Redis.from_url(broker_url).scan_iter(match=f"{_prefix}*/*/*", _type="list")
task_queues = [
    Queue(name, Exchange(""), routing_key=name, no_declare=True)
    for name in sorted({*_given, *(key.decode().removeprefix(_prefix) for key in _found)})
]
task_default_queue = "_unused"
accept_content = ["msgpack"]
