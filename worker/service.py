"""One worker's parts, put together: model, engine, prefix cache, leases, catalog, presence."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from contract.errors import PrefillqError
from contract.logs import get_logger
from contract.model_store import find_model
from contract.records import RedisJobStore
from contract.redis_client import connect
from contract.settings import Settings
from templates.registry import Registry
from worker.answer import JobAnswers
from worker.catalog import Catalog, Served
from worker.description import template_states
from worker.ending import DeviceLost, Shutdown, Watchdog
from worker.identity import new_worker_id
from worker.janitor import Janitor
from worker.leases import LeaseKeeper
from worker.loaded import Load, load_model_and_engine
from worker.options import WorkerOptions
from worker.periodic import Periodic
from worker.prefix.cache import PrefixCache
from worker.prefixes import PrefixService
from worker.presence import Presence
from worker.refusals import REFUSALS
from worker.ringing import Ring, ring_first
from worker.rollouts.shadow import ShadowQueue
from worker.rollouts.work import RolloutWork
from worker.runner import JobRunner
from worker.streams import AnswerStreams
from worker.used import FLUSH_S, UsedVersions
from worker.warm_queues import WarmQueues
from worker.warming import Warming
from worker.watcher import Watcher, Watchers

if TYPE_CHECKING:  # their libraries are imported where they are wanted
    from worker.metrics.exporter import Exporter
    from worker.tracing import JobTraces

log = get_logger(__name__)

REFRESH_S = 2.0  # a template published now is consumed after at most about twice this


class WorkerService:
    """Everything a worker process has besides Celery. `load` before `start`, then `stop`."""

    def __init__(
        self, settings: Settings, options: WorkerOptions, *, load: Load = load_model_and_engine
    ) -> None:
        self._load = load
        self.settings = settings
        self.options = options
        self.worker_id = new_worker_id()
        # First: that its port is taken is said before a model is hashed and loaded.
        self.exporter = _open_exporter(options)
        self.traces = _open_traces(options, self.worker_id)
        self.watcher: Watcher = Watchers(
            *([self.exporter.jobs] if self.exporter else []),
            *([self.traces] if self.traces else []),
        )
        self.client = connect(settings)
        self.registry = Registry(self.client, settings)
        self.store = RedisJobStore(self.client, settings)
        self.streams = AnswerStreams(self.store, settings)
        self.leases = LeaseKeeper(self.store, settings=settings, broker=self.client)
        self.shutdown = Shutdown(self.leases, grace_s=options.grace_s)
        self.folder = find_model(options.model, settings, verify=True)
        self.catalog = Catalog(
            client=self.client,
            settings=settings,
            registry=self.registry,
            model_digest=self.folder.model_digest,
            patterns=options.templates,
            exclude=options.exclude,
        )
        self.used = UsedVersions(self.client, settings, model_digest=self.folder.model_digest)
        self.presence = Presence(
            client=self.client,
            settings=settings,
            worker_id=self.worker_id,
            describe=self.describe,
            templates=lambda: template_states(self.serving, self.prefixes),
        )
        self._ring: Ring = partial(ring_first, self.client, settings)
        self.serving: list[Served] = []
        self._threads: list[Periodic] = []
        self.failure: PrefillqError | None = None  # what kept the worker from starting
        self._started_at = time.time()

    def load(self) -> None:
        """Load the model; seconds to minutes. Raises ModelError."""
        loaded = self._load(self.folder, self.options, self.settings)
        self.model, self.engine, self.admission = loaded.model, loaded.engine, loaded.admission
        self._engines = [engine for engine in (loaded.engine, loaded.plain) if engine is not None]
        self.prefixes = PrefixService(
            cache=PrefixCache(self.options.cache_bytes),
            engine=self.engine,
            model=self.model,
            plain=loaded.plain,
            store=loaded.store,
        )
        answers = JobAnswers(
            versions=self.registry,
            model=self.model,
            engine=self.engine,
            prefixes=self.prefixes,
            audit=self.options.audit,
        )
        self.runner = JobRunner(
            worker_id=self.worker_id,
            store=self.store,
            answers=answers,
            leases=self.leases,
            draining=lambda: self.shutdown.draining,
            device_lost=self._device_lost,
            ring=self._ring,
            shadow=ShadowQueue(self.client, self.settings).offer,
            watcher=self.watcher,
            streams=self.streams,
            used=self.used.note,
        )
        self.rollouts = RolloutWork(
            client=self.client,
            settings=self.settings,
            worker_id=self.worker_id,
            registry=self.registry,
            catalog=self.catalog,
            store=self.store,
            answers=answers,
            prefixes=self.prefixes,
            serving=lambda: self.serving,
            draining=lambda: self.shutdown.draining,
            busy=self._busy,
        )
        self.warming = Warming(
            warm=self.options.warm,
            pins=self.options.pins,
            versions=self.catalog,
            prefixes=self.prefixes,
            warmer=self.rollouts.warmer,
            recent=self.used.recent,
        )
        self.warm_queues = WarmQueues(
            prefixes=self.prefixes, labelled=lambda: self.catalog.labelled_queues
        )
        log.info("model_loaded", model=self.model.label, digest=self.folder.model_digest)

    @property
    def concurrency(self) -> int:
        """Jobs in flight at once: the engine's rows and a few that wait, claimed and tokenized,
        for the next row to be free. The model must be loaded.
        """
        return self.engine.batch_size + self.engine.batch_size // 8

    def _busy(self) -> bool:
        """True when the worker has something better to do than what nobody waits for."""
        return self.shutdown.draining or self.leases.running >= self.engine.batch_size

    def start(self) -> None:
        """Start renewing leases, reporting, sweeping and following the registry.

        The model must be loaded.
        """
        found = self.catalog.refresh()
        self._tell_of_idle_patterns()
        self.warming.start(found)
        self.refresh()
        janitor = Janitor(
            client=self.client,
            settings=self.settings,
            store=self.store,
            worker_id=self.worker_id,
            rung_again=self.watcher.rung_again,
        )
        self._threads = [
            Periodic("catalog", self.refresh, interval_s=REFRESH_S),
            Periodic("warming", self._keep_warm, interval_s=REFRESH_S),
            Periodic("used", self.used.flush, interval_s=FLUSH_S),
            Periodic("janitor", janitor.sweep, interval_s=janitor.interval_s),
            *self.rollouts.threads(),
        ]
        if self.options.watchdog_s:
            self._threads.append(
                Periodic(
                    "watchdog",
                    Watchdog(
                        self.leases,
                        limit_s=self.options.watchdog_s,
                        stepped_at=self._stepped_at,
                    ).look,
                    interval_s=min(5.0, self.options.watchdog_s / 4),
                )
            )
        if self.exporter:
            self._threads.append(self._follow(self.exporter))
        for thread in self._threads:
            thread.start()
        self.leases.start()
        self.streams.start()
        self.presence.start()

    def stop(self) -> None:
        """Stop all that; a Redis that is away by now is only logged."""
        self.engine.close()
        for thread in self._threads:
            thread.stop()
        self.leases.stop()
        self.streams.stop()
        for end, failed in (
            (self.presence.stop, "presence_not_removed"),
            (self.used.flush, "used_versions_not_written"),
        ):
            try:
                end()
            except PrefillqError as error:
                log.warning(failed, error=str(error))
        if self.exporter:
            self.exporter.close()
        if self.traces:
            self.traces.close()
        self.client.close()

    def _follow(self, exporter: Exporter) -> Periodic:
        """Show this worker's state in its metrics; the thread that looks at the queues."""
        from worker.metrics.queues import INTERVAL_S, QueueLengths

        queues = QueueLengths(
            self.client,
            self.settings,
            model_digest=self.folder.model_digest,
            served=lambda: _names(self.serving),
        )
        exporter.follow(self.describe, queues.lengths)
        return Periodic("queue-lengths", queues.look, interval_s=INTERVAL_S)

    def _stepped_at(self) -> float:
        """When any engine computed something; the plain one checks new prefixes."""
        return max(engine.stepped_at for engine in self._engines)

    def _device_lost(self) -> None:
        self.failure = DeviceLost(
            "the device cannot be used any more",
            given=str(self.model.device),
            remedy="The jobs went back to their queues. Look at the host, then start a worker.",
        )
        os.kill(os.getpid(), signal.SIGQUIT)

    def refresh(self) -> None:
        """Look at the registry again.

        Only the first look waits until versions are warm: a job that comes before its prefix is
        there waits for it in the engine, which is no longer than it would in its queue.
        """
        found = self.catalog.refresh()
        self.watcher.serving(_names(found))
        self.serving = found

    def _keep_warm(self) -> None:
        self.warming.keep_up(self.serving)

    def _tell_of_idle_patterns(self) -> None:
        for option, pattern in self.catalog.idle_patterns(self.options.pins):
            log.info(
                "pattern_matches_nothing",
                option=option,
                pattern=pattern,
                remedy="Nothing to do where its templates are yet to come; they are picked up.",
            )

    def describe(self) -> dict[str, Any]:
        """Plain data for `prefillq worker list`, but for the templates."""
        stats = self.prefixes.cache.stats()
        return {
            "id": self.worker_id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": self._started_at,
            "model": self.folder.name,
            "model_digest": self.folder.model_digest,
            "device": str(self.model.device),
            "dtype": self.model.dtype_name,
            "engine": self.engine.name,
            "admission": self.admission.to_dict(),
            "batch_size": self.engine.batch_size,
            "running": self.leases.running,
            "draining": self.shutdown.draining,
            "metrics": self.exporter.address if self.exporter else None,
            "refused_messages": REFUSALS.counts(),
            "cache": {
                "entries": stats.entries,
                "bytes": stats.bytes,
                "max_bytes": self.options.cache_bytes,
                "hits": stats.hits,
                "misses": stats.misses,
                "evictions": dict(stats.evictions),
                "tenants": {
                    tenant: {"hits": counts.hits, "misses": counts.misses}
                    for tenant, counts in stats.tenants.items()
                },
            },
            "disk": asdict(self.prefixes.store.usage()) if self.prefixes.store else None,
        }


def _names(served: list[Served]) -> list[tuple[str, str]]:
    return [(one.tenant, one.template) for one in served]


def _open_exporter(options: WorkerOptions) -> Exporter | None:
    if options.metrics_port is None:
        return None
    from worker.metrics.exporter import Exporter

    return Exporter(
        host=options.metrics_host,
        port=options.metrics_port,
        model_name=options.model,
        by_tenant=options.metrics_tenant,
    )


def _open_traces(options: WorkerOptions, worker_id: str) -> JobTraces | None:
    if not options.traces:
        return None
    from worker.tracing import open_traces

    return open_traces(worker_id)
