"""The reference engine: cached output equals uncached output, and nothing leaks between jobs."""

from __future__ import annotations

import functools
import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, StaticCache
from transformers.generation import utils as generation_utils

from contract.errors import InvalidInput, SpecInvalid
from templates.spec import GenerationSpec, parse_spec
from tests.support.labels import assert_labelled, plain_probabilities
from tests.support.tiny_models import (
    EOS,
    POSITIONS,
    VOCABULARY,
    answer,
    key_for,
    random_ids,
    tiny_engine,
    tiny_model,
    undecided,
)
from worker.engine.base import (
    Generation,
    GenerationRequest,
    NonFiniteLogits,
    PrefixMismatch,
    PrefixUnsupported,
    RequestTooLong,
)
from worker.engine.reference import ReferenceEngine
from worker.model import LoadedModel
from worker.prefix.entry import PrefixEntry

PREFIX = random_ids(64, seed=1)
SAMPLED: dict[str, Any] = {"temperature": 1.3, "top_k": 40, "top_p": 0.95}


def suffix(seed: int, length: int = 20) -> tuple[int, ...]:
    return random_ids(length, seed=1000 + seed)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model()


@pytest.fixture(scope="module")
def engine(model: LoadedModel) -> ReferenceEngine:
    return ReferenceEngine(model)


@pytest.fixture
def entry(engine: ReferenceEngine, model: LoadedModel) -> PrefixEntry:
    return engine.prefill(key_for(model), PREFIX)


def request(ids: tuple[int, ...], **fields: Any) -> GenerationRequest:
    spec = GenerationSpec(max_new_tokens=16, min_new_tokens=16)
    return GenerationRequest(**({"ids": ids, "generation": spec} | fields))


def test_cached_greedy_output_equals_uncached(engine: ReferenceEngine, entry: PrefixEntry) -> None:
    """Invariant: in float32 the cache changes no token, over 32 requests of 1 to 32 new ids."""
    outputs = set()
    for seed in range(32):
        job = PREFIX + suffix(seed, length=seed + 1)
        uncached = answer(engine, job)
        assert answer(engine, job, entry).token_ids == uncached.token_ids
        outputs.add(uncached.token_ids)
    assert len(outputs) == 32  # a model that says the same to everything would prove nothing
    assert entry.audit()


def test_the_prefix_matters(engine: ReferenceEngine, model: LoadedModel) -> None:
    """Fault: an entry computed from one wrong id gives another answer, so the test above bites."""
    wrong = engine.prefill(key_for(model), (PREFIX[0] + 1, *PREFIX[1:]))
    lying = replace(wrong, ids=PREFIX)
    job = PREFIX + suffix(0)
    assert answer(engine, job, lying).token_ids != answer(engine, job).token_ids


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (PREFIX, "nothing_beyond_prefix=64"),
        (PREFIX[:40], "request_shorter_than_prefix=40<64"),
        ((*PREFIX[:17], PREFIX[17] + 1, *PREFIX[18:], 9), "ids_differ_at=17"),
    ],
)
def test_entry_that_is_no_exact_prefix_is_refused(
    engine: ReferenceEngine, entry: PrefixEntry, job: tuple[int, ...], reason: str
) -> None:
    """Cases P1, P2, P3: the engine refuses such a request rather than answer it wrongly."""
    with pytest.raises(PrefixMismatch) as caught:
        answer(engine, job, entry)
    assert caught.value.given == reason
    assert len(answer(engine, job).token_ids) == 16  # and it runs without the entry


@pytest.mark.parametrize("changed", ["model_digest", "tokenizer_digest"])
def test_entry_of_another_model_is_refused(
    engine: ReferenceEngine, model: LoadedModel, entry: PrefixEntry, changed: str
) -> None:
    """Case P19: equal ids do not make an entry of other weights or another tokenizer usable."""
    other = key_for(model, **{changed: "other"})
    with pytest.raises(PrefixMismatch):
        answer(engine, PREFIX + suffix(0), replace(entry, key=other))
    with pytest.raises(PrefixMismatch):
        engine.prefill(other, PREFIX)


