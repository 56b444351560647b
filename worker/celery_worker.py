"""The Celery side of a worker: one task, and bootsteps that tie the service to Celery's life.

A bootstep of the worker starts the service, whose model is loaded before; one of the consumer
keeps the set of queues equal to what the catalog serves, also after the connection was lost and
made again.
"""

from __future__ import annotations

import logging
import signal
from typing import Any, ClassVar

from celery import Celery, Task, bootsteps
from celery.apps.worker import Worker
from celery.exceptions import Reject
from celery.worker import state as celery_state
from celery.worker.request import Request

from contract.celery_app import TASK_NAME, make_celery, make_queue
from contract.errors import InvalidInput, PrefillqError, RedisUnreachable
from contract.logs import get_logger
from worker import transport
from worker.age import process_age_s
from worker.refusals import REFUSALS
from worker.runner import JobReturned
from worker.service import WorkerService

log = get_logger(__name__)

SYNC_S = 1.0


class TaggedRequest(Request):  # type: ignore[misc]
    """Carries the broker's delivery tag to the task, for the renewal of the message's lease."""

    def __init__(self, message: Any, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self._delivery_info["tag"] = message.delivery_tag


class TaggedTask(Task):  # type: ignore[misc]
    Request = TaggedRequest


def register_task(app: Celery, service: WorkerService) -> None:
    """The one task there is: run the job whose id came in."""

    @app.task(name=TASK_NAME, base=TaggedTask, bind=True, ignore_result=True)  # type: ignore[untyped-decorator]
    def run(self: Task, *args: object, **kwargs: object) -> None:
        job_id = args[0] if len(args) == 1 and not kwargs else None
        if not isinstance(job_id, str):
            REFUSALS.note("arguments", error="the task takes one argument, a job's id")
            return
        try:
            service.runner.run(job_id, delivery_tag=self.request.delivery_info.get("tag"))
        except JobReturned as error:
            log.info("message_requeued", job_id=job_id, error=str(error))
            raise Reject(str(error), requeue=True) from error
        except RedisUnreachable as error:
            # Back to the queue: the job is as it was, and this message is its doorbell.
            log.warning("message_requeued", job_id=job_id, error=str(error))
            raise Reject(str(error), requeue=True) from error
        except InvalidInput as error:
            REFUSALS.note("arguments", error=error.problem)
        except PrefillqError as error:
            # A damaged record, a Redis that is full: requeued at once it would come
            # back at once. If there is a job behind it, the janitor rings again.
            log.warning("message_dropped", job_id=job_id, error=str(error))


class ServiceStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Leases, presence, janitor and catalog run before the consumer starts."""

    requires: ClassVar[set[str]] = {"celery.worker.components:Pool"}

    def __init__(self, parent: Worker, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self.service: WorkerService = parent.app.prefillq_service

    def start(self, parent: Worker) -> None:
        _end_our_way(self.service)
        try:
            self.service.start()
        except PrefillqError as error:
            # Celery would print a traceback and end with 1; the command says it better.
            self.service.failure = error
            raise SystemExit(error.exit_code) from error


def _end_our_way(service: WorkerService) -> None:
    """Signals end the worker as `worker.ending` has it, instead of by Celery's handlers.

    Celery's first SIGTERM waits for ever and its second does nothing; SIGQUIT, or a second
    SIGINT, drops the tasks that run.
    """

    def on_signal(number: int, _: object) -> None:
        service.shutdown.request(at_once=number == signal.SIGQUIT)
        celery_state.should_stop = 0  # no new messages; then wait for the tasks that run

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, on_signal)


class CatalogStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Consumes exactly the queues of the templates served."""

    requires: ClassVar[set[str]] = {"celery.worker.consumer.tasks:Tasks"}

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self.service: WorkerService = parent.app.prefillq_service
        self._timer: Any = None
        self._ready = False

    def start(self, parent: Any) -> None:
        self._consume(parent)
        if not self._ready:  # and not connected again
            self._ready = True
            log.info("worker_ready", seconds=round(process_age_s(), 2))
        self._timer = parent.timer.call_repeatedly(SYNC_S, self._consume, (parent,))

    def stop(self, parent: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _consume(self, consumer: Any) -> None:
        wanted = {served.queue for served in self.service.serving}
        queues, tasks = consumer.app.amqp.queues, consumer.task_consumer
        current = set(queues.consume_from)
        for name in sorted(current - wanted):
            consumer.cancel_task_queue(name)
            log.info("queue_dropped", queue=name)
        new = sorted(wanted - current)
        for name in new:
            # What Celery's `add_task_queue` does, but for its `consume` after each, which goes
            # through all queues.
            tasks.add_queue(queues.select_add(make_queue(name)))
            log.info("queue_added", queue=name)
        if new:
            tasks.consume()


def run_worker(service: WorkerService, *, log_level: str) -> int:
    """Run until told to stop; returns the exit code. Raises what loading the model raised."""
    # Before Celery's worker: how many jobs it may take at once is what the engine can serve.
    service.load()
    # Two lines for each message, and a traceback for each that is put back; the job's own lines
    # say more.
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)
    logging.getLogger("celery.app.trace").setLevel(logging.ERROR)
    transport.install(service.warm_queues)
    app = make_celery(service.settings)
    app.conf.worker_consumer = "worker.consumer:Consumer"
    app.prefillq_service = service
    register_task(app, service)
    app.steps["worker"].add(ServiceStep)
    app.steps["consumer"].add(CatalogStep)
    worker = app.Worker(
        hostname=f"prefillq@{service.worker_id}",
        pool="threads",
        concurrency=service.concurrency,
        loglevel=log_level,
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        task_events=False,
    )
    try:
        worker.start()
    finally:
        # Not in ServiceStep.stop: bootsteps end in reverse order, and the leases of running jobs
        # must be renewed until the pool has let them finish.
        service.stop()
    if service.failure is not None:
        raise service.failure
    return int(worker.exitcode or 0)
