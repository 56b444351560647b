"""Following an answer while it is written: entries are read, and the record decides the end.

Entries are asked for again and again, in pipelines that all followers share, and not with a
blocking XREAD: that would hold a connection for each stream.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from contract.awaited import Sleep
from contract.errors import Conflict, TimedOut
from contract.job_calls import JobDesk
from contract.job_store import JobView
from contract.pieces import BEGIN, Piece, PieceReader, check_entry, entry_gone
from contract.types import Result
from producer.patience import Patience, time_left

T = TypeVar("T")

ASK_S = 0.04  # between looks for new entries: a few tokens' time
LONGEST_ASK_S = 0.25  # while nothing comes
STATE_S = 1.0  # between looks at the record while nothing comes
_LIMIT = 256  # entries at once


async def follow(
    jobs: JobDesk,
    job_id: str,
    *,
    after: str | None,
    timeout: float | None,  # noqa: ASYNC109 - a timeout of ours says what was waited for
    patience: Patience,
    sleep: Sleep,
) -> AsyncGenerator[Piece, None]:
    """The pieces of a job's answer, at last its end; those after the entry `after`, if given.

    Raises NotFound without a record or for an entry that is gone, Conflict when the job was
    submitted without `stream`, TimedOut, and RedisUnreachable when patience has ended.
    """
    place = BEGIN if after is None else check_entry(after)

    left = time_left(timeout)
    ask = _Asking(patience, sleep, left)

    async def look() -> JobView:
        return await jobs.get(job_id)

    view = await ask(look)
    if not view.job.stream:
        raise _not_streamed(job_id)
    reader = PieceReader()
    if place != BEGIN:
        reader = await ask(lambda: _resumed(jobs, job_id, place))
    pause, state_at = ASK_S, time.monotonic() + STATE_S
    result: Result | None = view.result
    while True:
        entries = await ask(
            lambda after=place: jobs.pieces(job_id, after, limit=_LIMIT)  # type: ignore[misc]
        )
        fence = reader.fence
        for entry in entries:
            place, pause = entry.id, ASK_S
            for piece in reader.read(entry):
                yield piece
        if result is not None and 0 < fence < reader.fence:
            # It may be that of a dead job, which was revived after the look at the record.
            result = (await ask(look)).result
        if entries and not reader.ended:
            state_at = time.monotonic() + STATE_S
            if len(entries) == _LIMIT or result is not None:
                continue
        elif result is not None:
            # Nothing is left in the stream, also when it ended without saying so.
            for piece in reader.finish(result):
                yield piece
            return
        if reader.ended or (result is None and time.monotonic() >= state_at):
            result = (await ask(look)).result
            state_at = time.monotonic() + STATE_S
            if result is not None:
                continue
        _check_time(job_id, left())
        await sleep(pause)
        pause = min(LONGEST_ASK_S, pause * 1.2)


@dataclass(frozen=True, slots=True)
class _Asking:
    """Tries again for as long as patience and the timeout last."""

    patience: Patience
    sleep: Sleep
    left: Callable[[], float | None]

    async def __call__(self, act: Callable[[], Awaitable[T]]) -> T:
        until = self.patience.until(self.left())
        return await self.patience.wait_for(act, sleep=self.sleep, until=until)


async def _resumed(jobs: JobDesk, job_id: str, place: str) -> PieceReader:
    entry = await jobs.piece(job_id, place)
    if entry is None:
        raise entry_gone(job_id, place)
    return PieceReader(entry)


def _check_time(job_id: str, left_s: float | None) -> None:
    if left_s == 0:
        raise TimedOut(
            "the stream has not ended in time",
            given=job_id,
            remedy="The job goes on: read on after the last piece's entry.",
        )


def _not_streamed(job_id: str) -> Conflict:
    return Conflict(
        "this job's answer is not written piece by piece",
        given=job_id,
        expected="a job submitted with stream=True or --stream",
        remedy="Wait for its result.",
    )
