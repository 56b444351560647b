"""What is asked of the peers, in which order, and what is made of the answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from bench.peers.driver import Peer
from bench.peers.measure import FEW, WORKLOADS, Sample, Workload, make_prompts, measure, tabulate
from bench.peers.protocol import Answer, Work

SHORT = Workload(name="a", prefix_len=5, suffix_len=3, new_tokens=4)


class Recorded:
    """Stands for a peer's process; keeps what it was asked."""

    def __init__(self, name: str, log: list[tuple[str, Work]]) -> None:
        self._name, self._log = name, log

    def run(self, work: Work, *, timeout_s: float) -> Answer:  # noqa: ARG002 - as it is called
        self._log.append((self._name, work))
        return Answer(seconds=1.0, token_ids=[[7] * work.max_new_tokens for _ in work.prompts])


def run(names: list[str], *, one_by_one: tuple[str, ...] = (), **given: Any) -> Any:
    log: list[tuple[str, Work]] = []
    peers = {name: cast("Peer", Recorded(name, log)) for name in names}
    samples = list(measure(peers, SHORT, one_by_one=one_by_one, vocabulary=1000, **given))
    return samples, log


def test_prompts_share_the_prefix_and_nothing_else() -> None:
    """All jobs of all turns begin alike, no suffix comes twice, and a seed repeats itself."""
    turns = [make_prompts(SHORT, 40, vocabulary=1000, seed=1, turn=turn) for turn in range(3)]
    prompts = [prompt for turn in turns for prompt in turn]
    assert {tuple(prompt[:5]) for prompt in prompts} == {tuple(prompts[0][:5])}
    assert len({tuple(prompt) for prompt in prompts}) == 120
    assert {len(prompt) for prompt in prompts} == {8}
    assert all(300 <= token < 1000 for prompt in prompts for token in prompt)
    assert turns[1] == make_prompts(SHORT, 40, vocabulary=1000, seed=1, turn=1)
    assert turns[1] != make_prompts(SHORT, 40, vocabulary=1000, seed=2, turn=1)


def test_peers_take_turns() -> None:
    """In a round all peers get the same prompts, and each round begins with another peer."""
    samples, log = run(["x", "y", "z"], batches=[2], rounds=3)
    assert [name for name, _ in log] == list("xyzyzxzxyxyz")
    assert [sample.peer for sample in samples] == list("yzxzxyxyz")
    for start in range(0, 12, 3):
        assert log[start][1] == log[start + 1][1] == log[start + 2][1]
    assert log[0][1].max_new_tokens == 2  # the unmeasured one
    assert {work.max_new_tokens for _, work in log[3:]} == {4}


def test_a_peer_without_batches_gets_a_few_jobs() -> None:
    """Its seconds per job are those of the first few, the same ones that others answer."""
    samples, log = run(["uncached", "y"], one_by_one=("uncached",), batches=[1, 8], rounds=1)
    jobs = {(sample.peer, sample.batch): sample.jobs for sample in samples}
    assert jobs == {("uncached", 1): 1, ("y", 1): 1, ("uncached", 8): FEW, ("y", 8): 8}
    by_peer = {name: work for name, work in log if len(work.prompts) > 1}
    assert by_peer["y"].prompts[:FEW] == by_peer["uncached"].prompts


def sample(peer: str, seconds: float, ids: list[list[int]], **changes: Any) -> Sample:
    made = Sample(
        peer=peer,
        workload="a",
        prefix_len=5,
        batch=len(ids),
        round=0,
        jobs=len(ids),
        seconds=seconds,
        prefill_s=None,
        token_ids=tuple(map(tuple, ids)),
        prompts=tuple((1, job) for job in range(len(ids))),
    )
    return replace(made, **changes)


def test_rows_are_medians_per_job() -> None:
    """Seconds are divided by the jobs of the timing, and the middle round is taken."""
    seconds = [sample("x", s, [[1], [2]], prefill_s=s / 2) for s in (2.0, 10.0, 4.0)]
    (row,) = tabulate(seconds, check=0, uncached=lambda _: pytest.fail("nothing to check"))
    assert row.seconds_per_job == (1.0, 5.0, 2.0)
    assert (row.median_s, row.prefill_s, row.checked) == (2.0, 1.0, 0)


def test_answers_are_compared_with_uncached() -> None:
    """Known answers are used, others asked for once, and only `check` of a timing count."""
    asked = []

    def uncached(prompt: tuple[int, ...]) -> tuple[int, ...]:
        asked.append(prompt)
        return (20,)

    rows = tabulate(
        [
            sample("uncached", 1.0, [[10]], batch=3),
            sample("x", 1.0, [[10], [20], [99]]),
            sample("x", 1.0, [[11], [20], [99]], round=1),
        ],
        check=2,
        uncached=uncached,
    )
    equal = {row.peer: (row.equal, row.checked) for row in rows}
    assert equal == {"uncached": (1, 1), "x": (3, 4)}
    assert asked == [(1, 1)]


def test_workload_lengths_fit_the_default_model() -> None:
    """Prefix, suffix and answer fit SmolLM2's 8192 positions."""
    for workload in (work for works in WORKLOADS.values() for work in works):
        assert workload.prefix_len + workload.own_len <= 8192
