"""Answers from a list: probabilities are those of a full uncached forward, at a suffix's cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from contract.errors import InvalidInput
from templates.spec import GenerationSpec
from tests.support.labels import Choices, assert_labelled, plain_probabilities
from tests.support.shared_engines import Watched, shared_engine, together
from tests.support.tiny_models import answer, key_for, random_ids, undecided
from worker.engine.base import GenerationRequest
from worker.engine.reference import ReferenceEngine
from worker.engine.shared.engine import SharedPrefixEngine
from worker.model import LoadedModel
from worker.prefix.entry import PrefixEntry

PREFIX = random_ids(48, seed=1)
# First tokens differ; some are shared; one begins another; one is long, and the order is mixed.
DIFFERENT: Choices = ((10, 11, 12), (20,), (30, 31))
SHARED: Choices = ((10, 11), (10, 12, 13), (20,))
NESTED: Choices = ((10, 11), (10, 11, 12), (20,), (10,))
LONG: Choices = ((10, *range(40, 70)), (20,), (10, *range(50, 80)), (10, 9))
KINDS = [DIFFERENT, SHARED, NESTED, LONG]
KERNELS = ("transformers", "torch", "onednn", "native")


def request(
    ids: tuple[int, ...], choices: Choices | None, entry: PrefixEntry | None = None
) -> GenerationRequest:
    spec = GenerationSpec(max_new_tokens=4, min_new_tokens=4)
    return GenerationRequest(ids=ids, generation=spec, choices=choices, entry=entry)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return undecided()


@pytest.fixture(params=[7, 64])
def engine(
    model: LoadedModel, request: pytest.FixtureRequest
) -> Iterator[tuple[SharedPrefixEngine, Watched]]:
    """With chunks that end inside the suffix and inside the answers, and without."""
    engine, forward = shared_engine(model, chunk_tokens=request.param)
    with closing(engine):
        yield engine, forward


@pytest.mark.parametrize("choices", KINDS)
def test_probabilities_are_those_of_a_full_forward(
    engine: tuple[SharedPrefixEngine, Watched], model: LoadedModel, choices: Choices
) -> None:
    """Within 1e-4 in float32, on a prefix and without one; they add up, the likeliest is it."""
    shared, _ = engine
    entry = shared.prefill(key_for(model), PREFIX)
    for seed in range(3):
        job = PREFIX + random_ids(5 + 9 * seed, seed=seed)
        expected = plain_probabilities(model, job, choices)
        for given in (shared.generate(request(job, choices, entry)),
                      shared.generate(request(job, choices))):  # fmt: skip
            assert_labelled(given, choices, expected)
    assert entry.audit()


@pytest.mark.parametrize("architecture", ["qwen3", "mistral", "gemma2", "gpt2"])
@pytest.mark.parametrize("choices", [NESTED, LONG])
def test_probabilities_with_windows_and_learned_positions(
    architecture: str, choices: Choices
) -> None:
    """An answer's tokens stand right after the prompt, whatever lies beside them in memory."""
    model = undecided(architecture)
    engine, _ = shared_engine(model, chunk_tokens=20)
    job = PREFIX + random_ids(23, seed=4)
    with closing(engine):
        entry = engine.prefill(key_for(model), PREFIX)
        given = engine.generate(request(job, choices, entry))
    assert_labelled(given, choices, plain_probabilities(model, job, choices))


@pytest.mark.parametrize("kernels", KERNELS)
def test_labels_and_texts_in_one_batch(model: LoadedModel, kernels: str) -> None:
    """Labels of all kinds beside jobs that generate, with each way to compute."""
    engine, forward = shared_engine(model, kernels)
    reference = ReferenceEngine(model)
    with closing(engine):
        entry = engine.prefill(key_for(model), PREFIX)
        jobs = [PREFIX + random_ids(3 + n, seed=n) for n in range(5)]
        kinds = [SHARED, None, NESTED, DIFFERENT, None]
        answers = together(
            engine, forward, [request(j, k, entry) for j, k in zip(jobs, kinds, strict=True)]
        )
    for job, kind, given in zip(jobs, kinds, answers, strict=True):
        if kind is None:
            assert given.token_ids == reference.generate(request(job, None)).token_ids
        else:
            assert_labelled(given, kind, plain_probabilities(model, job, kind))


def test_different_first_tokens_take_one_forward_over_the_suffix(model: LoadedModel) -> None:
    """Nothing is computed but the ids beyond the prefix, once, and one position's scores."""
    engine, forward = shared_engine(model)
    with closing(engine):
        entry = engine.prefill(key_for(model), PREFIX)
        forward.steps.clear()
        engine.generate(request(PREFIX + random_ids(9, seed=1), DIFFERENT, entry))
    assert forward.tokens == [9]
    assert len(forward.steps[0].wanted) == 1


def test_shared_first_tokens_take_one_forward_too(model: LoadedModel) -> None:
    """The answers are read side by side, their last tokens not at all where no end counts."""
    engine, forward = shared_engine(model)
    with closing(engine):
        entry = engine.prefill(key_for(model), PREFIX)
        forward.steps.clear()
        engine.generate(request(PREFIX + random_ids(9, seed=1), SHARED, entry))
        engine.generate(request(PREFIX + random_ids(9, seed=1), NESTED, entry))
    assert forward.tokens == [9 + 1 + 2, 9 + 2 + 3 + 1 + 1]


def test_order_and_other_labels_change_nothing(model: LoadedModel) -> None:
    """A label's share does not depend on where it stands in the list."""
    engine, _ = shared_engine(model)
    job = random_ids(20, seed=3)
    with closing(engine):
        there = engine.generate(request(job, LONG)).choice_probabilities
        back = engine.generate(request(job, LONG[::-1])).choice_probabilities
    assert back[::-1] == pytest.approx(there, abs=1e-5)


def test_labels_that_cannot_be_told_apart_are_refused(model: LoadedModel) -> None:
    """By every engine, before anything is computed."""
    engine, forward = shared_engine(model)
    with closing(engine):
        for bad in ((), ((),), ((7, 8), (7, 8))):
            with pytest.raises(InvalidInput):
                engine.generate(request((4, 5), bad))
        assert forward.steps == []
        assert len(answer(engine, (4, 5)).token_ids) == 16
