"""The whole way once, on this machine: Redis, a worker, templates, jobs of two tenants.

Everything started here is stopped again, whatever happens in between.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from contract.errors import TimedOut
from contract.model_folder import ModelFolder
from contract.redis_client import connect
from contract.settings import Settings
from contract.types import CacheState, JobState, Result
from local.canary import CanaryOutcome, show_canary
from local.guard import Guard
from local.redis_server import EmbeddedRedis, find_redis_binary
from local.workers import WorkerProcess
from producer.client import Producer
from producer.handle import JobHandle
from templates.compile import compile_template
from templates.examples import example_paths
from templates.registry import Registry
from templates.spec import load_spec
from templates.tokenizer import TemplateTokenizer
from templates.version import PublishedVersion
from worker.models.fetch import fetch_model
from worker.options import DEFAULT_MODEL

PARITY_JOBS = 8  # at most, picked from the greedy samples
MIN_PARITY_JOBS = 6
WAIT_S = 600.0
LOOK_S = 5.0  # how often to see whether the worker is still there
SETTLE_S = 10.0  # a worker reports itself every two seconds

Say = Callable[[str], None]
Advance = Callable[[int, int], None]  # jobs done, jobs in all


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """What `prefillq demo` found. `uncached` maps a job's id to its twin without the cache."""

    results: tuple[Result, ...]
    uncached: dict[str, Result]
    versions: tuple[PublishedVersion, ...]
    labels: dict[str, dict[str, int]]
    worker: dict[str, Any]
    canary: CanaryOutcome
    first_result_s: float  # from the start, model and worker included
    elapsed_s: float

    @property
    def identical(self) -> int:
        """Twins with the same tokens."""
        by_id = {result.job_id: result for result in self.results}
        return sum(
            by_id[job_id].token_ids == twin.token_ids for job_id, twin in self.uncached.items()
        )

    @property
    def hits(self) -> int:
        """Jobs that reused a prefix."""
        return sum(result.cache.state is CacheState.HIT for result in self.results)

    @property
    def slowdown(self) -> float | None:
        """Time without the cache over time with it, median of the twins; None without any."""
        by_id = {result.job_id: result for result in self.results}
        pairs = [(twin, by_id[job_id]) for job_id, twin in self.uncached.items()]
        ratios = [compute_s(twin) / compute_s(job) for twin, job in pairs if compute_s(job) > 0]
        return median(ratios) if ratios else None

    @property
    def problem(self) -> str | None:
        """What did not come out as promised, in a sentence; None when all did."""
        for result in self.results:
            if fault := self._fault(result):
                return f"job {result.job_id} {fault}"
        if not self.hits:
            return "no job reused a cached prefix"
        for twin in self.uncached.values():
            if twin.cache.state is not CacheState.OFF:
                return f"job {twin.job_id} was to run uncached and was a {twin.cache.state}"
        checked = len(self.uncached)
        if checked < MIN_PARITY_JOBS:
            return f"{checked} jobs also ran without the cache, expected {MIN_PARITY_JOBS} or more"
        if self.identical != checked:
            return f"{self.identical} of {checked} cached answers equal the uncached"
        if (counted := self.worker["cache"]["hits"]) < self.hits:
            return f"the worker counted {counted} cache hits where {self.hits} jobs had one"
        return self.canary.problem

    def _fault(self, result: Result) -> str | None:
        if result.status is not JobState.SUCCEEDED:
            return f"is {result.status}: {result.error}"
        cache, cached = result.cache, result.usage.cached_tokens
        if cache.state is CacheState.MISS and cache.reason == "cold":
            return None  # this one filled the cache
        if cache.state is not CacheState.HIT:
            return f"did not reuse its prefix: {cache.state}, {cache.reason}"
        prefix = next(
            len(v.compiled.prefix_ids) for v in self.versions if v.ref.digest == result.ref.digest
        )
        return None if cached == prefix else f"reused {cached} tokens of a prefix of {prefix}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "jobs": [result.to_dict() for result in self.results],
            "parity": {"checked": len(self.uncached), "identical": self.identical},
            "templates": [
                {
                    "template": f"{version.ref.tenant}/{version.ref.template}",
                    "version": version.ref.version,
                    "digest": version.ref.digest,
                    "prefix_tokens": len(version.compiled.prefix_ids),
                    "labels": sorted(
                        label
                        for label, number in self.labels[
                            f"{version.ref.tenant}/{version.ref.template}"
                        ].items()
                        if number == version.ref.version
                    ),
                }
                for version in self.versions
            ],
            "worker": self.worker,
            "canary": self.canary.to_dict(),
            "elapsed_s": self.elapsed_s,
        }


def compute_s(result: Result) -> float:
    """Seconds from claim to commit: what a job cost, however long it queued."""
    return result.timings.total_s - result.timings.queue_s