def test_one_token_beyond_the_prefix_is_enough(engine: ReferenceEngine, entry: PrefixEntry) -> None:
    """Cases P1, P4: with a single new id the engine's mask and positions are still right."""
    job = (*PREFIX, 50)
    assert answer(engine, job, entry).token_ids == answer(engine, job).token_ids


@pytest.mark.parametrize("architecture", ["llama", "mamba2"])
def test_repetition_penalty_sees_the_prefix(architecture: str) -> None:
    """Case P5: the penalty counts the prefix's ids, also where only the rest is fed."""
    model = tiny_model(architecture)
    engine = ReferenceEngine(model)
    entry = engine.prefill(key_for(model), PREFIX)
    differing = 0
    for seed in range(4):
        job = PREFIX + suffix(seed)
        penalized = answer(engine, job, repetition_penalty=1.8)
        assert answer(engine, job, entry, repetition_penalty=1.8).token_ids == penalized.token_ids
        differing += penalized.token_ids != answer(engine, job).token_ids
    assert differing


def test_one_entry_for_many_requests_in_a_row(engine: ReferenceEngine, entry: PrefixEntry) -> None:
    """Case P6: the entry neither grows nor changes, and each answer is the uncached one."""
    for seed in range(3):
        job = PREFIX + suffix(seed)
        assert answer(engine, job, entry).token_ids == answer(engine, job).token_ids
        assert entry.kv.get_seq_length() == len(PREFIX)
        assert entry.audit()


def test_second_use_of_an_entry_gives_the_same(engine: ReferenceEngine, entry: PrefixEntry) -> None:
    """Case P10: the same request twice on one entry gives the same tokens twice."""
    job = PREFIX + suffix(5)
    assert answer(engine, job, entry).token_ids == answer(engine, job, entry).token_ids


def test_cache_of_fixed_size_states_limit_and_need(
    engine: ReferenceEngine, model: LoadedModel
) -> None:
    """Case P11: a static cache serves what fits, and refuses the rest with both numbers."""
    module: Any = model.module
    static = StaticCache(config=module.config, max_cache_len=100)
    with torch.no_grad():
        module(input_ids=torch.tensor([PREFIX]), cache=static, use_cache=True)
    entry = PrefixEntry.freeze(key=key_for(model), ids=PREFIX, kv=static, prefill_s=0.0)
    job = PREFIX + suffix(0)
    assert answer(engine, job, entry).token_ids == answer(engine, job).token_ids
    with pytest.raises(RequestTooLong, match=r"85 prompt \+ 16 new = 101 tokens.*100 at most"):
        answer(engine, (*job, 9), entry)


def test_entries_grow_with_the_job(engine: ReferenceEngine, entry: PrefixEntry) -> None:
    """Case P11: the engine's own entries have no size to run out of."""
    job = PREFIX + suffix(0)
    long = answer(engine, job, entry, max_new_tokens=120, min_new_tokens=120)
    plain = answer(engine, job, max_new_tokens=120, min_new_tokens=120)
    assert long.token_ids == plain.token_ids
    assert len(long.token_ids) == 120


def test_request_over_the_models_positions_is_refused(
    engine: ReferenceEngine, model: LoadedModel, entry: PrefixEntry
) -> None:
    """Case P12: the numbers are in the message; one token less is served."""
    fits = PREFIX + suffix(0, length=POSITIONS - 64 - 16)
    assert len(answer(engine, fits, entry).token_ids) == 16
    with pytest.raises(RequestTooLong, match=r"241 prompt \+ 16 new = 257 tokens.*256 positions"):
        answer(engine, (*fits, 9), entry)
    with pytest.raises(RequestTooLong):
        engine.prefill(key_for(model), random_ids(POSITIONS, seed=1))


@pytest.mark.parametrize("field", ["num_return_sequences", "num_beams"])
def test_several_sequences_are_refused_by_the_spec(field: str) -> None:
    """Case P13: no template can ask for beams or several answers."""
    spec = {
        "tenant": "acme",
        "name": "triage",
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "input": {"schema": {"type": "object"}},
        "generation": {field: 2},
    }
    with pytest.raises(SpecInvalid, match=field):
        parse_spec(spec)


