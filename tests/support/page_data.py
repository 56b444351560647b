"""A Redis with something to see on every page of `prefillq ui`, made without a model.

Templates go through the registry, jobs through the producer and the scripts of the job store; what
is made up is what a worker would have measured. `PageData` is that worker.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from contract import keys
from contract.codec import pack
from contract.job_store import Claimed, TenantLimits
from contract.records import RedisJobStore
from contract.redis_client import Client
from contract.settings import GIB, MIB, Settings
from contract.types import CacheInfo, CacheState, Job, JobError, JobState, Result, Timings, Usage
from producer.client import Producer
from templates.registry import Registry
from templates.rollouts.control import Rollouts
from templates.rollouts.plain import to_text
from templates.rollouts.rollout import Finding, Limits, Outcome, Phase, Plan, Rollout
from tests.support.published import COMPILED, MODEL, make_spec

TEMPLATES = {
    "acme": {"support-triage": 3, "contact-extract": 1, "reply-draft": 2},
    "globex": {"product-tagger": 2, "listing-summary": 1},
    "initech": {"moderation": 4},
}
HOSTS = ("gpu-01", "gpu-02", "cpu-07")
_TICKETS = (
    "I was charged twice for the March invoice.",
    "The calendar shows a blank page since this morning.",
    "My colleague cannot accept the invitation.",
)


class PageData:
    """Makes the records of one Redis."""

    def __init__(self, client: Client, settings: Settings, *, seed: int = 7) -> None:
        self._client: Any = client
        self._settings = settings
        self._store = RedisJobStore(client, settings)
        self.registry = Registry(client, settings)
        self._random = random.Random(seed)

    def publish(
        self, templates: Mapping[str, Mapping[str, int]] = TEMPLATES, *, who: str = "mira@acme"
    ) -> None:
        """As many versions of each as it says; the first is `production`."""
        for tenant, names in templates.items():
            for name, count in names.items():
                for number in range(1, count + 1):
                    spec = make_spec(tenant, name, text=f"Sort this, rule {number}: ")
                    self.registry.publish(spec, COMPILED, MODEL, who=who, why=f"rules {number}")
                if count > 1:
                    self.registry.set_label(
                        tenant, name, "production", count - 1, who=who, why="better on samples"
                    )

    def submit(self, address: str, count: int = 1, *, text: str = "") -> list[str]:
        """Queued jobs."""
        with Producer(self._settings) as producer:
            return [
                producer.submit(
                    address, {"ticket": text or f"{self._random.choice(_TICKETS)} ({number})"}
                ).id
                for number in range(count)
            ]

    def claim(self, job_ids: Sequence[str], worker: str = "gpu-01-4121-9f3c") -> list[Job]:
        """They run, for a minute."""
        claims = [self._store.claim(job_id, worker, 60.0) for job_id in job_ids]
        return [claim.job for claim in claims if isinstance(claim, Claimed)]

    def finish(
        self, job: Job, *, hit: bool = True, error: JobError | None = None, **more: Any
    ) -> None:
        """It ends as a worker would end it."""
        result = self.result(job, hit=hit, error=error, **more)
        submitted_at = job.created_at - result.timings.total_s  # it took no time at all
        self._client.hset(keys.job(job.id), "created_at", f"{submitted_at:.6f}")
        assert self._store.commit(result, job.fence) is not None
        self._store.note_commit(job.id, job.fence, 0.0011)

    def result(
        self, job: Job, *, hit: bool = True, error: JobError | None = None, text: str = "payment"
    ) -> Result:
        """What a worker measured."""
        rough = self._random.uniform(0.8, 1.3)
        stages = Timings(
            queue_s=0.214 * rough,
            tokenize_s=0.0021,
            verify_s=0.00014,
            prefill_s=0.0 if hit else 1.31 * rough,
            fork_s=0.00006,
            suffix_prefill_s=0.118 * rough,
            decode_s=0.412 * rough,
        )
        first = stages.queue_s + stages.prefill_s + stages.suffix_prefill_s + 0.021
        timings = replace(stages, ttft_s=first, total_s=first + stages.decode_s)
        return Result(
            job_id=job.id,
            ref=job.ref,
            status=JobState.SUCCEEDED if error is None else JobState.FAILED,
            text=text,
            finish_reason="stop" if error is None else "error",
            usage=Usage(prompt_tokens=698, completion_tokens=21, cached_tokens=671 if hit else 0),
            cache=CacheInfo(
                state=CacheState.HIT if hit else CacheState.MISS, reason="" if hit else "cold"
            ),
            timings=timings,
            model="smollm2-135m-instruct",
            device="cuda:0",
            worker="gpu-01-4121-9f3c",
            attempt=job.attempt,
            batch_size=12,
            error=error,
        )

    def bury(self, address: str) -> str:
        """A job that used up its attempts."""
        [job_id] = self.submit(address)
        for _ in range(self._settings.max_attempts):
            [job] = self.claim([job_id])
            error = JobError(
                code="device_out_of_memory",
                message="the device had no memory left for this job's batch",
                remedy="Start workers with a smaller --batch or --cache-bytes.",
            )
            self._store.retry(self.result(job, error=error, text=""), job.fence, 0.0)
        return job_id

    def report_workers(self, hosts: Sequence[str] = HOSTS, *, expires_s: int = 3600) -> None:
        """Reports as workers write them, that stay."""
        now = self._client.time()[0]
        for number, host in enumerate(hosts):
            worker_id = f"{host}-4{number}21-9f3c"
            self._client.set(
                keys.worker(worker_id), pack(worker_report(worker_id, number)), ex=expires_s
            )
            self._client.zadd(keys.WORKERS, {worker_id: now})

    def limit(self) -> None:
        """What two tenants may have at most."""
        self._store.set_limits("acme", TenantLimits(rate_per_s=200, max_queued=5000))
        self._store.set_limits("globex", TenantLimits(max_running=16))

    def roll_out(self, tenant: str, name: str, *, to: int, step: int = 2, **more: Any) -> Rollout:
        """A rollout under way, with what its gates found."""
        plan = Plan(
            label="production",
            stable=to - 1,
            canary=to,
            steps=(100, 1000, 5000, 10_000),
            bake_s=600.0,
            limits=Limits(scores={"quality": 0.05}),
        )
        begun = Rollouts(self.registry).start(
            tenant, name, plan, who="mira@acme", why="shorter answers"
        )
        moved = replace(begun, phase=Phase.BAKING, step=step, findings=FINDINGS, **more)
        self._client.set(keys.rollout(tenant, name), to_text(moved))
        return moved

    def live_after_publish(self) -> dict[str, str]:
        """All else; the ids of jobs worth a look. Whoever listens hears of the ended ones."""
        self.limit()
        self.report_workers()
        self.roll_out("acme", "support-triage", to=3)
        self.roll_out("globex", "product-tagger", to=2, step=0, paused=True)
        return self.jobs()

    def jobs(self) -> dict[str, str]:
        """Jobs in every state."""
        shown: dict[str, str] = {}
        for address, count in (
            ("acme/support-triage", 9),
            ("globex/product-tagger", 4),
            ("acme/reply-draft", 3),
            ("initech/moderation", 2),
        ):
            jobs = self.claim(self.submit(address, count))
            for number, job in enumerate(jobs):
                error = None
                if number == 2:
                    error = JobError(
                        code="output_does_not_fit",
                        message="the answer fits none of the template's choices",
                        remedy="Look at output.choices of the template.",
                    )
                self.finish(job, hit=number > 0, error=error)
            shown.setdefault("miss", jobs[0].id)
            shown.setdefault("hit", jobs[1].id)
            shown.setdefault("failed", jobs[-1].id if len(jobs) < 3 else jobs[2].id)
        for address, waiting, running in (
            ("acme/support-triage", 23, 12),
            ("globex/product-tagger", 7, 4),
            ("acme/contact-extract", 0, 2),
            ("initech/moderation", 118, 8),
        ):
            ids = self.submit(address, waiting + running)
            self.claim(ids[:running], "gpu-02-4121-9f3c")
            shown.setdefault("running", ids[0])
            shown.setdefault("waiting", ids[-1])
        shown["dead"] = self.bury("globex/listing-summary")
        return shown


FINDINGS = (
    Finding(gate="compiles", outcome=Outcome.PASS, message="the prefix has 671 tokens"),
    Finding(
        gate="cached_equals_uncached", outcome=Outcome.PASS, message="6 samples, token by token"
    ),
    Finding(
        gate="failures", outcome=Outcome.PASS, message="0.4 % of 512 jobs, stable 0.5 % of 498"
    ),
    Finding(
        gate="latency",
        outcome=Outcome.INCONCLUSIVE,
        message="p95 1.21 times the stable version's; 512 jobs are too few to be sure",
    ),
)


def worker_report(worker_id: str, number: int = 0, **more: Any) -> dict[str, Any]:
    """What `WorkerService.describe` gives."""
    gpu = worker_id.startswith("gpu")
    refused = {"way": "compiled", "reason": "its scores differ by 3e-2 from the plain path's"}
    return {
        "id": worker_id,
        "host": worker_id.partition("-4")[0],
        "pid": 4121,
        "model": "smollm2-135m-instruct",
        "device": "cuda:0" if gpu else "cpu",
        "dtype": "bfloat16" if gpu else "float32",
        "engine": "shared-prefix",
        "admission": {"seconds": 2.4, "max_logit_error": 3e-6, "refused": [refused]},
        "batch_size": 32,
        "running": (12, 14, 0)[number % 3],
        "draining": number == 2,
        "templates": [f"{tenant}/{name}" for tenant, names in TEMPLATES.items() for name in names],
        "cache": {
            "bytes": 212 * MIB - 61 * MIB * number,
            "max_bytes": 2 * GIB,
            "hits": 18_204 - 5_100 * number,
            "misses": 31 + number,
        },
        "disk": {"bytes": 260 * MIB, "max_bytes": 4 * GIB},
        "versions": [
            {
                "version": version,
                "prefix_tokens": tokens,
                "bytes": tokens * 46_080,
                "cached": place != 2,
                "prefill_s": tokens / 5000,
                "parity": "equal",
                "parity_tokens": 32,
            }
            for place, (version, tokens) in enumerate(
                (
                    ("acme/support-triage@2", 671),
                    ("acme/support-triage@3", 702),
                    ("globex/product-tagger@1", 1_480),
                    ("initech/moderation@3", 2_204),
                )
            )
        ],
        **more,
    }
