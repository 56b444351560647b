"""The check that an entry gives what the uncached path gives, over many architectures."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.tiny_models import (
    ARCHITECTURES,
    POSITIONS,
    WINDOW,
    answer,
    key_for,
    random_ids,
    tiny_engine,
    tiny_model,
)
from worker.engine.base import PrefixMismatch, RequestTooLong
from worker.engine.fake import FakeEngine
from worker.engine.parity import check_parity
from worker.engine.reference import ReferenceEngine
from worker.prefix import tensors
from worker.prefix.entry import PrefixEntry

PREFIX = random_ids(64, seed=1)
JOB = PREFIX + random_ids(20, seed=2)
# transformers 5.24: their scan over several tokens starts from zero instead of the cached state.
LOSE_THEIR_STATE = ("jamba", "mamba")
HALF = (torch.bfloat16, torch.float16)


def prefilled(
    architecture: str = "llama", dtype: torch.dtype = torch.float32
) -> tuple[ReferenceEngine, PrefixEntry]:
    model = tiny_model(architecture, dtype=dtype)
    engine = ReferenceEngine(model)
    return engine, engine.prefill(key_for(model), PREFIX)


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES.keys() - set(LOSE_THEIR_STATE)))
def test_cached_output_is_identical(architecture: str) -> None:
    """Invariant: full, sliding (window 32, prefix 64), linear and hybrid caches all give the
    uncached tokens, for suffixes of several lengths, used one after the other."""
    assert len(PREFIX) > WINDOW
    engine, entry = prefilled(architecture)
    assert check_parity(engine, entry, JOB).outcome == "identical"
    outputs = set()
    for seed, length in enumerate((1, 2, 7, 40)):
        job = PREFIX + random_ids(length, seed=seed)
        plain = answer(engine, job)
        assert answer(engine, job, entry).token_ids == plain.token_ids
        outputs.add(plain.token_ids)
    assert len(outputs) == 4
    assert entry.audit()


@pytest.mark.parametrize("architecture", LOSE_THEIR_STATE)
@pytest.mark.parametrize("length", [2, 5, 25, 60])
def test_state_that_is_lost_is_never_silent(architecture: str, length: int) -> None:
    """Case P10: where the library continues wrongly the outcome is "differs", also for a long
    suffix that hides it; should a later library be right, it is "identical" with equal tokens."""
    engine, entry = prefilled(architecture)
    job = PREFIX + random_ids(length, seed=length)
    parity = check_parity(engine, entry, job)
    if parity.ok:
        assert answer(engine, job, entry).token_ids == answer(engine, job).token_ids
    else:
        assert parity.outcome == "differs"
    assert entry.audit()


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen3_next"])
def test_half_precision_is_within_tolerance(architecture: str, dtype: torch.dtype) -> None:
    """Case P21: in half precision the first scores lie within the stated share."""
    engine, entry = prefilled(architecture, dtype)
    for seed in range(3):
        parity = check_parity(engine, entry, PREFIX + random_ids(10, seed=seed), max_new_tokens=4)
        assert parity.ok
        assert parity.max_logit_error < 0.5


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("architecture", LOSE_THEIR_STATE)
def test_half_precision_finds_what_float32_finds(architecture: str, dtype: torch.dtype) -> None:
    """Case P21: a request whose long suffix hides a lost state does not get it through."""
    for length in (15, 25, 60):
        job = PREFIX + random_ids(length, seed=length)
        exact, half = (
            check_parity(*prefilled(architecture, kind), job, max_new_tokens=2)
            for kind in (torch.float32, dtype)
        )
        assert half.ok is exact.ok


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_still_finds_a_lost_state(dtype: torch.dtype) -> None:
    """Case P21: the tolerance is not so wide that a cache without its state gets through."""
    engine, entry = prefilled("llama", dtype)
    for layer in entry.kv.layers:
        layer.keys.zero_()
        layer.values.zero_()
    healthy_sum = replace(entry, checksum=tensors.checksum(entry.kv))
    assert healthy_sum.audit()
    assert check_parity(engine, healthy_sum, JOB).outcome == "differs"


def test_half_precision_near_tie_is_within_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case P21: other tokens with nearly the same scores pass in half precision only."""
    for dtype, outcome in ((torch.bfloat16, "within_tolerance"), (torch.float32, "differs")):
        engine, entry = prefilled("llama", dtype)
        generate = engine.generate

        def other_end(request: Any, generate: Any = generate) -> Any:
            made = generate(request)
            if request.entry is None or len(made.token_ids) < 3:
                return made
            return replace(made, token_ids=(*made.token_ids[:2], 0, *made.token_ids[3:]))

        monkeypatch.setattr(engine, "generate", other_end)
        parity = check_parity(engine, entry, JOB)
        assert (parity.outcome, parity.first_difference) == (outcome, 2)


