"""A worker without a model: claims queued jobs and commits an answer to each."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from contract import keys
from contract.errors import CodecError, KeyDamaged
from contract.records import RedisJobStore
from contract.redis_client import connect, text
from contract.settings import Settings
from contract.types import CacheInfo, CacheState, Job, JobState, Result, Usage


def answer_to(job: Job) -> Result:
    """`echo: <variables>`; a job whose variables hold the word `break` fails."""
    broken = "break" in str(job.variables)
    return Result(
        job_id=job.id,
        ref=job.ref,
        status=JobState.FAILED if broken else JobState.SUCCEEDED,
        text="" if broken else f"echo: {' '.join(map(str, job.variables.values()))}",
        finish_reason="error" if broken else "stop",
        usage=Usage(prompt_tokens=20, completion_tokens=3, cached_tokens=15),
        cache=CacheInfo(state=CacheState.HIT),
        attempt=job.attempt,
    )


class Answering:
    """Answers a tenant's jobs while the block lasts, or the first `limit` of them."""

    def __init__(self, settings: Settings, tenant: str = "acme", *, limit: int = 2**31) -> None:
        self.answered = 0
        self._client = connect(settings)
        self._store = RedisJobStore(self._client, settings)
        self._queued = keys.queued(tenant)
        self._limit = limit
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _work(self) -> None:
        while not self._stop.wait(0.02):
            waiting = self._client.zrange(self._queued, 0, 9)
            for job_id in map(text, waiting):  # type: ignore[arg-type]
                if self.answered >= self._limit:
                    return
                try:
                    claimed = self._store.claim(job_id, "answering", 10.0)
                except (CodecError, KeyDamaged):  # a worker passes over what it cannot read
                    self._client.zrem(self._queued, job_id)
                    continue
                if not hasattr(claimed, "job"):
                    continue
                self._store.commit(answer_to(claimed.job), claimed.job.fence)
                self.answered += 1
