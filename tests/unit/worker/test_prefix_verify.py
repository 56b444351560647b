"""The check that cached ids are really a job's first ids."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st

from worker.prefix.verify import verify_prefix

PREFIX = tuple(range(100, 164))
IDS = st.lists(st.integers(0, 3), max_size=12)


def test_exact_prefix_with_one_token_beyond_is_accepted() -> None:
    """One token beyond the prefix is enough."""
    assert verify_prefix(PREFIX, (*PREFIX, 7)) == ""


def test_nothing_beyond_the_prefix() -> None:
    """Case P1: a prefix that is the whole request leaves no token to compute, so it is refused."""
    assert verify_prefix(PREFIX, PREFIX) == "nothing_beyond_prefix=64"


def test_request_shorter_than_prefix() -> None:
    """Case P2: a request shorter than the prefix is refused with both lengths."""
    assert verify_prefix(PREFIX, PREFIX[:40]) == "request_shorter_than_prefix=40<64"


@pytest.mark.parametrize("at", [0, 17, 63])
def test_one_id_differs(at: int) -> None:
    """Case P3: one wrong id is found, wherever it is, and its place is named."""
    job = [*PREFIX, 1, 2, 3]
    job[at] += 1
    assert verify_prefix(PREFIX, job) == f"ids_differ_at={at}"


def test_lists_and_tuples_compare_by_value() -> None:
    """The kind of sequence does not matter."""
    assert verify_prefix(list(PREFIX), (*PREFIX, 1)) == ""


@given(prefix=IDS, job=IDS)
def test_accepts_exactly_the_proper_prefixes(prefix: list[int], job: list[int]) -> None:
    """The answer is "" if and only if the prefix is a proper prefix of the job."""
    proper = len(prefix) < len(job) and job[: len(prefix)] == prefix
    assert (verify_prefix(prefix, job) == "") is proper


def test_eight_thousand_ids_take_well_under_a_millisecond_each() -> None:
    """The check runs on every job, so it must cost nothing beside a token."""
    prefix = tuple(range(1000, 9000))
    job = (*prefix, 1)
    best = min(_seconds(prefix, job) for _ in range(20))
    assert best < 0.002


def _seconds(prefix: tuple[int, ...], job: tuple[int, ...]) -> float:
    started = time.perf_counter()
    assert verify_prefix(prefix, job) == ""
    return time.perf_counter() - started
