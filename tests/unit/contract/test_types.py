"""Results survive the way to Redis and back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from contract.codec import pack, unpack
from contract.errors import JobFailed
from contract.types import (
    CacheInfo,
    CacheState,
    JobError,
    JobState,
    Result,
    Timings,
    Usage,
    VersionRef,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
counts = st.integers(0, 2**31)
seconds = st.floats(0, 1e6)
results = st.builds(
    Result,
    job_id=texts,
    ref=st.builds(VersionRef, tenant=texts, template=texts, version=counts, digest=texts),
    status=st.sampled_from(JobState),
    text=texts,
    choice=st.none() | texts,
    probabilities=st.dictionaries(texts, st.floats(0, 1), max_size=4),
    token_ids=st.lists(counts, max_size=20).map(tuple),
    finish_reason=st.sampled_from(["stop", "length", "error", "cancelled", "expired"]),
    usage=st.builds(Usage, prompt_tokens=counts, completion_tokens=counts, cached_tokens=counts),
    cache=st.builds(CacheInfo, state=st.sampled_from(CacheState), reason=texts),
    timings=st.builds(Timings, **dict.fromkeys(Timings.__slots__, seconds)),
    model=texts,
    device=texts,
    worker=texts,
    attempt=counts,
    batch_size=counts,
    error=st.none() | st.builds(JobError, code=texts, message=texts, remedy=texts),
)


@given(results)
def test_a_result_comes_back_equal(result: Result) -> None:
    """Through plain data and msgpack nothing changes, tuples and enums included."""
    assert Result.from_dict(unpack(pack(result.to_dict()))) == result


@given(results)
def test_usage_always_has_all_four_counts(result: Result) -> None:
    """Token counts have the OpenAI names, 0 included, and the total is the sum."""
    usage = result.to_dict()["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": result.usage.cached_tokens}


@given(results)
def test_a_newer_writer_may_time_more_stages(result: Result) -> None:
    """A timing that this version does not know is left out, not an error."""
    data = result.to_dict()
    data["timings"]["teleport_s"] = 1.0
    assert Result.from_dict(data) == result


@given(results)
def test_result_of_an_older_worker_has_no_probabilities(result: Result) -> None:
    """A result that was kept from before they were reported can still be read."""
    data = result.to_dict()
    del data["probabilities"]
    assert Result.from_dict(data) == replace(result, probabilities={})


@pytest.mark.parametrize("state", JobState)
def test_only_queued_and_running_jobs_have_not_ended(state: JobState) -> None:
    """`ended` is what waiting ends on."""
    assert state.ended == (state not in (JobState.QUEUED, JobState.RUNNING))


@given(results)
def test_job_failed_says_why_and_carries_the_result(result: Result) -> None:
    """The error holds the whole result and names the job, its state and the reason."""
    error = JobFailed(result)
    assert error.result is result
    assert error.exit_code == 8
    assert str(result.status) in str(error)
    if result.error is not None:
        assert result.error.message in str(error)
