"""Nothing of one job is in another's answer, whatever happens to either."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor

from templates.spec import GenerationSpec
from tests.support.shared_engines import PLUG_IDS, Watched, ask, shared_engine, together
from tests.support.tiny_models import VOCABULARY, answer, key_for, random_ids, tiny_model
from worker.engine.base import Generation, GenerationRequest, NonFiniteLogits
from worker.engine.reference import ReferenceEngine
from worker.engine.shared.batch import Batch
from worker.engine.shared.engine import SharedPrefixEngine
from worker.engine.shared.sampler import BatchSampler
from worker.model import LoadedModel
from worker.prefix.entry import PrefixEntry

POISON = VOCABULARY - 1  # an id whose embedding is NaN in the poisoned model
KERNELS = ("transformers", "torch", "onednn", "native")


def clean_ids(count: int, seed: int) -> tuple[int, ...]:
    return tuple(i if i != POISON else 5 for i in random_ids(count, seed=seed))


PREFIX = clean_ids(48, seed=1)


def request(ids: tuple[int, ...], entry: PrefixEntry | None = None, **fields: Any) -> Any:
    spec = GenerationSpec(max_new_tokens=6, min_new_tokens=6)
    return GenerationRequest(**({"ids": ids, "generation": spec, "entry": entry} | fields))


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model()


@pytest.fixture(scope="module")
def poisoned() -> LoadedModel:
    """One id's embedding is NaN, and that id is never generated."""
    model = tiny_model()
    module: Any = model.module
    with torch.no_grad():
        module.model.embed_tokens.weight[POISON] = torch.nan
        module.lm_head.weight[POISON] = 0
    return model


@pytest.fixture
def engine(model: LoadedModel) -> Iterator[tuple[SharedPrefixEngine, Watched]]:
    engine, forward = shared_engine(model)
    with closing(engine):
        yield engine, forward


def test_each_job_reads_its_own_marker_only(model: LoadedModel) -> None:
    """Invariant: jobs of two versions with a marker id each, in shuffled batches and with
    failures among them, give what they give alone; the marker of another changes nothing."""
    engine, forward = shared_engine(model, rows=5, chunk_tokens=20)
    reference = ReferenceEngine(model)
    prefixes = (PREFIX, random_ids(33, seed=9))
    made = []
    for n in range(12):
        marked = [*random_ids(4 + 5 * n, seed=20)]
        marked[2] = 30 + n  # all that tells the jobs of a length's beginning apart
        made.append((n % 2, tuple(marked)))
    alone = [reference.generate(request(prefixes[v] + tail)).token_ids for v, tail in made]
    assert len(set(alone)) == len(alone)
    rng = random.Random(3)

    def spoil(batch: Batch) -> None:
        if batch.ids.tolist() != PLUG_IDS and rng.random() < 0.08:
            raise RuntimeError("the device is on fire")

    with closing(engine):
        entries = [
            engine.prefill(key_for(model, digest=f"v{v}"), p) for v, p in enumerate(prefixes)
        ]

        forward.before = spoil
        failed = right = 0
        for _ in range(4):
            order = rng.sample(range(12), 12)
            requests = [
                request(prefixes[made[n][0]] + made[n][1], entries[made[n][0]]) for n in order
            ]
            answers = together(engine, forward, requests)
            for n, given in zip(order, answers, strict=True):
                if isinstance(given, Generation):
                    assert given.token_ids == alone[n]
                    right += 1
                else:
                    assert "on fire" in str(given)
                    failed += 1
            assert all(entry.audit() for entry in entries)
    assert failed > 5
    assert right > 5


def test_entries_are_unchanged_after_every_job(model: LoadedModel) -> None:
    """Invariant: one read-only copy, whatever ran on it: answers, labels, cancels and errors."""
    engine, forward = shared_engine(model, chunk_tokens=20)

    def explode(_token: int) -> None:
        raise ValueError("mine")

    with closing(engine):
        entry = engine.prefill(key_for(model), PREFIX)
        kinds: list[dict[str, Any]] = [
            {},
            {"choices": ((7, 8), (7, 9), (7,))},
            {"should_stop": lambda: "cancelled"},
            {"on_token": explode},
        ]
        for n, kind in enumerate(kinds):
            job = request(PREFIX + random_ids(30, seed=n), entry, **kind)
            together(engine, forward, [job])
            assert entry.audit()
            assert entry.kv.get_seq_length() == len(PREFIX)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("bad_at", [0, 1, 2])
