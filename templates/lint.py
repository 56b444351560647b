"""What is wrong with a template, or makes its cached prefix worth less than it could be.

`lint_spec` needs the file alone, `lint_prompt` also the compiled template and what compiled it. No
weights are loaded and no Redis is asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from contract.described import place_and_rule
from templates.fill import fill, most_new_tokens
from templates.finding import Finding
from templates.lint_prefix import Compiled, lint_prefix
from templates.lint_texts import lint_texts
from templates.output_schema import endless_places, without_costly
from templates.spec import TemplateSpec


def lint_spec(spec: TemplateSpec, *, today: date | None = None) -> Iterator[Finding]:
    """What the file alone shows. `today` is for the dates in its texts; None: by this clock."""
    yield from lint_texts(spec, today=today or datetime.now(UTC).date())
    declared = spec.input.json_schema.get("properties", {})
    if unused := [name for name in declared if name not in spec.variables]:
        yield Finding(
            level="warning",
            code="unused_variable",
            message=f"input.schema declares {', '.join(unused)}, which no message uses",
            remedy="Use it as {{ " + unused[0] + " }}, or take it out of the schema.",
        )
    if not spec.variables:
        yield Finding(
            level="warning",
            code="no_variables",
            message="no message holds a variable, so that every job asks the same",
            remedy="Write {{ name }} where the jobs differ.",
        )
    if not spec.samples:
        yield Finding(
            level="warning",
            code="no_samples",
            message="there are no samples",
            remedy="Add two or more: publishing tries each, and lint measures the prefix by them.",
        )
    yield from _samples(spec)
    yield from _output(spec)


def _output(spec: TemplateSpec) -> Iterator[Finding]:
    schema = spec.output.json_schema
    if schema is None:
        return
    if places := endless_places(schema):
        yield Finding(
            level="warning",
            code="answer_endless",
            message=f"output.schema lets an answer grow without end: {', '.join(places[:5])}",
            remedy="Give texts a maxLength and arrays maxItems, so that answers end within "
            "generation.max_new_tokens.",
        )
    validator = Draft202012Validator(without_costly(schema), registry=Registry())
    for number, sample in enumerate(spec.samples, 1):
        if sample.expected is None:
            continue
        try:
            problem = best_match(validator.iter_errors(json.loads(sample.expected)))
            why = "" if problem is None else "; ".join(place_and_rule(problem))
        except (ValueError, RecursionError):
            why = "it is no JSON"
        if why:
            yield Finding(
                level="error",
                code="expected_impossible",
                message=f"sample {number} expects what output.schema does not allow: {why}",
                remedy="Expect JSON that fits the schema; spaces and order do not matter.",
            )


def _samples(spec: TemplateSpec) -> Iterator[Finding]:
    # An empty registry: nothing that a schema refers to is fetched.
    validator = Draft202012Validator(spec.input.json_schema, registry=Registry())
    choices = spec.output.choices
    for number, sample in enumerate(spec.samples, 1):
        try:
            problems = list(validator.iter_errors(sample.input))
        except (Unresolvable, re.error, RecursionError) as error:
            yield Finding(
                level="error",
                code="schema_unusable",
                message=f"input.schema cannot be applied to sample {number}: {error!s:.200}",
                remedy="Let every $ref name a place that the schema has.",
            )
            return
        for problem in problems:
            place, given, expected = place_and_rule(problem)
            yield Finding(
                level="error",
                code="sample_invalid",
                message=f"sample {number} does not fit input.schema: "
                f"{place}; given: {given}; expected: {expected}",
                remedy="Mend the sample or the schema.",
            )
        if choices and sample.expected is not None and sample.expected not in choices:
            yield Finding(
                level="error",
                code="expected_impossible",
                message=f"sample {number} expects {sample.expected!r}, "
                f"which is none of output.choices ({', '.join(choices)})",
                remedy="Expect one of the choices, to the letter.",
            )


def lint_prompt(it: Compiled) -> Iterator[Finding]:
    """What shows in tokens. Samples must fit the schema; see `lint_spec`."""
    prompts = [len(fill(it.compiled, s.input, it.tokenizer).ids) for s in it.spec.samples]
    yield from lint_prefix(it, prompts)
    if it.spec.strict and not it.compiled.prefix_ids:
        yield Finding(
            level="error",
            code="strict_without_prefix",
            message="the template is strict and its prompts have no token in common, so that every "
            "job would fail",
            remedy="Begin with fixed text, or leave strict out.",
        )
    yield from _positions(it, prompts)


def _positions(it: Compiled, prompts: list[int]) -> Iterator[Finding]:
    most = it.model.max_positions
    new = most_new_tokens(it.spec, it.tokenizer)
    for number, tokens in enumerate(prompts, 1):
        if most is not None and tokens + new > most:
            yield Finding(
                level="error",
                code="over_model_limit",
                message=f"sample {number} takes {tokens} prompt tokens and up to {new} new ones, "
                f"the model has {most} positions",
                remedy="Shorten the messages, or lower generation.max_new_tokens.",
            )
