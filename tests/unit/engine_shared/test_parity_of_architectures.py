"""Cases P8, P9, P10: each architecture gives the plain path's tokens in the way it is admitted."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from typing import Any

import pytest

from templates.spec import GenerationSpec
from tests.support.shared_engines import shared_engine, together
from tests.support.tiny_models import (
    ARCHITECTURES,
    LONG_TEXTS_DIFFER,
    PAST_PROOF,
    WINDOW,
    answer,
    key_for,
    random_ids,
    tiny_model,
)
from worker.engine.admission import admit
from worker.engine.base import Generation, GenerationRequest, PrefixUnsupported
from worker.engine.parity import largest_error
from worker.engine.reference import ReferenceEngine
from worker.engine.shared.build import SharedOptions

ATTENTION_ONLY = (
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "gpt2", "gpt_neox",
)  # fmt: skip
# Where states are kept that rows cannot share, and whether a copy of them can be continued from.
RECURRENT = {
    "qwen3_next": "copy",
    "bamba": "copy",
    "jamba": "reference",
    "mamba": "reference",
    "mamba2": "copy",
}
FUSED = ("llama", "qwen2", "qwen3")
# Twice the window, more than it, less than it, none; and suffixes shorter and longer than a
# block, a chunk and the window, some in pairs of unequal length.
PREFIXES = tuple(random_ids(count, seed=count) for count in (64, 41, 13))
CHUNK_TOKENS = 24
OPTIONS = SharedOptions(rows=8, chunk_tokens=CHUNK_TOKENS, suffix_bytes=1 << 20)


def jobs(seed: int) -> list[tuple[int | None, tuple[int, ...]]]:
    """Suffixes, each on one of the prefixes or on none, in random order."""
    rng = random.Random(seed)
    lengths = (1, 2, 5, 23, 24, 25, 33, 50, 70)
    made = [(n % 4, length) for n, length in enumerate(lengths)]
    rng.shuffle(made)
    return [
        (None if whose == 3 else whose, random_ids(length, seed=1000 * seed + length))
        for whose, length in made
    ]


def asked(
    made: list[tuple[int | None, tuple[int, ...]]], entries: list[Any] | None = None
) -> list[GenerationRequest]:
    spec = GenerationSpec(max_new_tokens=9, min_new_tokens=9)
    return [
        GenerationRequest(
            ids=(() if whose is None else PREFIXES[whose]) + tail,
            generation=spec,
            entry=None if entries is None or whose is None else entries[whose],
            keep_scores=True,
        )
        for whose, tail in made
    ]


@cache
def plain_answers(architecture: str, seed: int) -> list[Generation]:
    """What the plain path says to `jobs(seed)`."""
    reference = ReferenceEngine(tiny_model(architecture))
    return [reference.generate(request) for request in asked(jobs(seed))]


def assert_same(plain: list[Generation], answers: list[Any]) -> None:
    for expected, given in zip(plain, answers, strict=True):
        assert isinstance(given, Generation), given
        assert given.token_ids == expected.token_ids
        assert largest_error(expected.first_scores, given.first_scores) < 2e-3
    assert len({p.token_ids for p in plain}) > len(plain) // 2  # else nothing could differ


@pytest.mark.parametrize("architecture", ATTENTION_ONLY)
def test_attention_models_are_admitted_as_shared(architecture: str) -> None:
    """Proven on the first way that takes the model; what comes before it is named with a reason."""
    engine, admission = admit(tiny_model(architecture), OPTIONS)
    with closing(engine):
        assert admission.way.mode == "shared"
        assert admission.way.kernels == ("onednn" if architecture in FUSED else "transformers")
        assert admission.max_logit_error < 1e-5
        assert all(refusal.reason for refusal in admission.refused)
        assert engine.name.startswith("shared-prefix (")
        assert engine.batch_size == 8


def ways() -> list[tuple[str, str]]:
    """All kernels that may compute an architecture."""
    fused = [(name, kernels) for name in FUSED for kernels in ("torch", "onednn", "native")]
    return [*((name, "transformers") for name in ATTENTION_ONLY), *fused]


@pytest.mark.parametrize(("architecture", "kernels"), ways())
def test_mixed_batches_give_the_plain_tokens(architecture: str, kernels: str) -> None:
    """P8, P9: several prefixes, rows without one, unequal prompts and chunks in one batch."""
    model = tiny_model(architecture)
    engine, forward = shared_engine(model, kernels, chunk_tokens=CHUNK_TOKENS, rows=9)
    with closing(engine):
        entries = [
            engine.prefill(key_for(model, digest=f"v{n}"), ids) for n, ids in enumerate(PREFIXES)
        ]
        for seed in range(2):
            made = jobs(seed)
            forward.steps.clear()
            answers = together(engine, forward, asked(made, entries))
            assert_same(plain_answers(architecture, seed), answers)
            assert all(entry.audit() for entry in entries)
            assert max(len(step.row_counts) for step in forward.steps) > 6
            assert max(len(step.entries) for step in forward.steps) == 4
            assert max(max(step.row_counts) for step in forward.steps) == CHUNK_TOKENS


@pytest.mark.parametrize("architecture", ATTENTION_ONLY)
def test_prefix_is_computed_in_chunks_as_in_one(architecture: str) -> None:
    """An entry that was prefilled in pieces holds what the plain path's holds."""
    model = tiny_model(architecture)
    engine, forward = shared_engine(model, chunk_tokens=CHUNK_TOKENS)
    with closing(engine):
        entry = engine.prefill(key_for(model), PREFIXES[0])
    plain = ReferenceEngine(model).prefill(key_for(model), PREFIXES[0])
    assert forward.tokens == [24, 24, 16]
    assert entry.kv.get_seq_length() == plain.kv.get_seq_length() == 64
    for ours, theirs in zip(entry.kv.layers, plain.kv.layers, strict=True):
        assert type(ours) is type(theirs)
        assert ours.keys.shape == theirs.keys.shape
        assert (ours.keys - theirs.keys).abs().max() < 1e-3 * theirs.keys.abs().max()
        assert (ours.values - theirs.values).abs().max() < 1e-3 * theirs.values.abs().max()
    job = PREFIXES[0] + random_ids(9, seed=3)
    reference = ReferenceEngine(model)
    assert answer(reference, job, entry).token_ids == answer(reference, job).token_ids


