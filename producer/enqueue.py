"""One call of `submit` or `submit_many`: versions are chosen, records written, workers rung for.

The version of a job is chosen by label and rollout as they are when its record is written: the
store refuses a record whose template was changed since, and its version is chosen again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from contract.canonical import digest
from contract.errors import (
    CodecError,
    InvalidInput,
    NotFound,
    PrefillqError,
    SpecInvalid,
    TemplateMoved,
)
from contract.ids import TemplateAddress
from contract.job_store import JobStore, Submission, Submitted, check_submission, usable_key
from contract.keys import queue as queue_name
from contract.types import Job, JobState, VersionRef
from producer.bell import Bell, Ring
from producer.validate import VariablesChecker
from templates.target import Target
from templates.version import PublishedVersion

_TRIES = 50  # each time somebody else changed the template in the milliseconds between


class Versions(Protocol):
    """Where a producer finds templates; `templates.registry.Registry` is one."""

    def target(self, address: TemplateAddress) -> Target: ...
    def get(self, ref: VersionRef) -> PublishedVersion: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a producer works with. Tests pass parts that need no Redis."""

    store: JobStore
    undo_store: JobStore  # the same records, asked with less patience
    versions: Versions
    bell: Bell

    def close(self) -> None:
        self.bell.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A job as its caller wants it, before its version is known."""

    job_id: str
    variables: Mapping[str, Any]  # as a worker will see them
    idempotency_key: str | None
    sticky_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds for all jobs of a call."""

    address: TemplateAddress
    deadline_s: float | None  # None: the version's
    use_cache: bool
    traceparent: str = ""


class Enqueue:
    """The jobs of one call. `run` may be repeated after an error, and enqueues none twice."""

    def __init__(
        self, parts: Parts, checker: VariablesChecker, terms: Terms, wishes: Sequence[Wish]
    ) -> None:
        self._parts, self._checker, self._terms = parts, checker, terms
        self._wishes = wishes
        self._submitted: dict[int, Submitted] = {}  # by place in `wishes`
        self._written = False

    def run(self) -> list[Submitted]:
        """Write all records and ring for all. Raises what the store, registry or bell raise,
        InvalidInput for variables that their version does not take, and TemplateMoved.
        """
        for left in reversed(range(_TRIES)):
            moved = self._write(self._choose())
            if moved is None:
                break
            if left == 0:
                raise moved
        submitted = [self._submitted[place] for place in range(len(self._wishes))]
        self._parts.bell.ring(
            Ring(queue=one.queue, job_id=one.job_id)
            for one in submitted
            # A job found by its key is rung again: its first ring may have been lost.
            if one.state is JobState.QUEUED
        )
        return submitted

    def withdraw(self) -> list[str]:
        """Erase the records of this call; the ids of those that may still exist."""
        left: list[str] = []
        if not self._written:
            return left
        for index, wish in enumerate(self._wishes):
            try:
                gone = self._parts.undo_store.withdraw(
                    wish.job_id, idempotency_key=wish.idempotency_key
                )
            except PrefillqError:
                # Redis does not answer: one timeout is enough, and the caller is told.
                return left + [other.job_id for other in self._wishes[index:]]
            if not gone:
                left.append(wish.job_id)
        return left

    def _choose(self) -> dict[int, Submission]:
        """Submissions of all jobs that are not enqueued, each for its version."""
        address = self._terms.address
        target: Target | PrefillqError
        try:
            target = self._parts.versions.target(address)
        except (NotFound, CodecError) as error:
            target = error
        chosen = {}
        for place, wish in enumerate(self._wishes):
            if place in self._submitted:
                continue
            try:
                if isinstance(target, PrefillqError):
                    raise target
                chosen[place] = self._submission(target, wish)
            except (NotFound, InvalidInput, SpecInvalid, CodecError) as error:
                # A job that was enqueued under this key before is still its answer.
                found = self._found(wish)
                if found is None:
                    raise self._of_item(place, error) from error
                self._submitted[place] = found
        return chosen

    def _submission(self, target: Target, wish: Wish) -> Submission:
        terms = self._terms
        ref = target.ref_of(wish.job_id, wish.variables, wish.sticky_key)
        version = self._parts.versions.get(ref)
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
                traceparent=terms.traceparent,
            ),
            input_digest=self._input_digest(wish),
            idempotency_key=wish.idempotency_key,
            deadline_s=limits.deadline_s if terms.deadline_s is None else terms.deadline_s,
            max_queue=limits.max_queue,
            revision=target.revision,
        )
        check_submission(submission)
        return submission

    def _write(self, submissions: Mapping[int, Submission]) -> TemplateMoved | None:
        """Write records; what refused one that is to be chosen anew. Raises other refusals."""
        if not submissions:
            return None
        self._written = True
        outcomes = self._parts.store.submit_many(list(submissions.values()))
        moved: TemplateMoved | None = None
        refusals: list[PrefillqError] = []
        for place, outcome in zip(submissions, outcomes, strict=True):
            match outcome:
                case Submitted():
                    self._submitted[place] = outcome
                case TemplateMoved():
                    moved = outcome
                case _:
                    refusals.append(outcome)
        if refusals:
            raise refusals[0]
        return moved

    def _found(self, wish: Wish) -> Submitted | None:
        if wish.idempotency_key is None or not usable_key(wish.idempotency_key):
            return None
        return self._parts.store.find(
            self._terms.address.tenant, wish.idempotency_key, self._input_digest(wish)
        )

    def _input_digest(self, wish: Wish) -> str:
        """Digest of what the caller asked for, not of the version it came to.

        So a retry under the same key finds its job also when a label has moved meanwhile.
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


def of_item(place: int, error: InvalidInput) -> InvalidInput:
    """The same error, of one of several jobs."""
    return InvalidInput(
        f"item {place}: {error.problem}",
        given=error.given,
        expected=error.expected,
        remedy=error.remedy,
    )