def test_row_with_nan_fails_alone(poisoned: LoadedModel, kernels: str, bad_at: int) -> None:
    """Case P22: NaN in one row fails that row; those beside it in the same steps, of any length,
    give what they give alone."""
    engine, forward = shared_engine(poisoned, kernels, chunk_tokens=200)
    tails = [clean_ids(count, seed=count) for count in (3, 40, 3, 33, 1)]
    with closing(engine):
        entry = engine.prefill(key_for(poisoned), PREFIX)
        jobs = [PREFIX + tail for tail in tails]
        alone = [answer(engine, job, entry, max_new_tokens=6, min_new_tokens=6) for job in jobs]
        bad = (*PREFIX, *clean_ids(2, seed=1), POISON, *clean_ids(37 * bad_at, seed=2))
        order = [*jobs[:bad_at], bad, *jobs[bad_at:]]
        answers = together(engine, forward, [request(job, entry) for job in order])
        assert max(len(step.row_counts) for step in forward.steps) == len(order)
        assert entry.audit()
    assert isinstance(answers.pop(bad_at), NonFiniteLogits)
    assert [a.token_ids if isinstance(a, Generation) else a for a in answers] == [
        a.token_ids for a in alone
    ]


@pytest.mark.parametrize("kernels", KERNELS)
def test_next_row_in_the_same_blocks_is_not_poisoned(poisoned: LoadedModel, kernels: str) -> None:
    """Case P22: blocks are wiped when a row leaves them with NaN, also in the middle of a
    prefill or of labels; the next that gets them is right."""
    engine, _ = shared_engine(poisoned, kernels, blocks=2, chunk_tokens=20)
    calls = iter([None, None, "cancelled"])
    bad: list[dict[str, Any]] = [
        {"ids": (*clean_ids(40, seed=1), POISON)},
        {"ids": (POISON, *clean_ids(50, seed=1)), "should_stop": lambda: next(calls)},
        {"ids": clean_ids(9, seed=1), "choices": ((7, POISON, 3), (7, 9))},
    ]
    good = clean_ids(4, seed=2)
    with closing(engine):
        expected = answer(engine, good, max_new_tokens=6, min_new_tokens=6).token_ids
        for fields in bad:
            try:
                ended = engine.generate(request(**fields))
            except NonFiniteLogits:
                pass
            else:
                assert ended.finish_reason == "cancelled"
            assert answer(engine, good, max_new_tokens=6, min_new_tokens=6).token_ids == expected
            with pytest.raises(NonFiniteLogits):
                engine.prefill(key_for(poisoned), (*clean_ids(5, seed=3), POISON))
            assert answer(engine, good, max_new_tokens=6, min_new_tokens=6).token_ids == expected


def test_nan_in_mid_decode_fails_its_row_alone(
    model: LoadedModel, engine: tuple[SharedPrefixEngine, Watched]
) -> None:
    """Case P22: scores that turn NaN at the third token; the others go on to their ends."""
    shared, forward = engine
    jobs = [random_ids(5 + n, seed=n) for n in range(3)]
    alone = [answer(shared, job, max_new_tokens=6, min_new_tokens=6).token_ids for job in jobs]
    forward.steps.clear()

    def spoil(batch: Batch, scores: Tensor) -> Tensor:
        if len(scores) == 3 and len(batch.ids) == 3 and batch.positions.tolist() == [7, 8, 9]:
            scores[1] = torch.nan
        return scores

    forward.after = spoil
    first, second, third = together(shared, forward, [request(job) for job in jobs])
    assert isinstance(second, NonFiniteLogits)
    assert isinstance(first, Generation)
    assert isinstance(third, Generation)
    assert (first.token_ids, third.token_ids) == (alone[0], alone[2])


@pytest.mark.parametrize(
    ("hook", "labels"), [("on_token", False), ("should_stop", False), ("should_stop", True)]
)
def test_error_of_a_jobs_own_hook_is_that_jobs(
    engine: tuple[SharedPrefixEngine, Watched], hook: str, labels: bool
) -> None:
    """What a caller's function raises comes back to that caller, and to nobody else."""
    shared, forward = engine
    calls = iter(range(100))

    def explode(*_: Any) -> None:
        if labels or next(calls) == 2:
            raise ValueError("mine")

    jobs = [random_ids(5 + n, seed=n) for n in range(3)]
    alone = [answer(shared, job, max_new_tokens=6, min_new_tokens=6).token_ids for job in jobs]
    fields: dict[str, Any] = {hook: explode}
    if labels:
        fields["choices"] = ((7,), (8,))
    requests = [request(jobs[0]), request(jobs[1], **fields), request(jobs[2])]
    first, second, third = together(shared, forward, requests)
    assert isinstance(second, ValueError)
    assert isinstance(first, Generation)
    assert isinstance(third, Generation)
    assert (first.token_ids, third.token_ids) == (alone[0], alone[2])


