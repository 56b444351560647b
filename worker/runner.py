"""One job, from claim to commit. Knows nothing of Celery, and of Redis only the job store."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from contract.errors import PrefillqError, RedisRefused, RedisUnreachable
from contract.job_store import JobStore, Refused, with_commit_time
from contract.logs import get_logger
from contract.types import CacheInfo, CacheState, Job, JobState, Result, Timings, VersionRef
from templates.fill import check_positions, fill, trusted_ids
from templates.version import PublishedVersion
from worker.engine.base import (
    Engine,
    EngineClosed,
    Generation,
    GenerationRequest,
    NonFiniteLogits,
)
from worker.leases import HeldLease, LeaseKeeper
from worker.outcome import Answer, failed, failed_with, log_finished, make_result, stopped
from worker.prefixes import PrefixService, Served
from worker.trouble import passing_trouble

if TYPE_CHECKING:  # needs torch, which a fake engine does without
    from worker.model import LoadedModel

log = get_logger(__name__)

T = TypeVar("T")

# A result that cannot be written is tried again this often, and for a lease or this long. While
# Redis is away nobody can take the job, and if somebody did, the fence refuses the result.
COMMIT_RETRY_S = 0.5
COMMIT_PATIENCE_S = 60.0

# Seconds between the attempts of a job: doubled each time, up to the longest.
BACKOFF_S, LONGEST_BACKOFF_S = 2.0, 60.0


class VersionSource(Protocol):
    """Where a worker reads published versions; `templates.registry.Registry` is one."""

    def get(self, ref: VersionRef) -> PublishedVersion: ...


class PrefixNotVerified(PrefillqError):
    """The prefix of a job of a strict template could not be used."""

    code = "prefix_not_verified"


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
        versions: VersionSource,
        model: LoadedModel,
        engine: Engine,
        prefixes: PrefixService,
        leases: LeaseKeeper,
        audit: bool = False,
        draining: Callable[[], bool] = lambda: False,
        device_lost: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._worker_id = worker_id
        self._store = store
        self._versions = versions
        self._model = model
        self._engine = engine
        self._prefixes = prefixes
        self._leases = leases
        self._audit = audit
        self._draining = draining
        self._device_lost = device_lost
        self._clock = clock
        self.ring: Callable[[str, str], None] = lambda _queue, _job_id: None  # until there is one

    def run(self, job_id: str, *, delivery_tag: str | None = None) -> Result | None:
        """Claim, answer and commit a job. None when it was not ours to run or to finish.

        Raises InvalidInput for what is no job id, JobReturned when the worker ends, and
        RedisUnreachable or RedisRefused when Redis would not serve the claim or the version; the
        job is then in the queue again, or will be rung for once its lease ran out.
        """
        if self._draining():
            raise JobReturned("the worker takes no more jobs")
        claim = self._store.claim(job_id, self._worker_id, self._leases.lease_s)
        if isinstance(claim, Refused):
            tell = log.error if claim.reason == "dead" else log.info
            tell("job_refused", job_id=job_id, reason=claim.reason)
            return None
        started = self._clock()
        fence = claim.job.fence
        with self._leases.hold(job_id, fence, delivery_tag=delivery_tag) as lease:
            try:
                answer = self._answer(claim.job, lease, claimed_at=started)
            except (RedisUnreachable, RedisRefused, JobReturned):
                self._release(job_id, fence)
                raise
            result = make_result(
                claim.job,
                answer,
                queue_s=claim.queued_s,
                elapsed_s=self._clock() - started,
                model=self._model.folder.name,
                device=str(self._model.device),
                worker=self._worker_id,
            )
            if answer.passing:
                return self._try_later(result, fence, lease)
            commit_started = self._clock()
            committed = self._written(job_id, lease, lambda: self._store.commit(result, fence))
            commit_s = self._clock() - commit_started
        if committed is None:
            log.warning("commit_refused", job_id=job_id, fence=fence)
            return None
        committed = with_commit_time(committed, commit_s)
        log_finished(committed)
        self._note_commit(job_id, fence, commit_s)
        return committed

    def _try_later(self, result: Result, fence: int, lease: HeldLease) -> Result | None:
        """Put a job back that may succeed at another attempt; its result when that was the last."""
        delay_s = min(LONGEST_BACKOFF_S, BACKOFF_S * 2 ** (result.attempt - 1))
        delay_s *= random.uniform(0.75, 1.25)  # those that failed together need not come back so
        state = self._written(
            result.job_id, lease, lambda: self._store.retry(result, fence, delay_s)
        )
        code = result.error.code if result.error else ""
        if code == "device_lost":
            self._device_lost()
        if state is JobState.FAILED:
            log.error("job_dead", job_id=result.job_id, attempt=result.attempt, error=code)
            log_finished(result)
            return result
        log.warning(
            "job_tried_later",
            job_id=result.job_id,
            attempt=result.attempt,
            error=code,
            state=str(state) if state else "lost",
            delay_s=round(delay_s, 1),
        )
        return None

    def _answer(self, job: Job, lease: HeldLease, *, claimed_at: float) -> Answer:
        try:
            answer = self._generate(job, self._version(job), lease, claimed_at=claimed_at)
        except (RedisUnreachable, RedisRefused):
            raise  # the job is not to blame
        except EngineClosed as error:
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

    def _version(self, job: Job) -> PublishedVersion:
        version = self._versions.get(job.ref)
        served = self._model.folder.model_digest
        if version.model_digest != served:
            raise PrefillqError(
                f"{version.ref} was published for other weights than this worker serves",
                given=f"model digest {served[:12]}",
                expected=version.model_digest[:12],
                remedy="Publish the template again, or start a worker with that model.",
            )
        if version.tokenizer_digest != self._model.folder.tokenizer_digest:
            raise PrefillqError(
                f"{version.ref} was compiled with another tokenizer than this worker has",
                given=f"tokenizer digest {self._model.folder.tokenizer_digest[:12]}",
                expected=version.tokenizer_digest[:12],
                remedy="Publish the template again.",
            )
        return version

    def _generate(
        self, job: Job, version: PublishedVersion, lease: HeldLease, *, claimed_at: float
    ) -> Answer:
        started = self._clock()
        ids = self._tokenize(job, version)
        tokenize_s = self._clock() - started
        choices = self._choice_ids(version.spec.output.choices)
        new_tokens = (
            version.spec.generation.max_new_tokens
            if choices is None
            else max(len(choice) for choice in choices) + 1  # and the end of the sequence
        )
        check_positions(len(ids), new_tokens, self._model.folder.max_positions)
        if reason := lease.stop_reason():
            return stopped(reason)
        with self._prefixes.serve(version, ids, use_cache=job.use_cache) as served:
            if version.spec.strict and served.entry is None and job.use_cache:
                error = _not_verified(served.cache.reason)
                return failed_with(error, cache=served.cache, tokens=len(ids))
            request = GenerationRequest(
                ids=ids,
                generation=version.spec.generation,
                choices=choices,
                entry=served.entry,
                should_stop=lambda: _engine_stop(lease),
            )
            engine_started_s = self._clock() - claimed_at
            answer = self._decode(version, request, served)
        return replace(
            answer,
            engine_started_s=engine_started_s,
            timings=replace(answer.timings, tokenize_s=tokenize_s),
        )

    def _tokenize(self, job: Job, version: PublishedVersion) -> tuple[int, ...]:
        tokenizer = self._model.tokenizer
        filled = fill(version.compiled, job.variables, tokenizer)
        if not filled.plain:
            return filled.ids
        # Without control-token text in the variables the plain tokenization is the authority:
        # should the pieces ever differ from it, the job takes it, and verification decides.
        trusted = trusted_ids(version.compiled, job.variables, tokenizer)
        if trusted != filled.ids:
            log.warning("pieces_differ_from_plain", job_id=job.id, version=str(version.ref))
        return trusted

    def _decode(
        self, version: PublishedVersion, request: GenerationRequest, served: Served
    ) -> Answer:
        choices, prompt_tokens = version.spec.output.choices, len(request.ids)
        cache, cached_tokens = served.cache, served.cached_tokens
        try:
            generation, fallback = self._run_engine(version, request)
        except (NonFiniteLogits, PrefixNotVerified) as error:
            return failed_with(error, cache=cache, tokens=prompt_tokens)
        if fallback:
            cache, cached_tokens = CacheInfo(state=CacheState.MISS, reason=fallback), 0
        answer = Answer(
            status=JobState.SUCCEEDED,
            cache=cache,
            generation=generation,
            choice=choices[generation.choice_index]
            if choices is not None and generation.choice_index is not None
            else None,
            probabilities=dict(zip(choices or (), generation.choice_probabilities, strict=False)),
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            timings=Timings(
                verify_s=served.verify_s,
                prefill_s=served.prefill_s,
                fork_s=generation.fork_s,
                suffix_prefill_s=generation.suffix_prefill_s,
                decode_s=generation.decode_s,
            ),
        )
        if generation.finish_reason in ("cancelled", "expired"):
            return stopped(generation.finish_reason, answer)
        return answer

    def _run_engine(
        self, version: PublishedVersion, request: GenerationRequest
    ) -> tuple[Generation, str]:
        """Generate; on trouble with the cached path once more without it, and say why."""
        entry = request.entry
        if entry is None:
            return self._engine.generate(request), ""
        plain = replace(request, entry=None)
        try:
            generation = self._engine.generate(request)
        except NonFiniteLogits as error:
            if version.spec.strict:
                raise
            # Seen on some devices with a cache and not without it.
            return self._engine.generate(plain), error.code
        if self._audit and not entry.audit():
            self._prefixes.drop(version, "mutated")
            log.error("cache_entry_mutated", version=str(version.ref))
            if version.spec.strict:
                raise _not_verified("entry_mutated")
            return self._engine.generate(plain), "entry_mutated"
        return generation, ""

    def _choice_ids(self, choices: tuple[str, ...] | None) -> tuple[tuple[int, ...], ...] | None:
        if choices is None:
            return None
        return tuple(self._model.tokenizer.encode_ordinary(choice) for choice in choices)

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

    def _note_commit(self, job_id: str, fence: int, commit_s: float) -> None:
        try:
            if held_back := self._store.note_commit(job_id, fence, commit_s):
                self.ring(held_back.queue, held_back.job_id)
        except PrefillqError as error:
            # The job has ended well; its record only lacks this one number, and the janitor rings.
            log.warning("commit_time_not_noted", job_id=job_id, error=str(error))


def _not_verified(reason: str) -> PrefixNotVerified:
    return PrefixNotVerified(
        f"the template is strict and its prefix was not used: {reason}",
        remedy="Compare the job's variables with the template's samples.",
    )


def _engine_stop(lease: HeldLease) -> Literal["cancelled", "expired"] | None:
    # A lost lease ends like a cancel; its commit is refused by the fence. So does a returned job,
    # which is released instead.
    match lease.stop_reason():
        case "expired":
            return "expired"
        case None:
            return None
        case _:
            return "cancelled"
