"""One call of `submit` or `submit_many`: versions are chosen, records written, workers rung for.

The version of a job is chosen by label and rollout as they are when its record is written: the
store refuses a record whose template was changed since, and its version is chosen again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contract.awaited import Sleep
from contract.canonical import digest
from contract.errors import (
    CodecError,
    InvalidInput,
    KeyDamaged,
    NotFound,
    PrefillqError,
    RecordDamaged,
    RedisRefused,
    RedisUnreachable,
    SpecInvalid,
    TemplateMoved,
)
from contract.job_checks import check_submission, usable_key
from contract.job_store import Submission, Submitted
from contract.keys import queue as queue_name
from contract.types import Job, JobState
from producer.bell import Ring
from producer.desk import Desk
from producer.patience import Pace, Patience
from producer.refused import Refusals
from producer.tracing import sending
from producer.validate import VariablesChecker
from producer.wishes import Terms, Wish, of_item
from templates.target import Target

_TRIES = 50  # each time somebody else changed the template in the milliseconds between


async def submit(enqueue: Enqueue, patience: Patience, *, sleep: Sleep) -> list[str]:
    """The ids of a call's jobs, once all are enqueued. What it raises says what may be left."""
    with sending(enqueue.address, enqueue.job_ids) as enqueue.traceparent:
        return await _submit(enqueue, patience, sleep)


async def _submit(enqueue: Enqueue, patience: Patience, sleep: Sleep) -> list[str]:
    # Nothing is taken back between two tries: the ids are the jobs' identity, so a record that
    # a lost reply was about is found again.
    try:
        submitted = await patience.wait_for(enqueue.run, sleep=sleep)
    except (RedisUnreachable, RedisRefused) as error:
        left = await enqueue.withdraw()
        raise type(error)(
            error.problem,
            given=error.given,
            expected=error.expected,
            remedy=f"{error.remedy} {_what_is_left(left)}".lstrip(),
        ) from error
    except PrefillqError:
        await enqueue.withdraw()
        raise
    return [one.job_id for one in submitted]


