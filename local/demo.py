"""The whole way once, on this machine: Redis, a worker, templates, jobs of two tenants.

Everything started here is stopped again, whatever happens in between.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.model_folder import ModelFolder
from contract.redis_client import connect
from contract.settings import Settings
from contract.types import CacheState, JobState, Result
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

PARITY_JOBS = 8
WAIT_S = 600.0

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
    def problem(self) -> str | None:
        """What did not come out as promised, in a sentence; None when all did."""
        for result in self.results:
            if result.status is not JobState.SUCCEEDED:
                return f"job {result.job_id} is {result.status}: {result.error}"
            prefix = self._prefix_tokens[result.ref.digest]
            if result.cache.state is CacheState.HIT and result.usage.cached_tokens != prefix:
                cached = result.usage.cached_tokens
                return f"job {result.job_id} reused {cached} tokens of a prefix of {prefix}"
        if self.identical != len(self.uncached):
            return f"{self.identical} of {len(self.uncached)} cached answers equal the uncached"
        return None

    @property
    def _prefix_tokens(self) -> dict[str, int]:
        return {v.ref.digest: len(v.compiled.prefix_ids) for v in self.versions}

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
            settings, log_path=folder / "worker.log", options=["--warm", "all", "--json"]
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

        results, uncached = _run_jobs(settings, versions, count)
        description = process.wait_ready()
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
            first_result_s=first_result_s,
            elapsed_s=time.monotonic() - started,
        )


@contextmanager
def _redis(settings: Settings, say: Say) -> Iterator[Settings]:
    if find_redis_binary() is None and "PREFILLQ_REDIS_URL" in os.environ:
        say("redis     the one of PREFILLQ_REDIS_URL")
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
    settings: Settings, versions: list[PublishedVersion], advance: Advance
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
        for done, _ in enumerate(producer.wait(everything, timeout=WAIT_S), start=1):
            advance(done, len(everything))
        results = [handle.outcome(timeout=1) for handle in handles]
        uncached = {job_id: twin.outcome(timeout=1) for job_id, twin in twins.items()}
    return results, uncached