def test_non_finite_scores_in_mid_decode(
    engine: ReferenceEngine,
    model: LoadedModel,
    entry: PrefixEntry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case P22: NaN at the third token raises; the engine and the entry stay usable."""
    module: Any = model.module
    head, calls = module.lm_head.forward, itertools.count(1)

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = head(hidden)
        return logits * torch.nan if next(calls) == 3 else logits

    job = PREFIX + suffix(0)
    expected = answer(engine, job).token_ids
    monkeypatch.setattr(module.lm_head, "forward", broken)
    with pytest.raises(NonFiniteLogits):
        answer(engine, job, entry)
    monkeypatch.undo()
    assert entry.audit()
    assert answer(engine, job, entry).token_ids == expected


def test_non_finite_scores_in_prefill(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case P22: a prefix whose scores are NaN never becomes an entry."""
    module: Any = model.module
    head = module.lm_head.forward
    monkeypatch.setattr(module.lm_head, "forward", lambda hidden: head(hidden) / 0)
    with pytest.raises(NonFiniteLogits):
        ReferenceEngine(model).prefill(key_for(model), PREFIX)


def test_settings_of_the_model_do_not_leak() -> None:
    """What generation_config.json asks for changes nothing; only the template's spec does."""
    job = PREFIX + suffix(0)
    expected = answer(tiny_engine(), job).token_ids
    model = tiny_model()
    module: Any = model.module
    module.generation_config = GenerationConfig(
        do_sample=True,
        temperature=5.0,
        top_k=3,
        min_p=0.5,
        repetition_penalty=3.0,
        no_repeat_ngram_size=1,
        num_beams=2,
        num_return_sequences=2,
        max_length=70,
        min_length=200,
        max_time=0.0001,
        suppress_tokens=list(expected),
        forced_eos_token_id=EOS,
        eos_token_id=expected[0],
        bad_words_ids=[[expected[1]]],
        guidance_scale=2.0,
        stop_strings=["a"],
        cache_implementation="static",
        renormalize_logits=True,
        output_scores=True,
        return_dict_in_generate=True,
        prompt_lookup_num_tokens=3,
    )
    engine = ReferenceEngine(model)
    entry = engine.prefill(key_for(model), PREFIX)
    assert answer(engine, job).token_ids == expected
    assert answer(engine, job, entry).token_ids == expected


def test_any_end_of_sequence_id_ends(model: LoadedModel, entry: PrefixEntry) -> None:
    """The first of a model's several end ids ends the completion, and is its last id."""
    job = PREFIX + suffix(0)

    def ending_with(*eos_ids: int) -> Generation:
        folder = replace(model.folder, eos_ids=eos_ids)
        stopping = ReferenceEngine(replace(model, folder=folder))
        return answer(stopping, job, entry, min_new_tokens=0)

    free = ending_with()
    early, late = free.token_ids[3], free.token_ids[9]
    at = min(free.token_ids.index(early), free.token_ids.index(late))
    assert len(free.token_ids) == 16
    assert ending_with(late, early).token_ids == free.token_ids[: at + 1]
    assert ending_with(early, late).finish_reason == "stop"


def test_end_of_sequence_waits_for_min_new_tokens(
    engine: ReferenceEngine, model: LoadedModel, entry: PrefixEntry
) -> None:
    """Before min_new_tokens no end id is produced, whatever the model prefers."""
    job = PREFIX + suffix(0)
    preferred = answer(engine, job, entry).token_ids[0]
    folder = replace(model.folder, eos_ids=(preferred,))
    stopping = ReferenceEngine(replace(model, folder=folder))
    ended = answer(stopping, job, entry, min_new_tokens=5)
    assert preferred not in ended.token_ids[:5]


def test_length_is_reported(engine: ReferenceEngine, entry: PrefixEntry) -> None:
    """A completion cut at max_new_tokens says so."""
    cut = answer(engine, PREFIX + suffix(0), entry, max_new_tokens=3, min_new_tokens=3)
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 3)