def run_demo(settings: Settings, *, say: Say, advance: Advance) -> DemoOutcome:
    """Run it all; `say` gets a line per step and `advance` the count of finished jobs."""
    started = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prefillq-demo-")))
        stack.callback(Guard(folder=folder).release)
        say(f"model     {DEFAULT_MODEL}: fetching, unless it is there")
        model = fetch_model(DEFAULT_MODEL, settings)
        settings = stack.enter_context(_redis(settings, say))
        registry = Registry(stack.enter_context(connect(settings)), settings)
        versions = [*_publish(registry, model)]
        for version in versions:
            say(
                f"template  {version.ref}: prefix of {len(version.compiled.prefix_ids)} tokens,"
                f" digest {version.ref.digest[:12]}"
            )
        say("worker    starting: loads the model, prefills each version, checks it uncached")
        process = WorkerProcess(
            settings,
            log_path=folder / "worker.log",
            # Nothing from disk: the demo is to show what a prefill costs, on every run.
            options=["--warm", "all", "--disk-bytes", "0", "--json"],
        )
        stack.enter_context(process)
        description = process.wait_ready()
        say(f"worker    {description['id']} on {description['device']} is ready")
        first_result_s = 0.0

        def count(done: int, total: int) -> None:
            nonlocal first_result_s
            if done == 1:
                first_result_s = time.monotonic() - started
            advance(done, total)

        results, uncached = _run_jobs(settings, versions, count, alive=process.check_alive)
        description = _settled(process, results)
        canary = _canary(settings, registry, versions, say=say, alive=process.check_alive)
        say("worker    stopping")
        return DemoOutcome(
            results=tuple(results),
            uncached=uncached,
            versions=tuple(versions),
            labels={
                f"{v.ref.tenant}/{v.ref.template}": registry.labels(v.ref.tenant, v.ref.template)
                for v in versions
            },
            worker=description,
            canary=canary,
            first_result_s=first_result_s,
            elapsed_s=time.monotonic() - started,
        )


@contextmanager
def _redis(settings: Settings, say: Say) -> Iterator[Settings]:
    given = "redis_url" in settings.model_fields_set  # by option or environment, not by default
    if given and find_redis_binary() is None:
        say("redis     the one given, for there is no redis-server to start")
        yield settings
        return
    with EmbeddedRedis() as server:
        say(f"redis     embedded, at {server.url}")
        yield settings.model_copy(update={"redis_url": server.url})


def _publish(registry: Registry, model: ModelFolder) -> Iterator[PublishedVersion]:
    tokenizer = TemplateTokenizer.load(model.path)
    for path in example_paths():
        spec = load_spec(path)
        published = registry.publish(spec, compile_template(spec, model, tokenizer), model)
        ref = published.version.ref
        if ref.version > 1:
            registry.set_label(ref.tenant, ref.template, "next", ref.version)
        yield published.version


def _run_jobs(
    settings: Settings,
    versions: list[PublishedVersion],
    advance: Advance,
    *,
    alive: Callable[[], None],
) -> tuple[list[Result], dict[str, Result]]:
    """Every sample of every version, and for the first ones a twin that skips the cache."""
    with Producer(settings) as producer:
        jobs = [(version, sample.input) for version in versions for sample in version.spec.samples]
        handles = [producer.submit(str(v.ref), variables) for v, variables in jobs]
        # Spread over all versions, so that each is compared at least once.
        greedy = [i for i, (version, _) in enumerate(jobs) if version.spec.generation.greedy]
        picked = greedy[:: max(1, len(greedy) // PARITY_JOBS)][:PARITY_JOBS]
        twins: dict[str, JobHandle] = {}
        for index in picked:
            version, variables = jobs[index]
            twins[handles[index].id] = producer.submit(str(version.ref), variables, use_cache=False)
        everything = [*handles, *twins.values()]
        advance(0, len(everything))
        waiting = {handle.id: handle for handle in everything}
        give_up = time.monotonic() + WAIT_S
        while waiting:
            alive()
            try:
                for handle in producer.wait(list(waiting.values()), timeout=LOOK_S):
                    del waiting[handle.id]
                    advance(len(everything) - len(waiting), len(everything))
            except TimedOut:
                if time.monotonic() > give_up:
                    raise
        results = [handle.outcome(timeout=1) for handle in handles]
        uncached = {job_id: twin.outcome(timeout=1) for job_id, twin in twins.items()}
    return results, uncached


def _canary(
    settings: Settings,
    registry: Registry,
    versions: list[PublishedVersion],
    *,
    say: Say,
    alive: Callable[[], None],
) -> CanaryOutcome:
    """A rollout of the template that has a second version."""
    new = next(version for version in versions if version.ref.version == 2)
    old = next(
        v for v in versions if v.spec.name == new.spec.name and v.spec.tenant == new.spec.tenant
    )
    with Producer(settings) as producer:
        return show_canary(
            registry, producer, stable=old.spec, canary=new.ref.version, say=say, alive=alive
        )


def _settled(process: WorkerProcess, results: list[Result]) -> dict[str, Any]:
    """The worker's report once it counts these results, or its last one after SETTLE_S."""
    hits = sum(result.cache.state is CacheState.HIT for result in results)
    deadline = time.monotonic() + SETTLE_S
    while True:
        description = process.wait_ready()
        if description["cache"]["hits"] >= hits or time.monotonic() > deadline:
            return description
        time.sleep(0.1)
