"""Answers under a grammar: the same in both engines, whole or "length", and nobody else's cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor

from templates.spec import GenerationSpec
from tests.support.ascii_models import FIRST, ascii_grammar, ascii_model
from tests.support.shared_engines import Watched, shared_engine, together
from tests.support.tiny_models import EOS, VOCABULARY, key_for, random_ids
from worker.engine.base import Generation, GenerationRequest, GrammarFailed, NonFiniteLogits
from worker.engine.masks import forbid
from worker.engine.reference import ReferenceEngine
from worker.engine.shared.engine import SharedPrefixEngine
from worker.grammars import LlguidanceMasks, OutputGrammar
from worker.model import LoadedModel
from worker.prefix.entry import PrefixEntry

PREFIX = random_ids(48, seed=1)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "label": {"enum": ["red", "green", "blue"]},
        "note": {"type": "string", "maxLength": 8},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["label", "note", "count"],
}
OTHER: dict[str, Any] = {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}
SAMPLED: dict[str, Any] = {"temperature": 1.4, "top_k": 60, "top_p": 0.95}
KERNELS = ("transformers", "torch", "onednn")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return ascii_model()


@pytest.fixture(scope="module")
def grammar() -> OutputGrammar:
    return ascii_grammar(SCHEMA)


@pytest.fixture(params=KERNELS)
def engine(
    model: LoadedModel, request: pytest.FixtureRequest
) -> Iterator[tuple[SharedPrefixEngine, Watched]]:
    engine, forward = shared_engine(model, request.param)
    with closing(engine):
        yield engine, forward


def asked(
    seed: int,
    grammar: OutputGrammar | None,
    entry: PrefixEntry | None = None,
    **generation: Any,
) -> GenerationRequest:
    spec = GenerationSpec(**({"max_new_tokens": 60, "seed": seed} | generation))
    ids = PREFIX + random_ids(7 + seed, seed=seed)
    return GenerationRequest(ids=ids, generation=spec, grammar=grammar, entry=entry)


def text_of(answer: Generation) -> Any:
    """The JSON of an answer that must be whole."""
    assert answer.finish_reason == "stop", answer
    return json.loads(answer.text)


@pytest.mark.parametrize("settings", [{}, SAMPLED, {"repetition_penalty": 1.3, **SAMPLED}],
                         ids=["greedy", "sampled", "penalized"])  # fmt: skip
def test_both_engines_choose_the_same_tokens(
    engine: tuple[SharedPrefixEngine, Watched],
    model: LoadedModel,
    grammar: OutputGrammar,
    settings: dict[str, Any],
) -> None:
    """In one batch with rows of another schema and of none, cached and not."""
    shared, forward = engine
    reference = ReferenceEngine(model)
    entry = shared.prefill(key_for(model), PREFIX)
    other = ascii_grammar(OTHER)
    requests = [
        asked(seed, held, entry if seed % 3 else None, **settings)
        for seed, held in enumerate([grammar, None, other, grammar])
    ]
    answers = together(shared, forward, requests)
    for request, answer in zip(requests, answers, strict=True):
        plain = reference.generate(
            GenerationRequest(
                ids=request.ids, generation=request.generation, grammar=request.grammar
            )
        )
        assert answer.token_ids == plain.token_ids
        assert answer.finish_reason == plain.finish_reason
        if request.grammar is not None:
            grammar_of = request.grammar
            assert isinstance(grammar_of, OutputGrammar)
            assert grammar_of.read(answer.text) == text_of(answer)
            assert not {0, 1} & set(answer.token_ids)
    assert entry.audit()


def test_answers_end_by_themselves(model: LoadedModel, grammar: OutputGrammar) -> None:
    """With the last token of the JSON: no step is spent on an end that is certain."""
    reference = ReferenceEngine(model)
    answer = reference.generate(asked(1, grammar))
    assert answer.text.endswith("}")
    assert EOS not in answer.token_ids
    whole = [model.tokenizer.decode(answer.token_ids[:-1]) + "}"]
    assert whole == [answer.text]


def test_what_may_go_on_ends_with_the_end_of_the_sequence(model: LoadedModel) -> None:
    """A number alone may have another digit, so that only the model can end it."""
    reference = ReferenceEngine(model)
    grammar = ascii_grammar({"type": "integer", "minimum": 0, "maximum": 10**9})
    ends = set()
    for seed in range(12):
        answer = reference.generate(asked(seed, grammar, temperature=2.0))
        assert grammar.read(answer.text) == text_of(answer)
        ends.add(answer.token_ids[-1] == EOS)
    assert True in ends


@pytest.mark.parametrize("tokens", [1, 9, 20])
def test_half_of_an_answer_says_length(
    engine: tuple[SharedPrefixEngine, Watched],
    model: LoadedModel,
    grammar: OutputGrammar,
    tokens: int,
) -> None:
    """In both engines; it is the worker that makes a failure of it."""
    shared, _ = engine
    for one in (shared, ReferenceEngine(model)):
        answer = one.generate(asked(1, grammar, max_new_tokens=tokens))
        assert answer.finish_reason == "length"
        assert len(answer.token_ids) == tokens


class Asked(LlguidanceMasks):
    """Notes how many runs each mask is for."""

    def __init__(self, inner: LlguidanceMasks) -> None:
        self.__dict__.update(inner.__dict__)
        self.rows: list[int] = []

    def allowed(self, runs: Sequence[Any]) -> Tensor:
        self.rows.append(len(runs))
        return super().allowed(runs)


def test_masks_are_made_for_all_rows_at_once_and_for_no_others(
    model: LoadedModel, grammar: OutputGrammar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call a step for the rows that have a schema; rows without one never ask for any."""
    masks = Asked(grammar._masks)
    monkeypatch.setattr(grammar, "_masks", masks)
    shared, forward = shared_engine(model)
    with closing(shared):
        free = {"max_new_tokens": 30, "min_new_tokens": 30}
        together(shared, forward, [asked(seed, None, **free) for seed in range(3)])
        assert not masks.rows
        held = [asked(seed, grammar) for seed in range(4)]
        together(shared, forward, [*held, *[asked(seed, None, **free) for seed in range(3)]])
        assert max(masks.rows) == 4
        assert len(masks.rows) < sum(masks.rows)


