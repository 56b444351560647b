"""Jobs that a canary refuses before they are jobs: told to its rollout, whose gates would not see.

A job's outcome is written by whoever ends it; one that is refused at submit has no record. Were it
told nowhere, a version that takes half of what the stable one takes would look like a good one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from contract import keys
from contract.calls import Server, ask, command
from contract.errors import (
    CodecError,
    InvalidInput,
    NotFound,
    PrefillqError,
    QueueFull,
    SpecInvalid,
)
from contract.job_store import Submission
from contract.types import VersionRef
from producer.validate import VariablesChecker
from templates.rollouts.outcomes import OUTCOMES_TTL_S
from templates.target import Target
from templates.version import PublishedVersion

_KEPT = 20_000  # outcomes of a version, about: as contract/lua/common.lua has it


class OutcomeDesk(Protocol):
    """Where a refusal is told."""

    async def refused(self, ref: VersionRef, rollout: str) -> None: ...


class RefusedOutcomes:
    """In Redis: beside the outcomes of the version's jobs, as one that failed."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def refused(self, ref: VersionRef, rollout: str) -> None:
        key = keys.outcomes(ref.tenant, rollout, ref.digest)
        fields = ("s", "failed", "c", "", "t", "0", "n", "0", "e", "refused_input")
        await ask(
            self._server,
            command("XADD", key, "MAXLEN", "~", _KEPT, "*", *fields),
            command("PEXPIRE", key, OUTCOMES_TTL_S * 1000),
        )


class _Versions(Protocol):
    async def get(self, ref: VersionRef) -> PublishedVersion: ...


class Refusals:
    """Of one call, each of its items once. What goes wrong here hides no error of the submit."""

    def __init__(
        self, outcomes: OutcomeDesk | None, versions: _Versions, checker: VariablesChecker
    ) -> None:
        self._outcomes, self._versions, self._checker = outcomes, versions, checker
        self._told: set[int] = set()  # places of items

    async def of_input(
        self, place: int, target: Target, ref: VersionRef, variables: Mapping[str, Any]
    ) -> None:
        """Tell of variables that `ref` was to take, if it is the canary and it alone refuses."""
        if ref != target.canary:
            return
        with suppress(PrefillqError):
            refuses = not await self._takes(ref, variables)
            if refuses and await self._takes(target.stable, variables):
                await self._tell(place, target)

    async def of_queue(
        self, place: int, target: Target, submission: Submission, error: PrefillqError
    ) -> None:
        """Tell of a queue that is full for the canary, if the stable version's may be longer."""
        job, most = submission.job, submission.max_queue
        if job.ref != target.canary or most is None:
            return
        if not isinstance(error, QueueFull):
            return
        with suppress(PrefillqError):
            longer = (await self._versions.get(target.stable)).spec.limits.max_queue
            if longer is None or longer > most:
                await self._tell(place, target)

    async def _takes(self, ref: VersionRef, variables: Mapping[str, Any]) -> bool:
        try:
            self._checker.check_plain(await self._versions.get(ref), variables)
        except (NotFound, InvalidInput, SpecInvalid, CodecError):
            return False
        return True

    async def _tell(self, place: int, target: Target) -> None:
        if self._outcomes is None or target.rollout is None or target.canary is None:
            return
        if place not in self._told:
            self._told.add(place)
            await self._outcomes.refused(target.canary, target.rollout.id)
