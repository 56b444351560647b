"""What a seed comes to."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from tests.chaos.evidence import key_in
from tests.chaos.plan import FIRST_PRODUCER, Act, Kind, planned_deeds, planned_job


def test_same_seed_gives_the_same_run() -> None:
    """Jobs and deeds; another seed gives others."""
    jobs = [[planned_job(seed, "p", n) for n in range(50)] for seed in (1, 1, 2)]
    deeds = [planned_deeds(seed, seconds=60, every_s=1) for seed in (1, 1, 2)]
    for first, same, other in (jobs, deeds):
        assert first == same
        assert first != other


def test_jobs_of_a_producer_do_not_depend_on_those_before() -> None:
    """One that was killed plans the same job again."""
    assert planned_job(5, "p", 9) == planned_job(5, "p", 9)
    assert planned_job(5, "p", 9).note != planned_job(5, "q", 9).note


def test_first_jobs_are_of_every_kind() -> None:
    """Of one producer, so that the shortest run meets them all."""
    assert {planned_job(3, FIRST_PRODUCER, n).kind for n in range(len(Kind))} == set(Kind)


def test_keys_are_unique_and_stand_in_the_input() -> None:
    """A record in Redis tells by itself whose it is."""
    jobs = [planned_job(3, name, n) for name in ("p-1", "p-2") for n in range(200)]
    assert len({job.key for job in jobs}) == len(jobs)
    assert all(key_in(job.note) == job.key for job in jobs)


@pytest.mark.parametrize("seconds", [12.0, 25.0, 600.0])
def test_every_act_is_planned_even_in_a_short_run(seconds: float) -> None:
    """Each at least once, in order of time and within the run."""
    deeds = planned_deeds(11, seconds=seconds, every_s=1.5)
    assert {deed.act for deed in deeds} == set(Act)
    assert all(one.at_s < other.at_s for one, other in pairwise(deeds))
    assert deeds[-1].at_s <= seconds


def test_ten_minutes_have_two_hundred_kills() -> None:
    """As often as the record run asks."""
    acts = Counter(deed.act for deed in planned_deeds(1, seconds=660, every_s=1.2))
    assert acts[Act.KILL] >= 200