def test_stop_string_cuts_the_text(engine: ReferenceEngine, entry: PrefixEntry) -> None:
    """Generation ends with the token that completes a stop string; the text ends before it."""
    job = PREFIX + suffix(0)
    free = answer(engine, job, entry)
    stop = free.text[4:6]
    at = free.text.index(stop)
    stopped = answer(engine, job, entry, stop=(stop,))
    assert stopped.text == free.text[:at]
    assert stopped.token_ids == free.token_ids[: at + 2]
    assert stopped.finish_reason == "stop_string"


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mistral", "qwen3_next", "mamba2"])
@pytest.mark.parametrize(
    "choices",
    [
        ((10, 11), (10, 12, 13), (20,)),
        ((10, 11), (10, 11, 12), (20,), (30, 31, 32, 33)),
    ],
)
def test_probabilities_are_those_of_a_full_forward(
    architecture: str, choices: tuple[tuple[int, ...], ...]
) -> None:
    """The likeliest choice is the answer, with the cache as without it; ends count where one
    choice begins another."""
    model = undecided(architecture)
    engine = ReferenceEngine(model)
    entry = engine.prefill(key_for(model), PREFIX)
    for seed in range(4):
        job = PREFIX + suffix(seed)
        expected = plain_probabilities(model, job, choices)
        assert_labelled(answer(engine, job, choices=choices), choices, expected)
        assert_labelled(answer(engine, job, entry, choices=choices), choices, expected)
    assert entry.audit()


def test_choice_does_not_depend_on_how_tokens_are_chosen(engine: ReferenceEngine) -> None:
    """Neither penalty, temperature, stop strings nor a small max_new_tokens change a label."""
    job, choices = PREFIX + suffix(1), ((10, 11), (10, 12, 13), (20,))
    plain = answer(engine, job, choices=choices)
    other = answer(
        engine,
        job,
        choices=choices,
        max_new_tokens=1,
        min_new_tokens=9,
        repetition_penalty=3.0,
        stop=(plain.text[0],),
        **SAMPLED,
    )
    assert other.choice_probabilities == plain.choice_probabilities
    assert (other.token_ids, other.text) == (plain.token_ids, plain.text)