def test_scores_decide_in_float32_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal tokens by luck do not pass when the scores are off."""
    engine, entry = prefilled()
    generate = engine.generate

    def shifted(request: Any) -> Any:
        made = generate(request)
        scores = tuple(score + 0.01 * (request.entry is not None) for score in made.first_scores)
        return replace(made, first_scores=scores)

    monkeypatch.setattr(engine, "generate", shifted)
    parity = check_parity(engine, entry, JOB)
    assert parity.outcome == "differs"
    assert parity.first_difference is None
    assert parity.max_logit_error == pytest.approx(0.01, rel=0.01)


def test_identical_is_reported_with_its_numbers() -> None:
    """The report says how much was compared."""
    engine, entry = prefilled()
    parity = check_parity(engine, entry, JOB, max_new_tokens=5)
    assert parity.ok
    assert (parity.outcome, parity.checked_tokens, parity.first_difference) == (
        "identical",
        5,
        None,
    )
    assert parity.max_logit_error < 1e-4
    assert parity.seconds > 0


def test_mutated_entry_differs() -> None:
    """Fault: an entry that somebody wrote into is found, even in its last bit."""
    engine, entry = prefilled()
    entry.kv.layers[0].values[0, 0, 0, 0] += 1e-6
    assert check_parity(engine, entry, JOB).outcome == "differs"


def test_fork_that_is_no_copy_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: when the first use writes into the entry, the check says so."""
    engine, entry = prefilled("qwen3_next")
    monkeypatch.setattr(tensors, "own_copy", lambda value: value)
    assert check_parity(engine, entry, JOB).outcome == "differs"
    assert not entry.audit()


def test_non_finite_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case P22: a version whose scores are NaN is not served from the cache."""
    engine, entry = prefilled()
    module: Any = engine._module
    head = module.lm_head.forward
    monkeypatch.setattr(module.lm_head, "forward", lambda hidden: head(hidden) * torch.nan)
    parity = check_parity(engine, entry, JOB)
    assert (parity.outcome, parity.ok) == ("non_finite", False)


def test_request_near_the_last_position_is_compared_as_far_as_it_goes() -> None:
    """Case P12: a prompt with room for one token is checked with one; without room it raises."""
    engine, entry = prefilled()
    last = PREFIX + random_ids(POSITIONS - 64 - 1, seed=3)
    parity = check_parity(engine, entry, last)
    assert (parity.outcome, parity.checked_tokens) == ("identical", 1)
    with pytest.raises(RequestTooLong):
        check_parity(engine, entry, (*last, 9))


def test_request_that_does_not_begin_with_the_prefix_is_an_error() -> None:
    """Comparing with the wrong request would prove nothing, so it raises."""
    engine, entry = prefilled()
    with pytest.raises(PrefixMismatch):
        check_parity(engine, entry, random_ids(84, seed=77))


def test_check_costs_two_short_and_two_whole_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What warming a version costs is known: four answers, one of each pair uncached."""
    engine, entry = prefilled()
    asked = itertools.count()
    generate = engine.generate
    monkeypatch.setattr(engine, "generate", lambda r: (next(asked), generate(r))[1])
    check_parity(engine, entry, JOB)
    assert next(asked) == 4


def test_fake_engine_passes() -> None:
    """The shipped fake can stand in where a version is warmed."""
    engine = FakeEngine()
    entry = engine.prefill(key_for(tiny_model()), PREFIX)
    assert check_parity(engine, entry, JOB).outcome == "identical"
    entry.kv["ids"] = ()
    assert check_parity(engine, entry, JOB).outcome == "differs"


def test_every_architecture_depends_on_its_prefix() -> None:
    """The models used here answer differently after another prefix; else nothing above counts."""
    for architecture in ARCHITECTURES:
        engine = tiny_engine(architecture)
        tail = random_ids(3, seed=5)
        answers = {answer(engine, random_ids(64, seed=s) + tail).token_ids for s in range(3)}
        assert len(answers) == 3, architecture
