"""One job, from claim to commit. Knows nothing of Celery, and of Redis only the job store."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

from contract.errors import PrefillqError, RedisRefused, RedisUnreachable
from contract.job_ends import with_commit_time
from contract.job_store import Claimed, JobStore, Refused
from contract.logs import get_logger
from contract.types import Job, JobState, Result, VersionRef
from worker.answer import JobAnswers
from worker.company import Company
from worker.engine.base import EngineClosed
from worker.leases import HeldLease, LeaseKeeper
from worker.outcome import Answer, failed, failed_with, log_finished, make_result
from worker.ringing import Ring
from worker.streams import AnswerStreams, TokenSink
from worker.trouble import passing_trouble
from worker.watcher import AttemptEnd, Watcher

log = get_logger(__name__)

T = TypeVar("T")

# A result that cannot be written is tried again this often, and for a lease or this long. While
# Redis is away nobody can take the job, and if somebody did, the fence refuses the result.
COMMIT_RETRY_S = 0.5
COMMIT_PATIENCE_S = 60.0

# Seconds between the attempts of a job: doubled each time, up to the longest.
BACKOFF_S, LONGEST_BACKOFF_S = 2.0, 60.0


class JobReturned(PrefillqError):
    """The worker ends: the job is another's, as if this one had not taken it."""

    code = "job_returned"


