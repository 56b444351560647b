"""The same jobs through several peers in turn, and what came of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench.peers.driver import Peer
from bench.peers.protocol import Answer, Ids, Work

# What a peer that takes jobs one by one is given of a batch: more would tell no more.
FEW = 3
# Ids from here up are ordinary text in every tokenizer at hand.
FIRST_ORDINARY = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs of one template; lengths in tokens."""

    name: str
    prefix_len: int
    suffix_len: int = 27
    new_tokens: int = 32

    @property
    def own_len(self) -> int:
        """What one job needs beyond the prefix."""
        return self.suffix_len + self.new_tokens


WORKLOADS: dict[str, tuple[Workload, ...]] = {
    "a": (Workload(name="a", prefix_len=671),),
    # The last is 8k as far as SmolLM2's 8192 positions go: the suffix and the answer need some.
    "c": tuple(Workload(name="c", prefix_len=length) for length in (1024, 2048, 4096, 8000)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timing of one peer on one batch."""

    peer: str
    workload: str
    prefix_len: int
    batch: int
    round: int
    jobs: int
    seconds: float  # of all jobs together
    prefill_s: float | None
    token_ids: tuple[tuple[int, ...], ...]
    prompts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: a peer on a workload at a batch size, over all rounds."""

    workload: str
    prefix_len: int
    batch: int
    peer: str
    jobs: int  # of one timing
    seconds_per_job: tuple[float, ...]  # wall seconds of the batch / jobs, one per round
    median_s: float
    prefill_s: float | None  # median per job until all had their first token, where it is known
    equal: int  # answers equal to uncached `generate`, of those checked
    checked: int


def make_prompts(
    workload: Workload, count: int, *, vocabulary: int, seed: int, turn: object
) -> list[Ids]:
    """Random ids: one prefix per workload and seed, other suffixes for every `turn`.

    No suffix comes twice, since a peer that keeps finished jobs would find it in its cache.
    """

    def ids(length: int, *of: object) -> Ids:
        numbers = random.Random(repr((seed, workload.prefix_len, *of)))
        return numbers.choices(range(FIRST_ORDINARY, vocabulary), k=length)

    prefix = ids(workload.prefix_len, "prefix")
    return [prefix + ids(workload.suffix_len, turn, job) for job in range(count)]


def measure(
    peers: dict[str, Peer],
    workload: Workload,
    batches: Sequence[int],
    rounds: int,
    *,
    one_by_one: Iterable[str],
    vocabulary: int,
    seed: int = 0,
    timeout_s: float = 1800.0,
) -> Iterator[Sample]:
    """Each round runs each batch through every peer; every round begins with another peer.

    Before a peer's first timing at a batch size it runs that size once, unmeasured.
    """
    few = set(one_by_one)
    order = list(peers)
    for turn in range(-1, rounds):
        for batch in batches:
            prompts = make_prompts(
                workload, batch, vocabulary=vocabulary, seed=seed, turn=(turn, batch)
            )
            for name in order:
                given = prompts[:FEW] if name in few else prompts
                warming = turn < 0
                work = Work(
                    prompts=given[:1] if warming and name in few else given,
                    prefix_len=workload.prefix_len,
                    max_new_tokens=2 if warming else workload.new_tokens,
                )
                answer = peers[name].run(work, timeout_s=timeout_s)
                if not warming:
                    yield _sample(name, workload, batch=batch, turn=turn, work=work, answer=answer)
        order = order[1:] + order[:1]


def _sample(
    peer: str, workload: Workload, *, batch: int, turn: int, work: Work, answer: Answer
) -> Sample:
    return Sample(
        peer=peer,
        workload=workload.name,
        prefix_len=workload.prefix_len,
        batch=batch,
        round=turn,
        jobs=len(work.prompts),
        seconds=answer.seconds,
        prefill_s=answer.prefill_s,
        token_ids=tuple(map(tuple, answer.token_ids)),
        prompts=tuple(map(tuple, work.prompts)),
    )


def tabulate(
    samples: Sequence[Sample],
    *,
    check: int,
    uncached: Callable[[tuple[int, ...]], tuple[int, ...]],
) -> list[Row]:
    """Medians over the rounds, with up to `check` answers of each timing compared.

    `uncached` gives the right answer to a prompt; answers of the uncached peer itself are known.
    """
    known = {
        prompt: ids
        for sample in samples
        if sample.peer == "uncached"
        for prompt, ids in zip(sample.prompts, sample.token_ids, strict=True)
    }
    groups: dict[tuple[int, int, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.prefix_len, sample.batch, sample.peer), []).append(sample)
    rows = []
    for (prefix_len, batch, peer), group in sorted(groups.items()):
        answers = [
            (prompt, ids)
            for sample in group
            for prompt, ids in list(zip(sample.prompts, sample.token_ids, strict=True))[:check]
        ]
        for prompt, _ in answers:
            if prompt not in known:
                known[prompt] = uncached(prompt)
        each = tuple(sample.seconds / sample.jobs for sample in group)
        first = [s.prefill_s / s.jobs for s in group if s.prefill_s is not None]
        rows.append(
            Row(
                workload=group[0].workload,
                prefix_len=prefix_len,
                batch=batch,
                peer=peer,
                jobs=group[0].jobs,
                seconds_per_job=each,
                median_s=median(each),
                prefill_s=median(first) if first else None,
                equal=sum(known[prompt] == ids for prompt, ids in answers),
                checked=len(answers),
            )
        )
    return rows
