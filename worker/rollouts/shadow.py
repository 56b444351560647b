"""Jobs of the stable version that the canary answers too, unseen, when a worker has time.

The worker that ends such a job puts its id on a list; a worker whose engine has a free row takes it
from there, answers with the canary, and writes both answers to a stream that `rollout compare`
reads. Nothing of that touches the job's record, its tenant's limits or its queue. What is lost with
a worker, or falls off a full list, is a sample less.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from contract import keys
from contract.errors import (
    CodecError,
    InvalidInput,
    NotFound,
    PrefillqError,
    RedisRefused,
    RedisUnreachable,
)
from contract.ids import tenant_of
from contract.job_store import JobStore, JobView
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained, text
from contract.settings import Settings
from contract.types import Job, JobState, Result, Timings
from templates.rollouts.compare import MAX_PAIRS, Answered, fields_of
from templates.rollouts.rollout import Rollout
from templates.version import PublishedVersion
from worker.answer import JobAnswers
from worker.engine.base import EngineClosed
from worker.outcome import Answer
from worker.trouble import passing_trouble

log = get_logger(__name__)

LOOK_S = 1.0
MAX_WAITING = 1000  # ids of a rollout; the oldest fall off
WAITING_TTL_S = 86_400  # records live no longer by default
PAIRS_TTL_S = 7 * 86_400
_ROLLOUT_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadowing:
    """A rollout whose canary this worker can answer with."""

    tenant: str
    name: str
    rollout: Rollout
    canary: PublishedVersion


class ShadowQueue:
    """The ids that wait, and the pairs that were made of them."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client: Any = client  # redis-py types each reply as a value or an awaitable
        self._settings = settings

    def offer(self, job: Job) -> None:
        """Let the canary answer a job that has ended, if its record says so."""
        # Whoever submits can write the record, and the id becomes a part of a key's name.
        if job.shadow <= 0 or not _ROLLOUT_ID.fullmatch(job.rollout):
            return
        key = keys.shadow(job.ref.tenant, job.rollout)
        with errors_explained(self._settings):
            pipe = self._client.pipeline(transaction=False)
            pipe.lpush(key, job.id)
            pipe.ltrim(key, 0, MAX_WAITING - 1)
            pipe.expire(key, WAITING_TTL_S)
            pipe.execute()

    def take(self, tenant: str, rollout_id: str) -> str | None:
        """The id that has waited longest."""
        with errors_explained(self._settings):
            taken = self._client.rpop(keys.shadow(tenant, rollout_id))
        return None if taken is None else text(taken)

    def put_back(self, tenant: str, rollout_id: str, job_id: str) -> None:
        """An id that was taken and not answered: it is the next again."""
        with errors_explained(self._settings):
            self._client.rpush(keys.shadow(tenant, rollout_id), job_id)

    def write(
        self, tenant: str, rollout_id: str, job_id: str, stable: Answered, canary: Answered
    ) -> None:
        """Keep both answers for `rollout compare`."""
        key, entry = keys.shadowed(tenant, rollout_id), fields_of(job_id, stable, canary)
        with errors_explained(self._settings):
            pipe = self._client.pipeline(transaction=False)
            pipe.xadd(key, entry, maxlen=MAX_PAIRS, approximate=False)
            pipe.expire(key, PAIRS_TTL_S)
            pipe.execute()


class Turn:
    """A shadow's place in the engine: it ends as soon as somebody else needs it."""

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy = busy

    def stop_reason(self) -> Literal["returned"] | None:
        """As a lease tells it."""
        return "returned" if self._busy() else None


