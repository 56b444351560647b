"""Sampled jobs under ten schemas on the real model: each answer must parse and fit.

    python -m bench.json_answers [--jobs 500] [--first 0] [--batch 32] [--temperature 1.0] [--json]

Each job asks for one schema's JSON behind that schema's prefix, with random numbers of its own;
job 7 is the same whether it is the 8th of a run or, with --first 7, the 1st. What comes back is
checked with
jsonschema against the schema as its author wrote it, patterns included. Then the same prompts
generate as many tokens each without a schema, and both speeds are told. Exits with 1 unless all
answers fit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from typing import Any

import click
from jsonschema import Draft202012Validator

from bench.engines import Engines, load_engines, timed
from bench.machine import describe_machine
from bench.schemas import MAX_NEW_TOKENS, SCHEMAS
from contract.console import emit_json, json_option
from templates.output_schema import check_output_schema, schema_text
from templates.spec import GenerationSpec
from worker.engine.base import Generation, GenerationRequest
from worker.grammars import Grammars
from worker.options import DEFAULT_MODEL
from worker.prefix.entry import PrefixEntry

_RULES = (
    "<|im_start|>system\nYou read messages of customers and answer in JSON, with nothing before or "
    "after it. You invent nothing that the message does not say.<|im_end|>\n<|im_start|>user\n"
)
_TOPICS = ("an invoice", "a broken lamp", "a password", "a late parcel", "two tickets to Rome")


@click.command()
@click.option("--jobs", default=500, show_default=True, type=click.IntRange(min=1))
@click.option("--first", default=0, show_default=True, type=click.IntRange(min=0))
@click.option("--batch", default=32, show_default=True, type=click.IntRange(min=1))
@click.option("--temperature", default=1.0, show_default=True, type=click.FloatRange(min=0, max=10))
@click.option("--no-compare", is_flag=True, help="Leave the jobs without a schema out.")
@json_option
def main(
    *, jobs: int, first: int, batch: int, temperature: float, no_compare: bool, as_json: bool
) -> None:
    """Run jobs under ten schemas, check every answer, and compare the speed with no schema."""
    engines = load_engines(DEFAULT_MODEL, rows=batch)
    requests = make_requests(engines, range(first, first + jobs), temperature)
    with ThreadPoolExecutor(max_workers=2 * batch) as threads:
        list(threads.map(engines.ours.generate, [_as_long(r, 4) for r, _ in requests[:batch]]))
        seconds, answers = timed(
            lambda: list(threads.map(engines.ours.generate, [request for request, _ in requests]))
        )
        lengths = [len(answer.token_ids) for answer in answers]
        plain = [_as_long(r, n) for (r, _), n in zip(requests, lengths, strict=True)]
        plain_seconds = 0.0
        if not no_compare:
            plain_seconds, _ = timed(lambda: list(threads.map(engines.ours.generate, plain)))
    engines.ours.close()
    found = Counter(
        fault_of(answer, SCHEMAS[name]) for answer, (_, name) in zip(answers, requests, strict=True)
    )
    tokens = sum(lengths)
    figures = {
        "machine": describe_machine(),
        "engine": engines.ours.name,
        "jobs": jobs,
        "schemas": len(SCHEMAS),
        "temperature": temperature,
        "batch": batch,
        "parse_and_fit": found.pop("", 0),
        "faults": dict(found),
        "tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "tokens_per_s_without_schema": tokens / plain_seconds if plain_seconds else None,
        "jobs_per_s": jobs / seconds,
        "jobs_per_s_without_schema": jobs / plain_seconds if plain_seconds else None,
    }
    if as_json:
        emit_json(figures)
    else:
        for name, value in figures.items():
            click.echo(
                f"{name:28} {value:.4g}" if isinstance(value, float) else f"{name:28} {value}"
            )
    if figures["parse_and_fit"] != jobs:
        click.get_current_context().exit(1)


def make_requests(
    engines: Engines, numbers: Iterable[int], temperature: float
) -> list[tuple[GenerationRequest, str]]:
    """Requests and the names of their schemas, which take turns."""
    tokenizer, folder = engines.model.tokenizer, engines.model.folder
    grammars = Grammars(tokenizer, tokenizer_digest=folder.tokenizer_digest, eos_ids=folder.eos_ids)
    names = list(SCHEMAS)
    entries: dict[str, PrefixEntry] = {}
    requests = []
    for number in numbers:
        name = names[number % len(names)]
        head = tokenizer.encode_trusted(f"{_RULES}Schema: {schema_text(SCHEMAS[name])}\n")
        if name not in entries:
            check_output_schema(SCHEMAS[name])
            entries[name] = engines.ours.prefill(engines.key(name), head)
        topic = _TOPICS[number // len(names) % len(_TOPICS)]
        tail = f"Message {number} is about {topic}.<|im_end|>\n<|im_start|>assistant\n"
        request = GenerationRequest(
            ids=head + tokenizer.encode_trusted(tail),
            generation=GenerationSpec(
                max_new_tokens=MAX_NEW_TOKENS, temperature=temperature, seed=number
            ),
            grammar=grammars.get(SCHEMAS[name]),
            entry=entries[name],
        )
        requests.append((request, name))
    return requests


def fault_of(answer: Generation, schema: Mapping[str, Any]) -> str:
    """What is wrong with an answer, or nothing."""
    if answer.finish_reason != "stop":
        return answer.finish_reason
    try:
        data = json.loads(answer.text)
    except ValueError:
        return "does not parse"
    # A float is seldom a whole multiple of 0.01; as a decimal number, what was written is.
    exact = json.loads(answer.text, parse_float=Decimal)
    if not Draft202012Validator(without_multiples(schema)).is_valid(data):
        return "does not fit"
    return "" if _whole_multiples(exact, schema) else "is no multiple"


def without_multiples(schema: Any) -> Any:
    """The schema without `multipleOf`."""
    if isinstance(schema, list):
        return [without_multiples(part) for part in schema]
    if isinstance(schema, dict):
        return {k: without_multiples(v) for k, v in schema.items() if k != "multipleOf"}
    return schema


def _whole_multiples(data: Any, schema: Mapping[str, Any]) -> bool:
    """For `multipleOf` at the top or in a property, which is where SCHEMAS have it."""
    if "multipleOf" in schema:
        return bool(Decimal(data) % Decimal(str(schema["multipleOf"])) == 0)
    return not isinstance(data, dict) or all(
        _whole_multiples(data[name], part)
        for name, part in schema.get("properties", {}).items()
        if name in data
    )


def _as_long(request: GenerationRequest, tokens: int) -> GenerationRequest:
    generation = request.generation.model_copy(
        update={"max_new_tokens": tokens, "min_new_tokens": tokens}
    )
    return replace(request, grammar=None, generation=generation)


if __name__ == "__main__":
    main()