def test_error_in_a_step_fails_who_was_in_it_and_nobody_after(
    model: LoadedModel, engine: tuple[SharedPrefixEngine, Watched]
) -> None:
    """The engine goes on, the memory is free again, and what waited is answered."""
    shared, forward = engine
    job = PREFIX + random_ids(9, seed=3)
    entry = shared.prefill(key_for(model), PREFIX)
    expected = answer(shared, job, entry).token_ids

    def explode(batch: Batch) -> None:
        if len(batch.row_counts) == 2:
            raise RuntimeError("out of memory")

    forward.before = explode
    answers = together(shared, forward, [request(job, entry), request(job, entry)])
    assert [str(a) for a in answers] == ["out of memory"] * 2
    assert answer(shared, job, entry).token_ids == expected
    assert entry.audit()


@pytest.mark.parametrize("bad", [VOCABULARY, -1])
def test_id_outside_the_vocabulary_fails_its_job_alone(
    engine: tuple[SharedPrefixEngine, Watched], bad: int
) -> None:
    """An id that the model has no embedding for is refused before it is in anyone's step."""
    shared, forward = engine
    good = random_ids(5, seed=1)
    expected = answer(shared, good, max_new_tokens=6, min_new_tokens=6).token_ids
    right, wrong = together(shared, forward, [request(good), request((4, bad, 5))])
    assert isinstance(wrong, Exception)
    assert isinstance(right, Generation), right
    assert right.token_ids == expected


def test_job_that_cannot_begin_fails_alone(engine: tuple[SharedPrefixEngine, Watched]) -> None:
    """A job that the sampler refuses ends with its error, and the engine goes on."""
    shared, _ = engine
    spec = GenerationSpec(max_new_tokens=2, repetition_penalty=1.5)
    asked = ask(shared, request((VOCABULARY + 3,), generation=spec))
    assert isinstance(asked.exception(timeout=5), Exception)
    assert len(ask(shared, request((4, 5))).result(timeout=5).token_ids) == 6


def test_error_while_choosing_tokens_does_not_end_the_engine(
    engine: tuple[SharedPrefixEngine, Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was being answered learns of it, and those who come after are answered."""
    shared, _ = engine
    choose, calls = BatchSampler.choose, itertools.count()

    def explode_once(*given: Any) -> Any:
        if next(calls) == 0:
            raise MemoryError
        return choose(*given)

    monkeypatch.setattr(BatchSampler, "choose", explode_once)
    assert isinstance(ask(shared, request((4, 5))).exception(timeout=5), MemoryError)
    assert len(ask(shared, request((4, 5))).result(timeout=5).token_ids) == 6


def test_no_copy_of_the_prefix_is_made_for_a_job(model: LoadedModel) -> None:
    """Forking costs nothing: attention reads the entry's own memory, and no tensor of a prefix's
    size is made while four jobs run on it."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    prefix = random_ids(200, seed=4)
    engine, forward = shared_engine(model, rows=4)
    read: set[int] = set()
    largest = [0]

    class Memory(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, Tensor)]
            read.update(t.untyped_storage().data_ptr() for t in given)
            out = func(*args, **(kwargs or {}))
            for t in tree_leaves(out):
                if isinstance(t, Tensor):
                    known = {g.untyped_storage().data_ptr() for g in given}
                    if t.untyped_storage().data_ptr() not in known:
                        largest[0] = max(largest[0], t.numel())
            return out

    with closing(engine):
        entry = engine.prefill(key_for(model), prefix)
        inner = forward._forward

        class Measured:
            name = "measured"

            def __call__(self, batch: Batch, pool: Any) -> Tensor:
                with Memory():
                    return inner(batch, pool)

        forward._forward = Measured()
        requests = [request(prefix + random_ids(2, seed=n), entry) for n in range(4)]
        assert all(isinstance(a, Generation) for a in together(engine, forward, requests))
        assert all(step.entries[0] is entry for step in forward.steps[-6:])
    keys = entry.kv.layers[0].keys
    assert {layer.keys.data_ptr() for layer in entry.kv.layers} <= read
    assert {layer.values.data_ptr() for layer in entry.kv.layers} <= read
    assert 0 < largest[0] < keys.numel()
