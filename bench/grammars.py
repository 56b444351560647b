"""Two libraries that hold an answer to a JSON Schema: llguidance, which workers use, and xgrammar.

    python -m bench.grammars [--rounds 5] [--steps 24] [--library llguidance] [--json]

For each of ten schemas: milliseconds to compile it, and milliseconds a step to make the masks of 1,
8 and 32 rows, with SmolLM2's tokenizer of 49,152 ids. And which keywords of JSON Schema a library
enforces: it must refuse a text that breaks the keyword and accept one that does not.

A library that is not installed is left out; `pip install xgrammar` into an environment of its own
for that one, which is no dependency of prefillq.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Protocol

import click
import torch

from bench.machine import describe_machine
from bench.schemas import SCHEMAS
from contract.console import emit_json, json_option
from contract.model_store import find_model
from contract.settings import Settings
from templates.tokenizer import TemplateTokenizer
from worker.options import DEFAULT_MODEL

ROWS = (1, 8, 32)
# A keyword, a schema that has it, a text that fits and one that does not.
FEATURES: tuple[tuple[str, Any, str, str], ...] = (
    ("type list", {"type": ["integer", "null"]}, "null", '"a"'),
    ("enum", {"enum": ["a", 1, [2]]}, "[2]", "[3]"),
    ("const", {"const": {"a": 1}}, '{"a": 1}', '{"a": 2}'),
    ("minLength", {"type": "string", "minLength": 2}, '"ab"', '"a"'),
    ("maxLength", {"type": "string", "maxLength": 2}, '"ab"', '"abc"'),
    ("pattern", {"type": "string", "pattern": "^a+$"}, '"aa"', '"ab"'),
    ("pattern, anywhere", {"type": "string", "pattern": "b"}, '"abc"', '"ac"'),
    (
        "pattern and maxLength",
        {"type": "string", "pattern": "^a+$", "maxLength": 2},
        '"aa"',
        '"aaa"',
    ),
    ("format date", {"type": "string", "format": "date"}, '"2026-02-03"', '"2026-13-03"'),
    ("format email", {"type": "string", "format": "email"}, '"a@b.cd"', '"a"'),
    (
        "format uuid",
        {"type": "string", "format": "uuid"},
        f'"{"a" * 8}-{"1111-" * 3}{"b" * 12}"',
        '"a"',
    ),
    ("minimum", {"type": "integer", "minimum": 5}, "12", "4"),
    ("maximum", {"type": "integer", "maximum": 120}, "119", "121"),
    ("number bounds", {"type": "number", "minimum": 0.5, "maximum": 1.5}, "1.25", "1.75"),
    ("exclusiveMinimum", {"type": "integer", "exclusiveMinimum": 5}, "6", "5"),
    ("multipleOf, whole", {"type": "integer", "multipleOf": 5}, "15", "16"),
    ("multipleOf, decimal", {"type": "number", "multipleOf": 0.01}, "1.25", "1.255"),
    ("minItems", {"type": "array", "items": {"type": "null"}, "minItems": 1}, "[null]", "[]"),
    ("maxItems", {"type": "array", "items": {"const": 1}, "maxItems": 1}, "[1]", "[1, 1]"),
    (
        "required",
        {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
        '{"a": 1}',
        "{}",
    ),
    (
        "optional",
        {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": False},
        "{}",
        '{"b": 1}',
    ),
    ("anyOf", {"anyOf": [{"const": 1}, {"const": "a"}]}, '"a"', "2"),
    ("$ref", {"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}}, "1", "2"),
)


class Library(Protocol):
    """What is measured of a library."""

    name: str

    def compile(self, schema: Mapping[str, Any]) -> Any: ...
    def start(self, compiled: Any) -> Any: ...
    def fill(self, runs: Sequence[Any]) -> torch.Tensor: ...
    def take(self, run: Any, token: int) -> None: ...
    def accepts(self, compiled: Any, ids: Sequence[int]) -> bool: ...


class Llguidance:
    name = "llguidance"

    def __init__(self, tokenizer: TemplateTokenizer, eos_id: int) -> None:
        from worker.grammars import LlguidanceMasks

        self._masks = LlguidanceMasks(tokenizer, (eos_id,))

    def compile(self, schema: Mapping[str, Any]) -> Any:
        from templates.grammar import compile_schema
        from worker.grammars import OutputGrammar

        matcher = compile_schema(self._masks.tokenizer, schema)
        return OutputGrammar(matcher, self._masks, schema)

    def start(self, compiled: Any) -> Any:
        return compiled.start()

    def fill(self, runs: Sequence[Any]) -> torch.Tensor:
        return self._masks.allowed(runs)

    def take(self, run: Any, token: int) -> None:
        run.matcher.consume_token(token)

    def accepts(self, compiled: Any, ids: Sequence[int]) -> bool:
        matcher = compiled.start().matcher
        return matcher.try_consume_tokens(list(ids)) == len(ids) and matcher.is_accepting()


class Xgrammar:
    name = "xgrammar"

    def __init__(self, tokenizer: TemplateTokenizer, eos_id: int) -> None:
        import xgrammar

        self._x = xgrammar
        vocab = json.loads(tokenizer.to_json())["model"]["vocab"]
        names = sorted(vocab, key=vocab.__getitem__)
        info = xgrammar.TokenizerInfo(
            names, vocab_type=xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=[eos_id]
        )
        self._size = len(names)
        # Without a cache: what a worker that sees a schema for the first time pays.
        self._compiler = xgrammar.GrammarCompiler(info, cache_enabled=False)
        self._batch = xgrammar.BatchGrammarMatcher()

    def compile(self, schema: Mapping[str, Any]) -> Any:
        return self._compiler.compile_json_schema(
            json.dumps(schema), any_whitespace=False, separators=(", ", ": "), strict_mode=True
        )

    def start(self, compiled: Any) -> Any:
        return self._x.GrammarMatcher(compiled)

    def fill(self, runs: Sequence[Any]) -> torch.Tensor:
        bits: torch.Tensor = self._x.allocate_token_bitmask(len(runs), self._size)
        self._batch.batch_fill_next_token_bitmask(list(runs), bits)
        return bits

    def take(self, run: Any, token: int) -> None:
        run.accept_token(token)

    def accepts(self, compiled: Any, ids: Sequence[int]) -> bool:
        run = self._x.GrammarMatcher(compiled, terminate_without_stop_token=True)
        return all(run.accept_token(token) for token in ids) and run.is_terminated()


_LIBRARIES: Mapping[str, Callable[[TemplateTokenizer, int], Library]] = {
    "llguidance": Llguidance,
    "xgrammar": Xgrammar,
}


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--steps", default=24, show_default=True, type=click.IntRange(min=1))
@click.option("--library", type=click.Choice(sorted(_LIBRARIES)), help="Only this one.")
@json_option
def main(*, rounds: int, steps: int, library: str | None, as_json: bool) -> None:
    """Print compile and mask times, and the keywords each library enforces."""
    folder = find_model(DEFAULT_MODEL, Settings())
    tokenizer = TemplateTokenizer.load(folder.path)
    figures: dict[str, Any] = {"machine": describe_machine(), "rounds": rounds}
    for name, make in _LIBRARIES.items():
        if library not in (None, name) or importlib.util.find_spec(name) is None:
            continue
        began = time.perf_counter()
        made = make(tokenizer, folder.eos_ids[0])
        figures[name] = {
            "tokenizer_s": time.perf_counter() - began,
            **_times(made, rounds, steps),
            "features": {feature: _enforced(made, tokenizer, *rest) for feature, *rest in FEATURES},
        }
    if as_json:
        emit_json(figures)
        return
    click.echo(figures["machine"])
    for name in _LIBRARIES.keys() & figures.keys():
        found = figures[name]
        click.echo(f"\n{name}: {found['tokenizer_s']:.2f} s for the tokenizer")
        for schema, times in found["schemas"].items():
            masks = "  ".join(f"{rows} rows {times[f'mask_ms_{rows}']:.3f}" for rows in ROWS)
            click.echo(f"  {schema:12} compile {times['compile_ms']:8.2f} ms; mask ms: {masks}")
        lacking = [feature for feature, how in found["features"].items() if how != "enforced"]
        click.echo(f"  enforces {len(FEATURES) - len(lacking)} of {len(FEATURES)} keywords")
        for feature in lacking:
            click.echo(f"    {feature}: {found['features'][feature]}")


def _times(library: Library, rounds: int, steps: int) -> dict[str, Any]:
    found = {}
    for name, schema in SCHEMAS.items():
        compiling = []
        for _ in range(rounds):
            began = time.perf_counter()
            compiled = library.compile(schema)
            compiling.append(time.perf_counter() - began)
        times = {"compile_ms": median(compiling) * 1e3}
        for rows in ROWS:
            masks: list[float] = []
            for round_ in range(rounds):
                masks += _walk(library, compiled, rows, steps, seed=round_)
            times[f"mask_ms_{rows}"] = median(masks) * 1e3
            times[f"worst_mask_ms_{rows}"] = max(masks) * 1e3
        found[name] = times
    return {"schemas": found}


def _walk(library: Library, compiled: Any, rows: int, steps: int, *, seed: int) -> list[float]:
    """Seconds of each step's masks, for rows that take different ways."""
    noise = torch.Generator().manual_seed(seed)
    runs = [library.start(compiled) for _ in range(rows)]
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        bits = library.fill(runs)
        seconds.append(time.perf_counter() - began)
        for row, run in enumerate(runs):
            token = _some(bits[row], noise)
            if token is None:  # only the end is left
                runs[row] = library.start(compiled)
            else:
                library.take(run, token)
    return seconds


def _some(bits: torch.Tensor, noise: torch.Generator) -> int | None:
    """An ordinary token that the mask allows, drawn evenly."""
    flags = (bits[:, None].long() >> torch.arange(32)) & 1
    ids = flags.view(-1)[17:].nonzero()[:, 0] + 17  # the first 17 are SmolLM2's control tokens
    if not len(ids):
        return None
    return int(ids[torch.randint(len(ids), (1,), generator=noise)])


def _enforced(
    library: Library, tokenizer: TemplateTokenizer, schema: Any, good: str, bad: str
) -> str:
    try:
        compiled = library.compile(schema)
        if not library.accepts(compiled, tokenizer.encode_ordinary(good)):
            return "refuses what fits"
        return (
            "lets pass what does not fit"
            if library.accepts(compiled, tokenizer.encode_ordinary(bad))
            else "enforced"
        )
    except Exception as error:  # noqa: BLE001 - each library has errors of its own
        return f"refused: {' '.join(str(error).split()):.60}"


if __name__ == "__main__":
    main()