class Enqueue:
    """The jobs of one call. `run` may be repeated after an error, and enqueues none twice."""

    def __init__(
        self,
        desk: Desk,
        checker: VariablesChecker,
        terms: Terms,
        wishes: Sequence[Wish],
        *,
        pace: Pace,
    ) -> None:
        self._desk, self._checker, self._terms = desk, checker, terms
        self._wishes = wishes
        self._pace = pace
        self.address = terms.address
        self.job_ids = [wish.job_id for wish in wishes]
        self.traceparent = ""  # of the span that the call is in
        self._submitted: dict[int, Submitted] = {}  # by place in `wishes`
        self._refusals = Refusals(desk.outcomes, desk.versions, checker)
        self._written = False

    async def run(self) -> list[Submitted]:
        """Write all records and ring for all. Raises what the store, registry or bell raise,
        InvalidInput for variables that their version does not take, and TemplateMoved.
        """
        for left in reversed(range(_TRIES)):
            target = await self._target()
            moved = await self._write(target, await self._choose(target))
            if moved is None:
                break
            if left == 0:
                raise moved
        submitted = [self._submitted[place] for place in range(len(self._wishes))]
        await self._desk.bell.ring(
            Ring(queue=one.queue, job_id=one.job_id)
            for one in submitted
            # A job found by its key is rung again: its first ring may have been lost.
            if one.state is JobState.QUEUED
        )
        return submitted

    async def withdraw(self) -> list[str]:
        """Erase the records of this call; the ids of those that may still exist."""
        left: list[str] = []
        if not self._written:
            return left
        for index, wish in enumerate(self._wishes):
            try:
                gone = await self._desk.undo.withdraw(
                    wish.job_id, idempotency_key=wish.idempotency_key
                )
            except PrefillqError:
                # Redis does not answer: one timeout is enough, and the caller is told.
                return left + [other.job_id for other in self._wishes[index:]]
            if not gone:
                left.append(wish.job_id)
        return left

    async def _target(self) -> Target | PrefillqError:
        try:
            return await self._desk.versions.target(self._terms.address)
        except (NotFound, CodecError) as error:
            return error

    async def _choose(self, target: Target | PrefillqError) -> dict[int, Submission]:
        """Submissions of all jobs that are not enqueued, each for its version."""
        chosen = {}
        for place, wish in enumerate(self._wishes):
            await self._pace.step()
            if place in self._submitted:
                continue
            try:
                if isinstance(target, PrefillqError):
                    raise target
                chosen[place] = await self._submission(target, wish)
            except (NotFound, InvalidInput, SpecInvalid, CodecError) as error:
                # A job that was enqueued under this key before is still its answer.
                found = await self._found(wish)
                if found is None:
                    if isinstance(target, Target):
                        ref = target.ref_of(wish.job_id, wish.variables, wish.sticky_key)
                        await self._refusals.of_input(place, target, ref, wish.variables)
                    raise self._of_item(place, error) from error
                self._submitted[place] = found
        return chosen

    async def _submission(self, target: Target, wish: Wish) -> Submission:
        terms = self._terms
        ref = target.ref_of(wish.job_id, wish.variables, wish.sticky_key)
        version = await self._desk.versions.get(ref)
        self._checker.check_plain(version, wish.variables)
        limits = version.spec.limits
        submission = Submission(
            job=Job(
                id=wish.job_id,
                ref=ref,
                queue=queue_name(ref.tenant, ref.template, version.model_digest),
                variables=wish.variables,
                use_cache=terms.use_cache,
                rollout="" if target.rollout is None else target.rollout.id,
                shadow=target.shadow_of(ref, wish.job_id),
                stream=terms.stream,
                traceparent=self.traceparent,
            ),
            input_digest=self._input_digest(wish),
            idempotency_key=wish.idempotency_key,
            deadline_s=limits.deadline_s if terms.deadline_s is None else terms.deadline_s,
            max_queue=limits.max_queue,
            revision=target.revision,
        )
        check_submission(submission)
        return submission

    async def _write(
        self, target: Target | PrefillqError, submissions: Mapping[int, Submission]
    ) -> TemplateMoved | None:
        """Write records; what refused one that is to be chosen anew. Raises other refusals."""
        if not submissions:
            return None
        self._written = True
        outcomes = await self._desk.jobs.submit_many(list(submissions.values()))
        moved: TemplateMoved | None = None
        refusals: list[tuple[int, PrefillqError]] = []
        for place, outcome in zip(submissions, outcomes, strict=True):
            match outcome:
                case Submitted():
                    self._submitted[place] = outcome
                case TemplateMoved():
                    moved = outcome
                case _:
                    refusals.append((place, outcome))
        for place, refusal in refusals[:1]:
            if isinstance(target, Target):
                await self._refusals.of_queue(place, target, submissions[place], refusal)
            if isinstance(refusal, KeyDamaged):
                await self._found(self._wishes[place])  # says so if it is one of this job's
            raise refusal
        return moved

    async def _found(self, wish: Wish) -> Submitted | None:
        """Raises RecordDamaged when there is a job of that key whose record cannot be read."""
        if wish.idempotency_key is None or not usable_key(wish.idempotency_key):
            return None
        tenant, digest_ = self._terms.address.tenant, self._input_digest(wish)
        try:
            return await self._desk.jobs.find(tenant, wish.idempotency_key, digest_)
        except KeyDamaged as error:
            raise RecordDamaged(
                "the record of the job under this idempotency key is damaged",
                given=error.given,
                expected="a record as prefillq writes it",
                remedy="Submit it under another key.",
            ) from error

    def _input_digest(self, wish: Wish) -> str:
        """Digest of what the caller asked for, not of the version it came to.

        So a retry under the same key finds its job also when a label has moved meanwhile. How the
        answer is delivered is no part of it.
        """
        address = self._terms.address
        template = f"{address.tenant}/{address.name}@{address.version or address.label}"
        asked: dict[str, Any] = {
            "template": template,
            "variables": wish.variables,
            "use_cache": self._terms.use_cache,
        }
        if wish.sticky_key is not None:
            asked["sticky_key"] = wish.sticky_key
        return digest(asked)

    def _of_item(self, place: int, error: PrefillqError) -> PrefillqError:
        if isinstance(error, InvalidInput) and len(self._wishes) > 1:
            return of_item(place, error)
        return error


def _what_is_left(job_ids: Sequence[str]) -> str:
    if not job_ids:
        return "Nothing was enqueued."
    count = "The job" if len(job_ids) == 1 else f"{len(job_ids)} jobs"
    return (
        f"{count} may have been enqueued ({job_ids[0]}{', ...' if len(job_ids) > 1 else ''}); "
        "submitting again under the same idempotency key cannot enqueue it twice."
    )
