"""The Celery application, the same on both sides.

The record in Redis is the truth and the message a doorbell that carries a job's id, so the
settings here serve one aim: an error surfaces within seconds, and a message is redelivered
soon after its worker died.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import keys
from contract.errors import InvalidInput
from contract.redis_url import SENTINEL, broker_url, parse_sentinel_url
from contract.settings import Settings
from contract.tls import tls_options

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Producer, Queue

TASK_NAME = "prefillq.run"

# A message that nobody acknowledged comes back after this. The janitor rings long before, for it
# looks at the record; longer than a lease, so that after an outage of Redis running jobs get their
# leases renewed before the broker offers them to others.
VISIBILITY_S = 60.0


def make_celery(settings: Settings) -> Celery:
    """A configured app without tasks; `worker.celery_worker` registers the one there is."""
    from celery import Celery  # imported late: `import producer` must stay fast

    app = Celery("prefillq", broker=broker_url(settings.redis_url), set_as_current=False)
    app.conf.update(
        # msgpack only: no pickle, and JSON would change some values silently.
        task_serializer="msgpack",
        result_serializer="msgpack",
        accept_content=["msgpack"],
        task_ignore_result=True,
        # Queues are made by publishing a template; a misspelt one is an error, not a queue.
        task_create_missing_queues=False,
        task_default_queue=keys.UNUSED_QUEUE,
        task_queues=[make_queue(keys.UNUSED_QUEUE)],
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=settings.redis_timeout_s,
        broker_use_ssl=tls_options(settings) or False,
        broker_transport_options={
            **_sentinel(settings),
            "global_keyprefix": keys.BROKER_PREFIX,
            "visibility_timeout": max(VISIBILITY_S, settings.lease_s),
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "socket_timeout": max(settings.redis_timeout_s, 2.0),
            "socket_connect_timeout": settings.redis_timeout_s,
            "socket_keepalive": not settings.redis_url.startswith("unix"),
            "health_check_interval": 5,  # a half-open connection is dropped after twice this
            "queue_order_strategy": "round_robin",
            # All doorbells are alike; otherwise kombu looks into four lists for each queue.
            "priority_steps": [0],
        },
        task_publish_retry=True,
        task_publish_retry_policy={
            "max_retries": 1,
            "interval_start": 0.1,
            "interval_step": 0.1,
            "interval_max": 0.2,
        },
    )
    return app


def _sentinel(settings: Settings) -> dict[str, Any]:
    url = settings.redis_url
    if not url.startswith(SENTINEL):
        return {}
    from contract.redis_client import sentinel_options

    return {
        "master_name": parse_sentinel_url(url).master,
        "sentinel_kwargs": sentinel_options(url, timeout_s=settings.redis_timeout_s),
    }


def make_queue(name: str) -> Queue:
    """The queue of that name (see `contract.keys.queue`), as kombu wants it.

    On the exchange without a name, which leads to the queue of the routing key. Bindings of any
    other would be one key in Redis that all tenants' producers write and read. Not declared,
    since that would bind it: Celery puts its default exchange in the place of one without a name.
    """
    from kombu import Exchange, Queue

    return Queue(name, Exchange(""), routing_key=name, no_declare=True)


def ring(app: Celery, queue: str, job_id: str, *, producer: Producer | None = None) -> None:
    """Tell the workers of a queue that a job waits, over `producer` or the app's pool.

    Raises kombu's OperationalError when the broker does not answer, and InvalidInput for another
    tenant's queue: a job's record names its queue, and whoever submits can write the record.
    """
    check_own_queue(job_id, queue)
    app.send_task(
        TASK_NAME,
        args=(job_id,),
        queue=make_queue(queue),
        ignore_result=True,
        producer=producer,
    )


def check_own_queue(job_id: str, queue: str) -> None:
    """Raise InvalidInput for another tenant's queue than the job's."""
    if keys.tenant_of_queue(queue) != job_id.partition(".")[0]:
        raise InvalidInput(
            "a job is rung for in queues of its own tenant", given=f"{job_id}, {queue[:80]}"
        )
