"""Grammars of schemas on a real tokenizer: compiled once, bounded, and no way around them."""

from __future__ import annotations

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator

from bench.schemas import SCHEMAS
from contract.model_folder import ModelFolder
from templates.answers import AnswerInvalid
from templates.grammar import GrammarRefused
from templates.output_schema import check_output_schema, without_costly
from templates.tokenizer import TemplateTokenizer
from tests.support.made_tokenizers import byte_level, control, made
from worker import grammars as module
from worker.engine.base import GrammarFailed
from worker.engine.masks import forbid
from worker.grammars import Grammars, OutputGrammar

VOCAB = 49152


@pytest.fixture(scope="module")
def tokenizer(smollm2: ModelFolder) -> TemplateTokenizer:
    return TemplateTokenizer.load(smollm2.path)


@pytest.fixture(scope="module")
def grammars(tokenizer: TemplateTokenizer) -> Grammars:
    return Grammars(tokenizer, tokenizer_digest="smollm2", eos_ids=(2, 0))


def walk(grammar: OutputGrammar, seed: int, *, most: int = 2000) -> list[int]:
    """Ids of an answer by a model that has no opinion at all."""
    noise = torch.Generator().manual_seed(seed)
    run, ids = grammar.start(), []
    while len(ids) < most:
        scores = torch.rand(1, VOCAB, generator=noise)
        forbid(scores, [0], [run])
        ids.append(int(scores.argmax()))
        if run.advance(ids[-1]):
            return ids
    raise AssertionError(f"no end after {most} tokens")


@pytest.mark.parametrize("name", SCHEMAS)
def test_whatever_is_chosen_fits(
    grammars: Grammars, tokenizer: TemplateTokenizer, name: str
) -> None:
    """Noise for a model, and each answer parses, fits, holds no control token and is whole."""
    grammar = grammars.get(SCHEMAS[name])
    validator = Draft202012Validator(without_costly(SCHEMAS[name]))
    for seed in range(6):
        ids = walk(grammar, seed)
        data = json.loads(tokenizer.decode(ids))
        validator.validate(data)
        assert grammar.read(tokenizer.decode(ids)) == data
        assert not set(ids[:-1]) & set(tokenizer.control_tokens.values())


def test_control_tokens_are_never_allowed_and_an_end_only_when_whole(grammars: Grammars) -> None:
    """Within a text every ordinary token may follow, and none that a chat template writes."""
    grammar = grammars.get({"type": "string", "maxLength": 500})
    run: Any = grammar.start()
    assert not run.advance(run.masks.tokenizer.tokenize_str('"')[0])
    scores = torch.zeros(1, VOCAB)
    forbid(scores, [0], [run])
    allowed = set(scores[0].isfinite().nonzero()[:, 0].tolist())
    assert len(allowed) > 40_000
    assert not allowed & set(range(17))
    with pytest.raises(GrammarFailed):
        run.advance(2)


def test_added_tokens_that_are_not_special_stay_out_too() -> None:
    """`<think>` spells text that a string may hold, and is a control token all the same."""
    tokens = [control("<s>"), control("</s>"), control("<think>", special=False)]
    tokenizer = TemplateTokenizer(json.loads(byte_level(tokens=tokens).to_str()))
    grammar = Grammars(tokenizer, tokenizer_digest="made", eos_ids=(2,)).get(
        {"type": "string", "maxLength": 50}
    )
    run: Any = grammar.start()
    run.advance(run.masks.tokenizer.tokenize_str('"')[0])
    scores = torch.zeros(1, run.masks.tokenizer.vocab_size)
    forbid(scores, [0], [run])
    assert not scores[0, list(tokenizer.control_tokens.values())].isfinite().any()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"label": "pay', "no JSON"),
        ('{"label": "other"}', "does not fit"),
        ('{"label": "payment", "label2": 1}', "does not fit|not a field"),
        ('{"n": 1' + "0" * 400 + "}", "no record can"),
        ('{"n": 1e999}', "no record can"),
        ("[" * 5000, "no JSON"),
        ('"\\ud800"', "no record can"),
    ],
    ids=["half", "other value", "more", "long integer", "infinity", "deep", "half a character"],
)
def test_what_a_grammar_let_pass_is_looked_at_again(
    grammars: Grammars, text: str, problem: str
) -> None:
    """And never quoted: it may be what a user wrote."""
    with pytest.raises(AnswerInvalid, match=problem) as refused:
        grammars.get(SCHEMAS["label"]).read(text)
    assert "other" not in str(refused.value)