def test_first_token_decides_in_one_forward(
    engine: ReferenceEngine, model: LoadedModel, entry: PrefixEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choices whose first ids differ take one forward over the suffix, and the best scored wins."""
    job = PREFIX + suffix(3)
    scored = engine.generate(request(job, keep_scores=True)).first_scores
    choices = tuple((i, 5) for i in range(3, VOCABULARY, 7))
    best = max(range(len(choices)), key=lambda n: scored[choices[n][0]])
    module: Any = model.module
    forward, fed = module.forward, []

    @functools.wraps(forward)
    def seen(*args: Any, **kwargs: Any) -> Any:
        fed.append(kwargs["input_ids"].shape[1])
        return forward(*args, **kwargs)

    monkeypatch.setattr(module, "forward", seen)
    assert answer(engine, job, entry, choices=choices).choice_index == best
    assert fed == [20]


def test_scores_of_a_choice_that_are_not_finite(
    engine: ReferenceEngine, entry: PrefixEntry, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case P22: a label is never made from NaN, also where it arises inside a choice."""
    module: Any = model.module
    head = module.lm_head.forward
    monkeypatch.setattr(
        module.lm_head,
        "forward",
        lambda h: torch.cat([head(h)[:, :-1], head(h)[:, -1:] * torch.nan], dim=1),
    )
    with pytest.raises(NonFiniteLogits):
        answer(engine, PREFIX + suffix(0), entry, choices=((10, 11), (10, 12)))
    monkeypatch.undo()
    assert entry.audit()


def test_same_seed_same_text_whatever_ran_before(
    engine: ReferenceEngine, entry: PrefixEntry
) -> None:
    """A sampled answer depends on request and seed, not on earlier jobs or the global state."""
    job = PREFIX + suffix(0)
    before = torch.random.get_rng_state()
    first = answer(engine, job, entry, seed=7, **SAMPLED)
    assert torch.equal(torch.random.get_rng_state(), before)
    answer(engine, PREFIX + suffix(1), entry, seed=3, **SAMPLED)
    torch.rand(5)
    random.random()
    assert answer(engine, job, entry, seed=7, **SAMPLED).token_ids == first.token_ids
    assert answer(engine, job, seed=7, **SAMPLED).token_ids == first.token_ids
    others = {answer(engine, job, entry, seed=s, **SAMPLED).token_ids for s in range(8, 12)}
    assert len(others | {first.token_ids}) == 5


class NoEvent:
    """A device event that has always happened."""

    def __init__(self, **_: Any) -> None: ...
    def record(self) -> None: ...
    def synchronize(self) -> None: ...


def stop_one_step_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the library learn of the end as it does on MPS: a step late, which it then drops."""
    monkeypatch.setattr(torch, "Event", NoEvent)
    monkeypatch.setattr(
        generation_utils.DeferredStopCheck, "is_supported", staticmethod(lambda *_, **__: True)
    )


@pytest.mark.parametrize("kind", ["eos", "stop", "sampled"])
def test_step_beyond_the_end_changes_nothing(
    engine: ReferenceEngine, entry: PrefixEntry, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Where generation runs one step too far, as on MPS, the answer is the same, even if that
    step's scores are NaN."""
    job = PREFIX + suffix(0)
    wanted: dict[str, Any] = {
        "eos": {"min_new_tokens": 0},
        "stop": {"stop": (answer(engine, job).text[4:6],)},
        "sampled": {
            "seed": 7,
            "stop": (answer(engine, job, seed=7, **SAMPLED).text[2],),
            **SAMPLED,
        },
    }[kind]
    module: Any = engine._module
    head, steps = module.lm_head.forward, itertools.count(1)
    monkeypatch.setattr(module.lm_head, "forward", lambda h: (next(steps), head(h))[1])
    prompt = answer(engine, job, entry, **wanted)
    needed = next(steps) - 1

    late = itertools.count(1)
    monkeypatch.setattr(
        module.lm_head, "forward", lambda h: head(h) * (torch.nan if next(late) > needed else 1)
    )
    stop_one_step_late(monkeypatch)
    after = answer(engine, job, entry, **wanted)
    assert next(late) - 1 == needed + 1
    assert (after.token_ids, after.text) == (prompt.token_ids, prompt.text)
    assert after.finish_reason == prompt.finish_reason != "length"
    assert entry.audit()


@pytest.mark.parametrize("reason", ["cancelled", "expired"])
def test_job_stops_between_tokens(engine: ReferenceEngine, entry: PrefixEntry, reason: str) -> None:
    """A cancelled or expired job ends after the token at hand, and keeps what it has."""
    asked = itertools.count()
    stopping = request(
        PREFIX + suffix(0), entry=entry, should_stop=lambda: reason if next(asked) >= 3 else None
    )
    stopped = engine.generate(stopping)
    assert stopped.finish_reason == reason
    assert stopped.token_ids == answer(engine, PREFIX + suffix(0)).token_ids[:3]


def test_job_that_is_not_wanted_any_more_is_not_begun(
    engine: ReferenceEngine, entry: PrefixEntry
) -> None:
    """A job that expired while it waited for the model costs nothing."""
    expired = engine.generate(request((*PREFIX, 9), entry=entry, should_stop=lambda: "expired"))
    assert (expired.finish_reason, expired.token_ids, expired.text) == ("expired", (), "")


def test_calls_never_overlap_on_the_model(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads take turns, so each gets the answer that it gets alone."""
    engine = ReferenceEngine(model)
    entry = engine.prefill(key_for(model), PREFIX)
    jobs = [PREFIX + suffix(seed) for seed in range(6)]
    alone = [answer(engine, job).token_ids for job in jobs]
    inside, most = [0], [0]
    module: Any = model.module
    forward: Callable[..., Any] = module.model.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.0005)
        try:
            return forward(*args, **kwargs)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(module.model, "forward", counted)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(answer, engine, job, entry) for job in jobs]
        prefills = [pool.submit(engine.prefill, key_for(model), PREFIX) for _ in range(3)]
        assert [a.result(60).token_ids for a in answers] == alone
        assert {p.result(60).checksum for p in prefills} == {entry.checksum}
    assert most[0] == 1


def test_no_job_reaches_another_in_any_order(
    engine: ReferenceEngine, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant: jobs of two versions, in shuffled order and with failures between them, each
    give what they give alone."""
    prefixes = (PREFIX, random_ids(48, seed=9))
    entries = [engine.prefill(key_for(model, digest=f"v{n}"), p) for n, p in enumerate(prefixes)]
    jobs = [(n, prefixes[n] + suffix(seed)) for n in (0, 1) for seed in range(6)]
    alone = {job: answer(engine, job).token_ids for _, job in jobs}
    module: Any = model.module
    head = module.lm_head.forward
    order = random.Random(4)
    for _ in range(3):
        order.shuffle(jobs)
        for n, job in jobs:
            if order.random() < 0.3:
                monkeypatch.setattr(module.lm_head, "forward", lambda hidden: head(hidden) / 0)
                with pytest.raises(NonFiniteLogits):
                    answer(engine, job, entries[n])
                monkeypatch.undo()
            assert answer(engine, job, entries[n]).token_ids == alone[job]
    assert all(entry.audit() for entry in entries)


def test_prefill_makes_the_logits_of_one_position_only(
    engine: ReferenceEngine, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long prefix does not cost memory for positions x vocabulary."""
    module: Any = model.module
    head, shapes = module.lm_head.forward, []

    def seen(hidden: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(hidden.shape[:2]))
        logits: torch.Tensor = head(hidden)
        return logits

    monkeypatch.setattr(module.lm_head, "forward", seen)
    entry = engine.prefill(key_for(model), PREFIX)
    answer(engine, PREFIX + suffix(0), entry)
    assert set(shapes) == {(1, 1)}


def test_the_entry_saves_computing_the_prefix(
    engine: ReferenceEngine, model: LoadedModel, entry: PrefixEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the entry only the ids beyond the prefix go through the model."""
    module: Any = model.module
    forward, fed = module.forward, []

    def seen(*args: Any, **kwargs: Any) -> Any:
        fed.append(kwargs["input_ids"].shape[1])
        return forward(*args, **kwargs)

    monkeypatch.setattr(module, "forward", seen)
    engine.generate(request(PREFIX + suffix(0), entry=entry))
    assert fed == [20] + [1] * 15


def test_stage_seconds_add_up(engine: ReferenceEngine, entry: PrefixEntry) -> None:
    """Fork, suffix and decode follow each other, and the first token comes after the suffix."""
    timed = answer(engine, PREFIX + suffix(0), entry)
    assert min(timed.fork_s, timed.suffix_prefill_s, timed.decode_s) > 0
    assert timed.first_token_s >= timed.fork_s + timed.suffix_prefill_s
    assert timed.batch_size == 1


def test_half_precision_runs(entry: PrefixEntry) -> None:
    """Case P21: bfloat16 entries are kept and forked in bfloat16."""
    model = tiny_model(dtype=torch.bfloat16)
    engine = ReferenceEngine(model)
    half = engine.prefill(key_for(model), PREFIX)
    assert half.nbytes == entry.nbytes // 2
    assert len(answer(engine, PREFIX + suffix(0), half).token_ids) == 16
    assert half.audit()


def test_model_with_a_cache_of_its_own_kind_is_refused(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that cannot work with the library's cache says so instead of being cached wrongly."""
    monkeypatch.setattr(type(model.module), "_supports_default_dynamic_cache", lambda _: False)
    with pytest.raises(PrefixUnsupported):
        ReferenceEngine(model).prefill(key_for(model), PREFIX)


def test_empty_prompts_are_refused(engine: ReferenceEngine, model: LoadedModel) -> None:
    """Neither an empty prefix nor an empty prompt reaches the model."""
    with pytest.raises(InvalidInput):
        engine.prefill(key_for(model), ())
    with pytest.raises(InvalidInput):
        answer(engine, ())
