"""A batch's tokens are those that each row would get alone from the reference's chooser."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.errors import InvalidInput
from templates.spec import GenerationSpec
from worker.engine.base import NonFiniteLogits
from worker.engine.sampling import TokenChooser, pick
from worker.engine.shared import sampler as module
from worker.engine.shared.sampler import BatchSampler, Chosen

CPU = torch.device("cpu")
VOCABULARY = 700  # no multiple of a block
EOS = (2, 650)
STEPS = 6

_FIELDS: list[dict[str, Any]] = [
    {},
    {"min_new_tokens": 4},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6, "min_new_tokens": 5},
]
_FIELDS += [
    {"temperature": temperature, "top_k": top_k, "top_p": top_p, **more}
    for temperature, top_k, top_p, more in itertools.product(
        (0.2, 1.0, 2.5),
        (0, 1, 65, 600, 1_000_000),
        (0.05, 0.9, 0.9999, 1.0),
        ({}, {"repetition_penalty": 1.3, "min_new_tokens": 3}),
    )
]
SPECS = [
    GenerationSpec(max_new_tokens=STEPS, seed=seed, **fields) for seed, fields in enumerate(_FIELDS)
]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small work takes longer when it is handed to several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def sampler(slots: int, *, vocabulary: int = VOCABULARY) -> BatchSampler:
    return BatchSampler(vocab_size=vocabulary, slots=slots, eos_ids=EOS, device=CPU)


def prompt(seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=1 + seed % 90)


def draw(kind: str, rows: int, seed: int) -> Tensor:
    """Scores like a sure model's, an unsure one's, rounded ones, and almost all of them equal."""
    normal = torch.randn((rows, VOCABULARY), generator=torch.Generator().manual_seed(seed))
    return {
        "sure": normal * 4,
        "unsure": normal * 0.3,
        "bfloat16": (normal * 2).bfloat16(),
        "float16": normal.half(),
        "ties": (normal * 0.7).round(),
    }[kind]


def run(
    batch: BatchSampler, scores: Sequence[Tensor], slots: Sequence[int], rows: Sequence[int]
) -> list[list[int]]:
    """The tokens of each slot over all steps; `rows` says which row of the scores a slot gets."""
    chosen = [batch.choose(step[list(rows)], slots) for step in scores]
    assert all(all(step.finite) for step in chosen)
    return [list(tokens) for tokens in zip(*(step.token_ids for step in chosen), strict=True)]


def alone(spec: GenerationSpec, ids: Sequence[int], scores: Sequence[Tensor]) -> list[int]:
    """What the reference's chooser makes of one row's scores [1, vocabulary] per step."""
    known = torch.tensor([list(ids)])
    choose = TokenChooser(spec, prompt=known, eos_ids=EOS)
    for step in scores:
        token = choose(known, step).argmax(dim=-1, keepdim=True)
        known = torch.cat([known, token], dim=1)
    produced: list[int] = known[0, len(ids) :].tolist()
    return produced


@pytest.mark.parametrize("kind", ["sure", "unsure", "bfloat16", "float16", "ties"])
def test_every_row_equals_the_reference(kind: str) -> None:
    """124 specs in one batch give, step by step, what each gives in the reference engine."""
    batch = sampler(len(SPECS))
    for slot, spec in enumerate(SPECS):
        batch.admit(slot, spec, prompt(slot))
    scores = [draw(kind, len(SPECS), seed=step) for step in range(STEPS)]
    everyone = range(len(SPECS))
    tokens = run(batch, scores, everyone, everyone)
    for slot, spec in enumerate(SPECS):
        own = [step[slot : slot + 1] for step in scores]
        assert tokens[slot] == alone(spec, prompt(slot), own), spec
    assert len(set(map(tuple, tokens))) > len(SPECS) // 2  # equal rows would prove little


@pytest.mark.parametrize("kind", ["unsure", "ties"])
def test_neighbours_and_order_change_nothing(kind: str) -> None:
    """A row gives the same tokens alone, among 31 others, and in another order of slots."""
    order = random.Random(7)
    chosen = order.sample(range(len(SPECS)), 32)
    scores = [draw(kind, 32, seed=step) for step in range(STEPS)]

    def together(slots: Sequence[int]) -> list[list[int]]:
        batch = sampler(40)
        for row, slot in enumerate(slots):
            batch.admit(slot, SPECS[chosen[row]], prompt(row))
        shuffled = order.sample(range(32), 32)
        tokens = run(batch, scores, [slots[row] for row in shuffled], shuffled)
        return [tokens[shuffled.index(row)] for row in range(32)]

    expected = []
    for row in range(32):
        single = sampler(1)
        single.admit(0, SPECS[chosen[row]], prompt(row))
        expected += run(single, scores, [0], [row])
    assert together(range(32)) == expected
    assert together(order.sample(range(40), 32)) == expected


def test_rows_that_come_and_go_change_nothing() -> None:
    """Jobs that join late, pause, or follow another job in a slot get their own tokens."""
    specs = random.Random(3).sample(SPECS, 24)
    scores = [draw("unsure", 24, seed=step) for step in range(STEPS)]
    batch = sampler(4)
    waiting, running = list(range(24)), dict[int, int]()  # slot to job
    produced: dict[int, list[int]] = {job: [] for job in waiting}
    order = random.Random(5)
    while waiting or running:
        for slot in range(4):
            if slot not in running and waiting and order.random() < 0.7:
                running[slot] = waiting.pop()
                batch.admit(slot, specs[running[slot]], prompt(running[slot]))
        now = [slot for slot in running if order.random() < 0.7]
        order.shuffle(now)
        rows = [scores[len(produced[running[s]])][running[s]] for s in now]
        stacked = torch.stack(rows) if rows else torch.empty(0, VOCABULARY)
        for slot, token in zip(now, batch.choose(stacked, now).token_ids, strict=True):
            produced[running[slot]].append(token)
            if len(produced[running[slot]]) == STEPS:
                batch.release(slot)
                del running[slot]
    for job in range(24):
        own = [step[job : job + 1] for step in scores]
        assert produced[job] == alone(specs[job], prompt(job), own), specs[job]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("whole", [True, False])
def test_rows_without_finite_scores_are_named(bad: float, whole: bool) -> None:
    """NaN, +inf and nothing but -inf are reported for that row; the others are as without it."""
    specs = random.Random(11).sample(SPECS, 16)
    healthy, broken = sampler(16), sampler(16)
    for slot, spec in enumerate(specs):
        healthy.admit(slot, spec, prompt(slot))
        broken.admit(slot, spec, prompt(slot))
    ill = set(range(0, 16, 3))
    for step in range(3):
        scores = draw("sure", 16, seed=step)
        expected = healthy.choose(scores, range(16))
        for row in ill:
            scores[row, slice(None) if whole else 100] = bad
        got = broken.choose(scores, range(16))
        usable = bad == -torch.inf and not whole  # one masked id is no fault
        assert got.finite == [usable or row not in ill for row in range(16)]
        assert all(0 <= token < VOCABULARY for token in got.token_ids)
        for row in set(range(16)) - ill:
            assert got.token_ids[row] == expected.token_ids[row]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e-40},
        {"temperature": 1e-40, "top_k": 5},
        {"temperature": 1e-40, "top_p": 0.5},
        {"repetition_penalty": 1e-40},
        {"min_new_tokens": 1},
    ],
)
def test_specs_that_leave_nothing_finite_are_named(fields: dict[str, Any]) -> None:
    """Where the settings overflow, or allow only masked ids, both engines say so."""
    spec = GenerationSpec(max_new_tokens=4, **fields)
    scores = torch.full((1, VOCABULARY), -torch.inf)
    scores[0, EOS[0]] = 9.0
    if "min_new_tokens" not in fields:
        scores[0, 5] = 10.0
    batch = sampler(2)
    batch.admit(0, spec, [EOS[0], 5])
    batch.admit(1, GenerationSpec(), [5])
    with pytest.raises(NonFiniteLogits):
        alone(spec, [EOS[0], 5], [scores])
    best = int(scores.argmax())
    got = batch.choose(scores.repeat(2, 1), [0, 1])
    assert (got.finite, got.token_ids[1]) == ([False, True], best)


def test_masked_ids_are_never_drawn() -> None:
    """Ids that the model puts at -inf stay out, whatever the temperature."""
    batch = sampler(3)
    limits: list[dict[str, Any]] = [{}, {"top_p": 0.999}, {"top_k": 690}]
    for slot, fields in enumerate(limits):
        batch.admit(slot, GenerationSpec(temperature=10, max_new_tokens=200, **fields), [1])
    scores = torch.full((3, VOCABULARY), -torch.inf)
    allowed = list(range(0, VOCABULARY, 90))
    scores[:, allowed] = torch.randn(3, len(allowed))
    seen = {t for _ in range(200) for t in batch.choose(scores, range(3)).token_ids}
    assert seen == set(allowed)


@pytest.mark.parametrize("vocabulary", [1, 2, 127, 128, 129, 300, 49152])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_is_the_first_of_the_highest(vocabulary: int, dtype: torch.dtype) -> None:
    """Among equal scores the lowest id wins, wherever blocks begin and end."""
    generator = torch.Generator().manual_seed(vocabulary)
    batch = sampler(16, vocabulary=vocabulary)
    for slot in range(16):
        batch.admit(slot, GenerationSpec(), [0])
    for step in range(6):
        scores = torch.randint(0, 3 + step * 20, (16, vocabulary), generator=generator).to(dtype)
        expected = [row.index(max(row)) for row in scores.tolist()]
        assert batch.choose(scores, range(16)) == Chosen(token_ids=expected, finite=[True] * 16)


@pytest.mark.parametrize("vocabulary", [1, 128, 129, 700])
def test_picking_by_blocks_is_picking(vocabulary: int) -> None:
    """The two steps find the place that one cumulative sum finds, also at its very borders."""
    generator = torch.Generator().manual_seed(vocabulary)
    weights = torch.rand((4, vocabulary), generator=generator).mul(2**34).round()
    weights[1] *= torch.rand(vocabulary, generator=generator) < 0.1
    weights[:, 0] += 1  # no row may be all zero
    summed = weights.cumsum(1, dtype=torch.float64)
    borders = (summed / summed[:, -1:]).T
    around = [borders, torch.nextafter(borders, borders * 0), torch.nextafter(borders, borders + 1)]
    for uniform in torch.cat(around).clamp(0, 1 - 2**-53):
        column = uniform[:, None].contiguous()
        ids = module._pick_among_all(weights, column)
        assert torch.equal(ids, pick(weights, column))
        assert bool((weights.gather(1, ids) > 0).all())


def test_scores_are_not_modified() -> None:
    """What the caller passed is as it was."""
    batch = sampler(len(SPECS))
    for slot, spec in enumerate(SPECS):
        batch.admit(slot, spec, prompt(slot))
    scores = draw("sure", len(SPECS), seed=1)
    before = scores.clone()
    batch.choose(scores, range(len(SPECS)))
    assert torch.equal(scores, before)


def test_penalty_counts_the_prompt_and_what_was_produced() -> None:
    """With equal scores each token is another one, and none is of the prompt."""
    batch = sampler(1)
    batch.admit(0, GenerationSpec(repetition_penalty=2, max_new_tokens=400), range(0, 300, 2))
    scores = torch.ones(1, VOCABULARY)
    tokens = [batch.choose(scores, [0]).token_ids[0] for _ in range(400)]
    free = [i for i in range(VOCABULARY) if i >= 300 or i % 2]
    assert tokens == free[:400]


def test_ends_wait_for_the_minimum() -> None:
    """Each of the end ids is refused exactly for the first `min_new_tokens` tokens."""
    scores = torch.zeros(1, VOCABULARY)
    scores[0, EOS[1]] = 2.0
    scores[0, 7] = 1.0
    batch = sampler(1)
    batch.admit(0, GenerationSpec(min_new_tokens=3), [1])
    assert [batch.choose(scores, [0]).token_ids[0] for _ in range(5)] == [7, 7, 7, EOS[1], EOS[1]]


def test_wrong_calls_are_refused_and_change_nothing() -> None:
    """Occupied, unknown and used-up slots and scores of another shape are named as such."""
    spec = GenerationSpec(temperature=1, max_new_tokens=2, seed=4)
    batch = sampler(2)
    batch.admit(0, spec, [1])
    scores = [draw("unsure", 1, seed=step) for step in range(2)]
    with pytest.raises(InvalidInput, match="free slot"):
        batch.admit(0, spec, [1])
    with pytest.raises(InvalidInput, match="free slot"):
        batch.admit(2, spec, [1])
    with pytest.raises(InvalidInput, match="without a job"):
        batch.choose(scores[0].repeat(2, 1), [0, 1])
    with pytest.raises(InvalidInput, match="one row of scores"):
        batch.choose(scores[0], [0, 0])
    with pytest.raises(InvalidInput, match="needs a prompt"):
        batch.admit(1, GenerationSpec(repetition_penalty=2), [])
    assert run(batch, scores, [0], [0]) == [alone(spec, [1], scores)]
    with pytest.raises(InvalidInput, match="all its tokens"):
        batch.choose(scores[0], [0])
    batch.release(0)
    batch.release(0)
    batch.admit(0, spec, [1])
    assert run(batch, scores, [0], [0]) == [alone(spec, [1], scores)]


def test_greedy_job_inherits_nothing_from_a_slot() -> None:
    """A plain job in the slot of one that sampled and penalized takes the highest score."""
    batch = sampler(1)
    scores = draw("unsure", 1, seed=0)
    best = int(scores.argmax())
    batch.admit(0, GenerationSpec(temperature=2, repetition_penalty=9), [best])
    batch.choose(scores, [0])
    batch.release(0)
    batch.admit(0, GenerationSpec(), [best])
    assert batch.choose(scores, [0]).token_ids == [best]
