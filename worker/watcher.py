"""What a worker tells of its work as it happens, for whoever counts. By default nobody does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from contract.job_store import Refusal
from contract.types import Job, Result

# How one attempt at a job came to its end in this worker.
AttemptEnd = Literal[
    "ended",  # the job has ended with it, whatever its status
    "tried_later",  # it failed for a reason that may pass, and another attempt follows
    "dead",  # it was the last one
    "returned",  # given back: the worker ends, or Redis would not serve it
    "lost",  # its lease was another's by the end, and what it computed was refused
    "given_up",  # its result could not be written for as long as a worker tries
]


class Watcher:
    """Hooks that do nothing. Called from threads that run jobs: to be quick, and not to raise."""

    def claim_refused(self, reason: Refusal) -> None:
        """A message rang for a job that is not to be run (now)."""

    def attempt_ended(self, end: AttemptEnd) -> None:
        """A claimed job is no longer this worker's."""

    def attempt_answered(self, job: Job, result: Result) -> None:
        """What an attempt came to, whether or not the job has ended with it."""

    def job_finished(self, result: Result) -> None:
        """A job has ended here; its result is written. Once per job."""

    def rung_again(self) -> None:
        """This worker's janitor rang for a job that may have lost its message."""

    def serving(self, templates: Iterable[tuple[str, str]]) -> None:
        """Tenants and names of all templates that are served from now on; every few seconds."""


class Watchers(Watcher):
    """Several as one, told in turn."""

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = watchers

    def claim_refused(self, reason: Refusal) -> None:
        for watcher in self._watchers:
            watcher.claim_refused(reason)

    def attempt_ended(self, end: AttemptEnd) -> None:
        for watcher in self._watchers:
            watcher.attempt_ended(end)

    def attempt_answered(self, job: Job, result: Result) -> None:
        for watcher in self._watchers:
            watcher.attempt_answered(job, result)

    def job_finished(self, result: Result) -> None:
        for watcher in self._watchers:
            watcher.job_finished(result)

    def rung_again(self) -> None:
        for watcher in self._watchers:
            watcher.rung_again()

    def serving(self, templates: Iterable[tuple[str, str]]) -> None:
        listed = list(templates)
        for watcher in self._watchers:
            watcher.serving(listed)