def test_windowed_row_without_prefix_leaves_its_own_tokens_behind() -> None:
    """P9: also within one row's own tokens the window slides, over borders of blocks."""
    model = tiny_model("mistral")
    engine, _ = shared_engine(model, chunk_tokens=CHUNK_TOKENS)
    job = random_ids(3 * WINDOW, seed=8)
    with closing(engine):
        ours = answer(engine, job, max_new_tokens=60, min_new_tokens=60)
    plain = answer(ReferenceEngine(model), job, max_new_tokens=60, min_new_tokens=60)
    assert ours.token_ids == plain.token_ids


@pytest.mark.parametrize(("architecture", "mode"), RECURRENT.items())
def test_recurrent_models_run_unshared_and_say_why(architecture: str, mode: str) -> None:
    """P10: whatever way they are admitted on gives the plain tokens, twice on one entry."""
    model = tiny_model(architecture)
    engine, admission = admit(model, OPTIONS)
    assert admission.way.mode == mode
    refused = {refusal.way: refusal.reason for refusal in admission.refused}
    assert "a state that rows cannot share" in refused["shared"]
    if mode == "reference":  # Transformers loses their state where a copy is continued from
        assert "the scores differ" in refused["copy"]
    made = jobs(0)[::2]
    plain = plain_answers(architecture, 0)[::2]
    entries = None
    with closing(engine):
        if mode == "copy":
            keys = [key_for(model, digest=f"v{n}") for n in range(len(PREFIXES))]
            entries = [engine.prefill(key, ids) for key, ids in zip(keys, PREFIXES, strict=True)]
        for _ in range(2):
            with ThreadPoolExecutor(max_workers=3) as threads:
                assert_same(plain, list(threads.map(engine.generate, asked(made, entries))))
            assert all(entry.audit() for entry in entries or ())


@pytest.mark.parametrize("architecture", LONG_TEXTS_DIFFER)
def test_models_that_change_past_a_length_are_not_shared(architecture: str) -> None:
    """Angles that depend on the longest row of a batch, or attention in chunks, would be wrong
    silently: a proof's prompts are too short to see it. So they are refused by name."""
    engine, admission = admit(tiny_model(architecture), OPTIONS)
    engine.close()
    assert admission.way.mode != "shared"
    (reason,) = [refusal.reason for refusal in admission.refused if refusal.way == "shared"]
    assert "rotary angles" in reason or "in chunks" in reason


@pytest.mark.parametrize(
    ("architecture", "mode"),
    [
        ("dynamic_rope", "reference"),  # all angles change, those of the prefix too
        ("longrope", "copy"),  # Phi-3's own code computes the prefix anew past the length
    ],
)
def test_copied_prefix_of_a_text_that_grows_past_the_length(architecture: str, mode: str) -> None:
    """Whatever way such a model is admitted on, the tokens are the plain path's."""
    model = tiny_model(architecture)
    engine, admission = admit(model, OPTIONS)
    assert admission.way.mode == mode
    job = PREFIXES[0] + random_ids(PAST_PROOF, seed=3)
    with closing(engine):
        entry = engine.prefill(key_for(model), PREFIXES[0]) if mode == "copy" else None
        ours = answer(engine, job, entry)
    # Compared with the same model anew: with dynamic angles one long text changes the next one's.
    assert ours.token_ids == answer(ReferenceEngine(tiny_model(architecture)), job).token_ids


def test_model_that_can_neither_share_nor_copy_runs_plainly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without any cache that can be used again the plain path is left, and prefixes are refused."""
    model = tiny_model("mamba")
    monkeypatch.setattr(type(model.module), "_supports_default_dynamic_cache", lambda _: False)
    engine, admission = admit(model, OPTIONS)
    assert (admission.way.mode, engine.name) == ("reference", "uncached")
    assert {refusal.way for refusal in admission.refused} >= {"copy"}
    with pytest.raises(PrefixUnsupported):
        engine.prefill(key_for(model), PREFIXES[0])
    job = random_ids(9, seed=1)
    assert answer(engine, job).token_ids == answer(ReferenceEngine(model), job).token_ids


def test_every_architecture_is_tried() -> None:
    """What is added to the list of small models is tried here too."""
    assert set(ARCHITECTURES) == {*ATTENTION_ONLY, *RECURRENT}