def test_rows_without_a_schema_are_as_without_neighbours(
    engine: tuple[SharedPrefixEngine, Watched], grammar: OutputGrammar
) -> None:
    """To the token."""
    shared, forward = engine
    free = asked(3, None, max_new_tokens=30, min_new_tokens=30, **SAMPLED)
    alone = shared.generate(free)
    beside = together(shared, forward, [asked(1, grammar), free, asked(2, grammar)])
    assert beside[1].token_ids == alone.token_ids


def test_a_failed_run_ends_its_own_row_only(model: LoadedModel, grammar: OutputGrammar) -> None:
    """With an error that is not tried again; the others of the step go on."""
    shared, forward = shared_engine(model)
    stuck = Stuck(grammar)
    with closing(shared):
        requests = [
            asked(1, grammar),
            GenerationRequest(ids=PREFIX, generation=GenerationSpec(), grammar=stuck),
            asked(2, None),
        ]
        answers = together(shared, forward, requests)
        assert isinstance(answers[1], GrammarFailed)
        assert not answers[1].passing
        assert answers[0].finish_reason == "stop"
        assert answers[2].token_ids == shared.generate(asked(2, None)).token_ids
    with pytest.raises(GrammarFailed):
        ReferenceEngine(model).generate(requests[1])


class Stuck:
    """A grammar that allows nothing after two tokens."""

    def __init__(self, grammar: OutputGrammar) -> None:
        self._grammar = grammar

    def start(self) -> Any:
        run: Any = self._grammar.start()
        run.matcher.consume_token(EOS)  # not allowed there: the matcher is in error from now on
        return run


def test_scores_that_are_not_finite_are_found_under_a_mask(
    model: LoadedModel, grammar: OutputGrammar
) -> None:
    """Wherever in the row they are: also at an id that the grammar does not allow."""
    shared, forward = shared_engine(model)

    def spoil(_batch: Any, scores: Tensor) -> Tensor:
        scores[0, 0] = torch.nan
        return scores

    with closing(shared):
        forward.after = spoil
        with pytest.raises(NonFiniteLogits):
            shared.generate(asked(1, grammar))


def test_half_precision_is_masked_too(grammar: OutputGrammar) -> None:
    """The answers fit, whatever rounding does to them."""
    model = ascii_model(dtype=torch.bfloat16)
    shared, forward = shared_engine(model)
    with closing(shared):
        requests = [asked(seed, grammar, **SAMPLED) for seed in range(6)]
        for answer in together(shared, forward, requests):
            assert grammar.read(answer.text) == text_of(answer)


@pytest.mark.parametrize("vocab", [VOCABULARY - 1, VOCABULARY, VOCABULARY + 40])
def test_a_mask_is_as_wide_as_the_scores(grammar: OutputGrammar, vocab: int) -> None:
    """A model may have more scores than its tokenizer has ids, and those are never chosen."""
    scores = torch.zeros(1, vocab)
    forbid(scores, [0], [grammar.start()])
    allowed = scores[0].isfinite().nonzero()[:, 0].tolist()
    assert allowed == [3 + 1 + ord("{") - ord(FIRST)]
