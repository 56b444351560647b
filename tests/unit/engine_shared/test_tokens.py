"""How a job's tokens are chosen in a batch: as they are for it alone, in every engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from templates.spec import GenerationSpec
from tests.support.shared_engines import Watched, shared_engine, together
from tests.support.tiny_models import answer, key_for, random_ids, tiny_model
from worker.engine.base import Generation, GenerationRequest
from worker.engine.reference import ReferenceEngine
from worker.engine.shared.engine import SharedPrefixEngine
from worker.model import LoadedModel

PREFIX = random_ids(48, seed=1)
Engines = tuple[SharedPrefixEngine, Watched]
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.3, "top_k": 40, "top_p": 0.95, "seed": 7},
    {"temperature": 0.8, "seed": 8},
    {"temperature": 2.0, "top_p": 0.7, "seed": 9},
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 1.3, "temperature": 1.0, "top_k": 9, "seed": 10},
    {"min_new_tokens": 0},
    {"temperature": 1.5, "min_new_tokens": 3, "seed": 11},
]


def request(ids: tuple[int, ...], entry: Any = None, **generation: Any) -> GenerationRequest:
    spec = GenerationSpec(**({"max_new_tokens": 12, "min_new_tokens": 12} | generation))
    return GenerationRequest(ids=ids, generation=spec, entry=entry)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model()


@pytest.fixture(scope="module")
def reference(model: LoadedModel) -> ReferenceEngine:
    return ReferenceEngine(model)


@pytest.fixture
def engine(model: LoadedModel) -> Iterator[Engines]:
    engine, forward = shared_engine(model, chunk_tokens=20)
    with closing(engine):
        yield engine, forward


def test_a_seed_means_the_same_alone_and_in_any_company(
    engine: Engines, model: LoadedModel, reference: ReferenceEngine
) -> None:
    """Each of eight jobs that choose in eight ways has one answer: alone, in the reference
    engine, and among the seven others in any slot."""
    shared, forward = engine
    entry = shared.prefill(key_for(model), PREFIX)
    jobs = [(PREFIX + random_ids(3 + 4 * n, seed=n), kind) for n, kind in enumerate(KINDS)]
    plain = [reference.generate(request(ids, **kind)).token_ids for ids, kind in jobs]
    alone = [shared.generate(request(ids, entry, **kind)).token_ids for ids, kind in jobs]
    assert alone == plain
    assert len(set(plain)) == len(plain)
    rng = random.Random(5)
    for _ in range(3):
        order = rng.sample(range(8), 8)
        answers = together(
            shared, forward, [request(jobs[n][0], entry, **jobs[n][1]) for n in order]
        )
        assert [a.token_ids for a in answers] == [plain[n] for n in order]
        assert max(len(step.row_counts) for step in forward.steps) == 8


def test_repetition_penalty_sees_the_prefix(
    engine: Engines, model: LoadedModel, reference: ReferenceEngine
) -> None:
    """Case P5: the ids of the prefix, which are not computed again, count."""
    shared, _ = engine
    entry = shared.prefill(key_for(model), PREFIX)
    differing = 0
    for seed in range(4):
        job = PREFIX + random_ids(9, seed=seed)
        penalized = answer(reference, job, repetition_penalty=1.8).token_ids
        assert answer(shared, job, entry, repetition_penalty=1.8).token_ids == penalized
        differing += penalized != answer(shared, job, entry).token_ids
    assert differing


@pytest.mark.parametrize("length", [1, 2, 3])
def test_stop_string_across_token_borders(engine: Engines, length: int) -> None:
    """The answer ends with the token that completes it, the text before it; neighbours go on."""
    shared, forward = engine
    job = random_ids(9, seed=2)
    free = answer(shared, job, max_new_tokens=12, min_new_tokens=12)
    stop = free.text[4 : 4 + length]
    at = free.text.index(stop)
    stopped, other = together(
        shared, forward, [request(job, stop=("\N{EM DASH}", stop)), request(job)]
    )
    assert (stopped.finish_reason, stopped.text) == ("stop_string", free.text[:at])
    assert stopped.token_ids == free.token_ids[: at + length]
    assert (other.finish_reason, other.token_ids) == ("length", free.token_ids)


def test_any_end_of_sequence_id_ends(model: LoadedModel) -> None:
    """The first of several end ids ends the answer and is its last id; before min_new_tokens
    none is produced."""
    job = PREFIX + random_ids(9, seed=2)

    def ending_with(*eos_ids: int, least: int = 0) -> Generation:
        other = replace(model, folder=replace(model.folder, eos_ids=eos_ids))
        engine, _ = shared_engine(other)
        with closing(engine):
            return answer(engine, job, min_new_tokens=least)

    free = ending_with()
    early, late = free.token_ids[3], free.token_ids[9]
    at = min(free.token_ids.index(early), free.token_ids.index(late))
    assert len(free.token_ids) == 16
    ended = ending_with(late, early)
    assert (ended.token_ids, ended.finish_reason) == (free.token_ids[: at + 1], "stop")
    assert not {early, late} & set(ending_with(late, early, least=12).token_ids[:12])


def test_each_token_is_told_in_order(engine: Engines) -> None:
    """`on_token` gets all tokens, the one that ends the answer included, as they are chosen."""
    shared, forward = engine
    told: list[list[int]] = [[], []]
    jobs = [random_ids(5 + n, seed=n) for n in range(2)]
    steps: list[int] = []

    def tell(token: int) -> None:
        told[0].append(token)
        steps.append(len(forward.steps))

    first = replace(request(jobs[0], stop=(answer(shared, jobs[0]).text[3],)), on_token=tell)
    second = replace(request(jobs[1]), on_token=told[1].append)
    forward.steps.clear()
    answers = together(shared, forward, [first, second])
    assert [tuple(t) for t in told] == [a.token_ids for a in answers]
    assert steps == list(range(steps[0], steps[0] + len(steps)))  # one a step, not all at the end


def test_first_scores_only_when_asked(engine: Engines, reference: ReferenceEngine) -> None:
    """They are the raw ones, before any penalty."""
    shared, _ = engine
    job = replace(request(random_ids(9, seed=2), repetition_penalty=3.0), keep_scores=True)
    assert shared.generate(job).first_scores == pytest.approx(
        reference.generate(job).first_scores, rel=1e-4, abs=1e-4
    )
    assert shared.generate(request(random_ids(9, seed=2))).first_scores == ()
    labels = replace(job, choices=((7,), (8,)))
    assert shared.generate(labels).first_scores == pytest.approx(
        reference.generate(labels).first_scores, rel=1e-4, abs=1e-4
    )


def test_one_new_token(engine: Engines, reference: ReferenceEngine) -> None:
    """The shortest answer takes the prompt's step and no other."""
    shared, forward = engine
    job = random_ids(9, seed=2)
    one = answer(shared, job, max_new_tokens=1, min_new_tokens=1)
    assert one.token_ids == answer(reference, job, max_new_tokens=1, min_new_tokens=1).token_ids
    assert forward.tokens == [9]
