"""A worker's threads for rollouts, put together."""

from __future__ import annotations

from collections.abc import Callable

from contract.job_store import JobStore
from contract.redis_client import Client
from contract.settings import Settings
from templates.registry import Registry
from templates.rollouts.control import Rollouts
from worker.answer import JobAnswers
from worker.catalog import Catalog, Served
from worker.periodic import Periodic
from worker.prefixes import PrefixService
from worker.rollouts.conductor import LOOK_S, Conductor
from worker.rollouts.drain import Drain
from worker.rollouts.gates import Gates
from worker.rollouts.shadow import LOOK_S as SHADOW_LOOK_S, ShadowQueue, ShadowRunner
from worker.rollouts.warmth import Warmer

UPKEEP_S = 2.0


class RolloutWork:
    """Threads of their own: what takes long (gates, a prefill, a shadow's answer) must not keep a
    failing canary waiting.
    """

    def __init__(
        self,
        *,
        client: Client,
        settings: Settings,
        worker_id: str,
        registry: Registry,
        catalog: Catalog,
        store: JobStore,
        answers: JobAnswers,
        prefixes: PrefixService,
        serving: Callable[[], list[Served]],
        draining: Callable[[], bool],
        busy: Callable[[], bool],  # True: jobs want all of the engine, or the worker ends
    ) -> None:
        self.warmer = Warmer(prefixes=prefixes, model=answers.model)
        self.drain = Drain(catalog=catalog, store=store, prefixes=prefixes)
        self.conductor = Conductor(
            client=client,
            settings=settings,
            worker_id=worker_id,
            moves=Rollouts(registry),
            versions=registry,
            gates=Gates(answers=answers, prefixes=prefixes),
            matches=catalog.matches,
            draining=draining,
        )
        self.shadow = ShadowRunner(
            queue=ShadowQueue(client, settings),
            store=store,
            answers=answers,
            shadowing=self.conductor.shadowing,
            busy=busy,
        )
        self._catalog = catalog
        self._serving = serving

    def threads(self) -> list[Periodic]:
        """Not started yet."""
        return [
            Periodic("conductor", self.conductor.look, interval_s=LOOK_S),
            Periodic("gates", self.conductor.try_versions, interval_s=LOOK_S),
            Periodic("upkeep", self._keep_up, interval_s=UPKEEP_S),
            Periodic("shadow", self.shadow.look, interval_s=SHADOW_LOOK_S),
        ]

    def _keep_up(self) -> None:
        """A canary is warm before its first job, whatever `--warm` says; retired versions go."""
        for version in self.conductor.canaries():
            self.warmer.keep_warm(version)
        self.drain.look([*self._serving(), *self._catalog.dropped()])
