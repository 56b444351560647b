"""What producers make of Redis's replies, without a Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, OutOfMemoryError, ResponseError

from contract.awaited import run_now
from contract.calls import Call, explained
from contract.errors import RedisRefused
from contract.ids import new_job_id
from contract.job_calls import JobCalls
from contract.settings import Settings
from contract.types import JobState

SETTINGS = Settings()
COMPARED = "user_script:64: attempt to compare nil with number script: 1f, on @user_script:64."
OF_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value script: 1f, on @u:9."


class Saying:
    """A server that gives these replies."""

    def __init__(self, *replies: Any) -> None:
        self._replies = replies

    async def ask_each(self, calls: Sequence[Call]) -> list[Any]:
        assert len(calls) == len(self._replies)
        return [explained(reply, SETTINGS) for reply in self._replies]


def _states(*replies: Any) -> list[JobState | None]:
    calls = JobCalls(Saying(*replies), SETTINGS)
    return run_now(calls.states([new_job_id("acme") for _ in replies]))


@pytest.mark.parametrize(
    "reply", [b"zzz", b"\xff", ResponseError(COMPARED), ResponseError(OF_TYPE)], ids=range(4)
)
def test_a_damaged_record_costs_no_other_its_state(reply: Any) -> None:
    """It counts as one that is not there; its own reader is told more."""
    assert _states(b"queued", reply, b"running") == [JobState.QUEUED, None, JobState.RUNNING]


@pytest.mark.parametrize(
    "error",
    [NoPermissionError, OutOfMemoryError, ResponseError],
    ids=["forbidden", "full", "other"],
)
def test_what_is_refused_for_another_reason_ends_no_job(error: type[Exception]) -> None:
    """It is so for all that is asked, and says nothing of a record."""
    with pytest.raises(RedisRefused, match="not now"):
        _states(b"queued", error("not now"))