def test_a_schema_is_compiled_once_and_the_oldest_forgotten(
    grammars: Grammars, tokenizer: TemplateTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many jobs ask at once; another order of properties is another grammar."""
    compiled: list[Any] = []
    compile_schema = module.compile_schema

    def slowly(inner: Any, schema: Any) -> Any:
        compiled.append(schema)
        time.sleep(0.05)
        return compile_schema(inner, schema)

    monkeypatch.setattr(module, "compile_schema", slowly)
    monkeypatch.setattr(module, "MAX_GRAMMARS", 3)
    kept = Grammars(tokenizer, tokenizer_digest="smollm2", eos_ids=(2,))
    monkeypatch.setattr(Grammars, "_masks", grammars._masks)
    schemas = [{"const": n} for n in range(4)]
    barrier = threading.Barrier(8)

    def ask(_: int) -> OutputGrammar:
        barrier.wait()
        return kept.get(schemas[0])

    with ThreadPoolExecutor(8) as threads:
        assert len(set(map(id, threads.map(ask, range(8))))) == 1
    assert len(compiled) == 1
    for schema in (*schemas, schemas[0]):
        kept.get(schema)
    assert compiled == [*schemas, schemas[0]]
    one = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}
    other = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}}}
    assert kept.get(one) is not kept.get(other)


HOSTILE: dict[str, dict[str, Any]] = {
    "nested repetition": {"type": "string", "pattern": "^(a+)+$", "maxLength": 60},
    "counted repetition": {"type": "string", "pattern": "^((a{0,60}b{0,60}){0,60}c{0,60}){0,60}$"},
    "far choices": {"type": "string", "pattern": "^(a|b)*a(a|b){60}$"},
    "many ways": {"type": "string", "pattern": "^(.*a){40}.*$", "maxLength": 500},
    "long texts in long arrays": {
        "type": "array",
        "maxItems": 4096,
        "items": {
            "type": "array",
            "maxItems": 4096,
            "items": {"type": "string", "maxLength": 4096},
        },
    },
    "a thousand words": {"enum": [f"{'word' * 10}{n}" for n in range(1000)]},
    "many optional": {
        "type": "object",
        "properties": {f"p{n}": {"type": "string", "maxLength": 9} for n in range(400)},
    },
    "all formats": {
        "anyOf": [{"type": "string", "format": f} for f in ("email", "uri", "hostname", "ipv6")]
    },
    "a pattern and a format": {"type": "string", "format": "date", "pattern": "^x"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_take_bounded_time(grammars: Grammars, name: str) -> None:
    """Compiling and each step, in a processor's time; what is too much is refused, in the job that
    asked for it only.
    """
    check_output_schema(HOSTILE[name])
    began = time.process_time()
    try:
        grammar = grammars.get(HOSTILE[name])
    except GrammarRefused:
        with pytest.raises(GrammarRefused):  # and not tried again
            grammars.get(HOSTILE[name])
        assert time.process_time() - began < 5
        return
    assert time.process_time() - began < 5
    run: Any = grammar.start()
    rng = random.Random(0)
    slowest = 0.0
    for _ in range(60):
        scores = torch.zeros(1, VOCAB)
        step = time.process_time()
        forbid(scores, [0], [run])
        slowest = max(slowest, time.process_time() - step)
        allowed = scores[0].isfinite().nonzero()[:, 0].tolist()
        try:
            if run.advance(rng.choice(allowed)):
                break
        except GrammarFailed:
            break
    assert slowest < 3


@pytest.mark.parametrize("kind", ["word piece", "word level", "metaspace first"])
def test_a_tokenizer_without_bytes_is_refused(kind: str) -> None:
    """It cannot spell every JSON; templates without a schema work with it."""
    with pytest.raises(GrammarRefused, match="tokenizer"):
        Grammars(made(kind), tokenizer_digest=kind, eos_ids=(2,)).get({"const": 1})