class JobRunner:
    """Runs jobs one by one or from several threads; all state is in its parts."""

    def __init__(
        self,
        *,
        worker_id: str,
        store: JobStore,
        answers: JobAnswers,
        leases: LeaseKeeper,
        draining: Callable[[], bool] = lambda: False,
        device_lost: Callable[[], None] = lambda: None,
        ring: Ring = lambda _queue, _job_id: None,
        shadow: Callable[[Job], None] = lambda _job: None,
        watcher: Watcher | None = None,
        streams: AnswerStreams | None = None,
        used: Callable[[VersionRef], None] = lambda _ref: None,  # told of each that answered a job
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._watcher = watcher or Watcher()
        self._worker_id = worker_id
        self._store = store
        self._answers = answers
        self._leases = leases
        self._draining = draining
        self._company = Company(give_up=draining)
        self._device_lost = device_lost
        self._clock = clock
        self._ring = ring
        self._shadow = shadow
        self._streams = streams
        self._used = used

    def run(self, job_id: str, *, delivery_tag: str | None = None) -> Result | None:
        """Claim, answer and commit a job. None when it was not ours to run or to finish.

        Raises InvalidInput for what is no job id, JobReturned when the worker ends, and
        RedisUnreachable or RedisRefused when Redis would not serve the claim or the version; the
        job is then in the queue again, or will be rung for once its lease ran out.
        """
        with self._company.together():
            claim = self._claim(job_id, alone=False)
            if isinstance(claim, Claimed):
                return self._finish(claim, delivery_tag)
        if claim.reason == "suspect":
            with self._company.alone():
                claim = self._claim(job_id, alone=True)
                if isinstance(claim, Claimed):
                    log.warning("job_runs_alone", job_id=job_id, attempt=claim.job.attempt)
                    return self._finish(claim, delivery_tag)
        tell = log.error if claim.reason in ("dead", "damaged") else log.info
        tell("job_refused", job_id=job_id, reason=claim.reason)
        self._watcher.claim_refused(claim.reason)
        return None

    def _claim(self, job_id: str, *, alone: bool) -> Claimed | Refused:
        if self._draining():
            raise JobReturned("the worker takes no more jobs")
        return self._store.claim(job_id, self._worker_id, self._leases.lease_s, alone=alone)

    def _finish(self, claim: Claimed, delivery_tag: str | None) -> Result | None:
        """Answer and commit what was claimed."""
        started = self._clock()
        job_id, fence = claim.job.id, claim.job.fence
        with (
            self._leases.hold(job_id, fence, delivery_tag=delivery_tag) as lease,
            self._streams.open(claim.job) if self._streams else nullcontext() as stream,
        ):
            try:
                answer = self._answer(claim.job, lease, stream, claimed_at=started)
            except (RedisUnreachable, RedisRefused, JobReturned):
                self._watcher.attempt_ended("returned")
                self._release(job_id, fence)
                raise
            result = make_result(
                claim.job,
                answer,
                queue_s=claim.queued_s,
                elapsed_s=self._clock() - started,
                model=self._answers.model.folder.name,
                device=str(self._answers.model.device),
                worker=self._worker_id,
            )
            if answer.passing:
                dead = self._try_later(claim.job, result, fence, lease)
                if stream is not None:
                    stream.result = dead
                return dead
            commit_started = self._clock()
            committed = self._written(job_id, lease, lambda: self._store.commit(result, fence))
            commit_s = self._clock() - commit_started
            if stream is not None:
                stream.result = committed
        if committed is None:
            log.warning("commit_refused", job_id=job_id, fence=fence)
            self._watcher.attempt_ended("lost")
            return None
        committed = with_commit_time(committed, commit_s)
        log_finished(committed)
        self._watcher.attempt_answered(claim.job, committed)
        self._watcher.job_finished(committed)
        # Last: whoever sees all attempts ended sees what came of them.
        self._watcher.attempt_ended("ended")
        if committed.status is JobState.SUCCEEDED:
            # The record, which a tenant writes, named a version that there is.
            self._used(committed.ref)
        self._note_commit(job_id, fence, commit_s)
        self._offer_shadow(claim.job, committed)
        return committed

    def _try_later(self, job: Job, result: Result, fence: int, lease: HeldLease) -> Result | None:
        """Put a job back that may succeed at another attempt; its result when that was the last."""
        delay_s = min(LONGEST_BACKOFF_S, BACKOFF_S * 2 ** (result.attempt - 1))
        delay_s *= random.uniform(0.75, 1.25)  # those that failed together need not come back so
        state = self._written(
            result.job_id, lease, lambda: self._store.retry(result, fence, delay_s)
        )
        code = result.error.code if result.error else ""
        if code == "device_lost":
            self._device_lost()
        self._watcher.attempt_answered(job, result)
        if state is JobState.FAILED:
            log.error("job_dead", job_id=result.job_id, attempt=result.attempt, error=code)
            log_finished(result)
            self._watcher.job_finished(result)
            self._watcher.attempt_ended("dead")
            return result
        self._watcher.attempt_ended(_end_of(state))
        log.warning(
            "job_tried_later",
            job_id=result.job_id,
            attempt=result.attempt,
            error=code,
            state=str(state) if state else "lost",
            delay_s=round(delay_s, 1),
        )
        return None

    def _answer(
        self, job: Job, lease: HeldLease, sink: TokenSink | None, *, claimed_at: float
    ) -> Answer:
        try:
            answer = self._answers.answer(job, lease, claimed_at=claimed_at, sink=sink)
        except (RedisUnreachable, RedisRefused):
            raise  # the job is not to blame
        except EngineClosed as error:
            if not self._draining():  # it ended by itself, and so must the process
                self._device_lost()
            raise JobReturned("the engine was closed") from error
        except PrefillqError as error:
            return failed_with(error)
        except Exception as error:
            if trouble := passing_trouble(error):
                log.exception("device_trouble", job_id=job.id, error=trouble)
                return failed(trouble, f"{type(error).__name__} in the worker", passing=True)
            # A job ends with a reason whatever went wrong in it; the traceback is for the log.
            log.exception("job_crashed", job_id=job.id)
            return failed("internal_error", f"{type(error).__name__} in the worker")
        if answer.status is JobState.CANCELLED and lease.stop_reason() == "returned":
            raise JobReturned("the worker ends before the job does")
        return answer

    def _written(self, job_id: str, lease: HeldLease, write: Callable[[], T]) -> T:
        """What `write` returns; while Redis is away or full, it is tried again and again."""
        give_up = time.monotonic() + max(self._leases.lease_s, COMMIT_PATIENCE_S)
        waits = False
        while True:
            try:
                return write()
            except (RedisUnreachable, RedisRefused) as error:
                if lease.beat() >= give_up or lease.stop_reason() == "lost":
                    # Not lost for good: the lease ends, and the job runs again.
                    log.error("commit_given_up", job_id=job_id, error=str(error))  # noqa: TRY400
                    self._watcher.attempt_ended("given_up")
                    raise
                if not waits:
                    log.warning("commit_waits", job_id=job_id, error=str(error))
                    waits = True
                time.sleep(COMMIT_RETRY_S)

    def _release(self, job_id: str, fence: int) -> None:
        try:
            self._store.release(job_id, fence)
        except PrefillqError as error:
            # The lease will run out, and the janitor rings for the job then.
            log.warning("job_not_released", job_id=job_id, error=str(error))

    def _offer_shadow(self, job: Job, committed: Result) -> None:
        if not job.shadow or committed.status is not JobState.SUCCEEDED:
            return
        try:
            self._shadow(job)
        except PrefillqError as error:
            # A sample less for people to look at; the job has ended well.
            log.warning("shadow_not_offered", job_id=job.id, error=str(error))

    def _note_commit(self, job_id: str, fence: int, commit_s: float) -> None:
        try:
            held_back = self._store.note_commit(job_id, fence, commit_s)
        except PrefillqError as error:
            # The job has ended well; its record only lacks this one number.
            log.warning("commit_time_not_noted", job_id=job_id, error=str(error))
            return
        if held_back is not None:
            try:
                self._ring(held_back.queue, held_back.job_id)
            except PrefillqError as error:  # the janitor rings
                log.warning("not_rung", job_id=held_back.job_id, error=str(error))


def _end_of(state: JobState | None) -> AttemptEnd:
    """What became of an attempt that was to be tried again."""
    if state is None:
        return "lost"
    # A cancel or the deadline may have ended the job meanwhile.
    return "tried_later" if state is JobState.QUEUED else "ended"