class ShadowRunner:
    """Answers one shadow after the other, from one thread, while the engine has room."""

    def __init__(
        self,
        *,
        queue: ShadowQueue,
        store: JobStore,
        answers: JobAnswers,
        shadowing: Callable[[], Iterable[Shadowing]],
        busy: Callable[[], bool],  # True: jobs want all of the engine, or the worker ends
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._queue = queue
        self._store = store
        self._answers = answers
        self._shadowing = shadowing
        self._busy = busy
        self._clock = clock

    def look(self) -> int:
        """Answer what waits, until something better is to be done; how many were answered."""
        done = 0
        if self._busy():
            return done
        for shadowing in self._shadowing():
            try:
                while not self._busy() and (job_id := self._take(shadowing)) is not None:
                    done += self._look_at(shadowing, job_id)
            except RedisRefused as error:
                # Something is wrong with this one's keys: no reason to forget the others.
                log.warning("shadow_refused", tenant=shadowing.tenant, error=str(error))
        return done

    def _take(self, shadowing: Shadowing) -> str | None:
        return self._queue.take(shadowing.tenant, shadowing.rollout.id)

    def _look_at(self, shadowing: Shadowing, job_id: str) -> bool:
        view = self._view(shadowing, job_id)
        if view is None or view.result is None:
            return False
        try:
            canary = self._answer(shadowing, view.job)
        except EngineClosed:
            canary = None
        if canary is None:
            self._queue.put_back(shadowing.tenant, shadowing.rollout.id, job_id)
            return False
        stable = _of_result(view.result)
        self._queue.write(shadowing.tenant, shadowing.rollout.id, job_id, stable, canary)
        log.info(
            "job_shadowed",
            job_id=job_id,
            template=str(shadowing.canary.ref),
            rollout=shadowing.rollout.id,
            error=canary.error,
            seconds=round(canary.seconds, 4),
        )
        return True

    def _view(self, shadowing: Shadowing, job_id: str) -> JobView | None:
        """The record, if it is of a job that this rollout's canary is to answer."""
        rollout, ref = shadowing.rollout, shadowing.canary.ref
        try:
            tenant, view = tenant_of(job_id), self._store.get(job_id)
        except (InvalidInput, NotFound, CodecError) as error:
            log.info("shadow_skipped", template=str(ref), reason=error.code)
            return None
        job = view.job
        # Its producer can write the record.
        wanted = (shadowing.tenant, shadowing.name, rollout.plan.stable, rollout.id, ref.version)
        found = (tenant, job.ref.template, job.ref.version, job.rollout, job.shadow)
        if found != wanted or view.state is not JobState.SUCCEEDED:
            log.info("shadow_skipped", template=str(ref), job_id=job_id, reason="not_meant")
            return None
        return view

    def _answer(self, shadowing: Shadowing, job: Job) -> Answered | None:
        """The canary's answer, or why it has none; None when it had to make room."""
        copy = replace(job, ref=shadowing.canary.ref)
        started = self._clock()
        try:
            answer = self._answers.answer(copy, Turn(self._busy), claimed_at=started)
        except (RedisUnreachable, RedisRefused, EngineClosed):
            raise
        except PrefillqError as error:
            return self._failed(shadowing, error.code, started)
        except Exception as error:
            trouble = passing_trouble(error) or "internal_error"
            log.exception("shadow_crashed", job_id=job.id, template=str(shadowing.canary.ref))
            return self._failed(shadowing, trouble, started)
        if answer.status is JobState.CANCELLED:
            return None
        if answer.error is not None:
            return self._failed(shadowing, answer.error.code, started)
        return _of_answer(shadowing.canary.ref.version, answer)

    def _failed(self, shadowing: Shadowing, code: str, started: float) -> Answered:
        return Answered(
            version=shadowing.canary.ref.version,
            text="",
            choice=None,
            tokens=0,
            seconds=self._clock() - started,
            error=code,
        )


def _of_answer(version: int, answer: Answer) -> Answered:
    generation = answer.generation
    return Answered(
        version=version,
        text="" if generation is None else generation.text,
        choice=answer.choice,
        tokens=0 if generation is None else len(generation.token_ids),
        seconds=_computing_s(answer.timings),
    )


def _of_result(result: Result) -> Answered:
    return Answered(
        version=result.ref.version,
        text=result.text,
        choice=result.choice,
        tokens=result.usage.completion_tokens,
        seconds=_computing_s(result.timings),
    )


# What computing takes, on either side; a wait for a row of the engine is in none of them.
_STAGES = ("tokenize_s", "verify_s", "prefill_s", "fork_s", "suffix_prefill_s", "decode_s")


def _computing_s(timings: Timings) -> float:
    return float(sum(getattr(timings, stage) for stage in _STAGES))
