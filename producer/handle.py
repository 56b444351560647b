"""A job as its producer sees it: an id, and what can be asked about it."""

from __future__ import annotations

from collections.abc import Iterator

from contract.awaited import run_now
from contract.errors import JobFailed
from contract.job_store import JobStore, JobView
from contract.pieces import Piece
from contract.types import JobState, Result
from producer.desk import StoreDesk
from producer.following import follow
from producer.notices import Watcher
from producer.patience import NONE, Patience, blocking_sleep, time_left


def succeeded(result: Result) -> Result:
    """The result. Raises JobFailed for another end."""
    if result.status is not JobState.SUCCEEDED:
        raise JobFailed(result)
    return result


class JobHandle:
    """Cheap: holds nothing but the id. Two handles of one job are equal."""

    __slots__ = ("_patience", "_store", "_watcher", "id")

    def __init__(
        self, job_id: str, store: JobStore, watcher: Watcher, patience: Patience = NONE
    ) -> None:
        self.id = job_id
        self._patience = patience
        self._store = store
        self._watcher = watcher

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the job's answer, at most `timeout` seconds (None: no limit).

        Raises JobFailed, whose `.result` is the whole Result, when the job failed, was cancelled
        or expired; TimedOut when it goes on; NotFound when there is no record (any more).
        """
        return succeeded(self.outcome(timeout))

    def outcome(self, timeout: float | None = None) -> Result:
        """As `result`, but a job that failed, was cancelled or expired is returned, not raised."""
        left = time_left(timeout)
        view = self._view(left())
        while view.result is None:
            for _ in self._watcher.ended([self.id], left()):
                pass
            view = self._view(left())
        return view.result

    def stream(self, *, after: str | None = None, timeout: float | None = None) -> Iterator[Piece]:
        """The answer while it is written: pieces of text, a restart where another attempt begins
        the text anew, and last an end, after which the result is there.

        The texts since the last restart, joined, are the result's text. `after` is the `entry` of a
        piece that was read before. Leaving the loop cancels nothing.

        Raises Conflict for a job submitted without `stream`, NotFound without a record or for an
        entry that is gone, TimedOut after `timeout` seconds.
        """
        pieces = follow(
            StoreDesk(self._store),
            self.id,
            after=after,
            timeout=timeout,
            patience=self._patience,
            sleep=blocking_sleep,
        )
        try:
            while True:
                yield run_now(pieces.__anext__())
        except StopAsyncIteration:
            return
        finally:
            run_now(pieces.aclose())

    def status(self) -> JobState:
        """Where the job is now. Raises NotFound."""
        return self.view().state

    def view(self) -> JobView:
        """The whole record. Raises NotFound."""
        return self._view(None)

    def _view(self, at_most_s: float | None) -> JobView:
        return self._patience.call(
            lambda: self._store.get(self.id), until=self._patience.until(at_most_s)
        )

    def cancel(self) -> JobState:
        """End the job if it is queued, ask it to stop if it runs; the state tells which.

        Raises Conflict when it has ended, NotFound when there is no record.
        """
        return self._store.cancel(self.id)

    def score(self, name: str, value: float) -> None:
        """Say how good the answer is: a number under a name; the last one of a name counts.

        Raises InvalidInput for what is no name or number, NotFound, and Conflict when the job has
        not succeeded or has scores under 16 other names.
        """
        self._patience.call(lambda: self._store.score(self.id, name, value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"
