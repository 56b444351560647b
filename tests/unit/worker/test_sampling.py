"""The reference's chooser draws from the distribution that Transformers' warpers leave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from templates.spec import GenerationSpec
from worker.engine.sampling import TokenChooser, keep_top_p, pick, uniforms, weigh

VOCABULARY = 400
PROMPT = torch.tensor([[1, 2, 3]])


def normal(seed: int, rows: int = 1) -> Tensor:
    return torch.randn((rows, VOCABULARY), generator=torch.Generator().manual_seed(seed))


def nucleus(scores: Tensor, top_p: float) -> Tensor:
    """True where `keep_top_p` leaves a token."""
    weights = weigh(scores, scores.amax(dim=1, keepdim=True))
    total = weights.sum(1, keepdim=True, dtype=torch.float64)
    return keep_top_p(scores, weights, top_p * total) > 0


def warped(scores: Tensor, *, temperature: float, top_k: int, top_p: float) -> Tensor:
    warpers: Any = [TemperatureLogitsWarper(temperature)]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    for warper in warpers:
        scores = warper(PROMPT, scores)
    return scores.double().softmax(dim=1)


def test_uniforms_of_a_seed_stay_what_they_are() -> None:
    """A seed gives the same text in every release, and a longer job begins like a shorter one."""
    assert uniforms(0, 3).tolist() == [0.9700530018065531, 0.707819864399788, 0.45938294312745087]
    for count in (1, 2, 15, 16, 17, 100):
        assert torch.equal(uniforms(5, count), uniforms(5, 200)[:count])
    assert not torch.equal(uniforms(5, 3), uniforms(6, 3))


def test_drawing_leaves_the_global_generator_alone() -> None:
    """Neither is it moved, nor does it matter where it stands."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = uniforms(7, 4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(uniforms(7, 4), first)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
        {"temperature": 0.5, "top_k": 0, "top_p": 0.9},
        {"temperature": 1.7, "top_k": 40, "top_p": 1.0},
        {"temperature": 0.8, "top_k": 40, "top_p": 0.6},
    ],
)
def test_tokens_come_as_often_as_the_warpers_say(settings: dict[str, Any]) -> None:
    """Over an even grid of uniforms each token is chosen in proportion to its probability."""
    scores = normal(3) * 3
    spec = GenerationSpec(max_new_tokens=600, **settings)
    choose = TokenChooser(spec, prompt=PROMPT, eos_ids=())
    choose._uniforms = (torch.arange(600, dtype=torch.float64) + 0.5) / 600
    counts = torch.zeros(VOCABULARY)
    for step in range(600):
        ids = torch.cat([PROMPT, torch.zeros((1, step), dtype=torch.long)], dim=1)
        counts[choose(ids, scores).argmax()] += 1
    expected = warped(scores, **settings)[0] * 600
    assert float((counts - expected).abs().max()) < 1.001


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.9, 0.999])
def test_nucleus_is_the_warpers(top_p: float) -> None:
    """For scores that all differ the tokens left are exactly those of TopPLogitsWarper."""
    for scale in (0.1, 1.0, 6.0):
        scores = normal(int(scale * 10), rows=50) * scale
        assert torch.equal(
            nucleus(scores, top_p), TopPLogitsWarper(top_p)(PROMPT, scores) > -torch.inf
        )


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9])
def test_nucleus_with_ties_is_the_warpers_but_for_the_choice_among_equals(top_p: float) -> None:
    """As many of each score are left as by the warper, and of equal ones the higher ids."""
    scores = (normal(8, rows=20) * 2).round()
    kept = nucleus(scores, top_p)
    theirs = TopPLogitsWarper(top_p)(PROMPT, scores) > -torch.inf
    for row in range(20):
        for value in set(scores[row].tolist()):
            mine = kept[row][scores[row] == value].tolist()
            assert sum(mine) == int(theirs[row][scores[row] == value].sum())
            assert mine == sorted(mine)


def test_nucleus_always_has_a_token() -> None:
    """However small top_p is, the likeliest token stays."""
    assert nucleus(normal(1), 1e-9).sum() == 1
    assert nucleus(torch.zeros(1, VOCABULARY), 1e-9).nonzero().tolist() == [[0, VOCABULARY - 1]]


def test_pick_takes_the_first_place_beyond_the_uniform() -> None:
    """A border belongs to the place above it; places of weight 0 are passed over."""
    weights = torch.tensor([[0.0, 1.0, 0.0, 1.0, 2.0, 0.0]])
    at = {0.0: 1, 0.24: 1, 0.25: 3, 0.49: 3, 0.5: 4, 1 - 2**-53: 4}
    for uniform, place in at.items():
        assert pick(weights, torch.tensor([[uniform]], dtype=torch.float64)).item() == place


def test_sums_of_weights_are_exact() -> None:
    """So many equal scores as any vocabulary has add up the same forwards and backwards."""
    scores = torch.rand((1, 2**18), generator=torch.Generator().manual_seed(2))
    weights = weigh(scores, scores.amax(dim=1, keepdim=True))
    forwards = weights.cumsum(1, dtype=torch.float64)[0, -1]
    backwards = weights.flip(1).cumsum(1, dtype=torch.float64)[0, -1]
    assert forwards == backwards == weights.long().sum()


def test_each_token_takes_its_own_uniform() -> None:
    """The i-th new token is drawn with the i-th number, also if a step is asked for again."""
    spec = GenerationSpec(temperature=1, max_new_tokens=5, seed=9)
    choose = TokenChooser(spec, prompt=PROMPT, eos_ids=())
    scores = normal(4)
    steps = [torch.cat([PROMPT, torch.zeros((1, n), dtype=torch.long)], dim=1) for n in range(5)]
    tokens = [int(choose(ids, scores).argmax()) for ids in steps]
    summed = scores.double().softmax(1).cumsum(1)[0]
    assert tokens == [int((summed > u).nonzero()[0]) for u in uniforms(9, 5)]
    assert [int(choose(ids, scores).argmax()) for ids in reversed(steps)] == tokens[::-1]
