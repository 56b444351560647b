"""What is wrong with a template, or makes its cached prefix worth less than it could be.

Pure: no model is loaded and no Redis asked. `lint_spec` needs the file alone, `lint_prompt`
also the compiled template and its tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Literal as OneOf

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from contract.described import place_and_rule
from contract.errors import PrefillqError
from templates.compiled import CompiledTemplate
from templates.fill import fill
from templates.placeholders import Literal, Variable, parse_content
from templates.spec import TemplateSpec
from templates.tokenizer import TemplateTokenizer

MIN_PREFIX_TOKENS = 16
MIN_PREFIX_SHARE = 0.5
MIN_SAVED_TOKENS = 16  # a reorder that saves fewer is not worth a remark

Level = OneOf["error", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One remark. A file with a finding of level `error` cannot be published."""

    level: Level
    code: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.level}: {self.message} [{self.code}]. {self.remedy}"

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def finding_of(error: PrefillqError) -> Finding:
    """An error of reading or compiling a template, as a finding."""
    return Finding(
        level="error",
        code=error.code,
        message=str(error).removesuffix(error.remedy).rstrip(" ."),
        remedy=error.remedy,
    )


def lint_spec(spec: TemplateSpec) -> Iterator[Finding]:
    """What the file alone shows."""
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


def lint_prompt(
    spec: TemplateSpec,
    compiled: CompiledTemplate,
    tokenizer: TemplateTokenizer,
    *,
    max_positions: int | None,
) -> Iterator[Finding]:
    """What shows in tokens. Samples must fit the schema; see `lint_spec`."""
    prompts = [len(fill(compiled, sample.input, tokenizer).ids) for sample in spec.samples]
    prefix = len(compiled.prefix_ids)
    share = prefix / median(prompts) if prompts else 1.0
    if prefix < MIN_PREFIX_TOKENS or share < MIN_PREFIX_SHARE:
        part = f", {share:.0%} of a sample's prompt" if prompts else ""
        yield Finding(
            level="warning",
            code="short_prefix",
            message=f"only {prefix} tokens are the same for every job{part}",
            remedy="Put fixed text (rules, examples) before the first variable.",
        )
    yield from _late_text(spec, tokenizer)
    yield from _positions(spec, prompts, max_positions)


def _late_text(spec: TemplateSpec, tokenizer: TemplateTokenizer) -> Iterator[Finding]:
    """Fixed text behind the first variable: it could be in the prefix, and is not."""
    parts = [part for message in spec.messages for part in parse_content(message.content)]
    first = next((i for i, part in enumerate(parts) if isinstance(part, Variable)), len(parts))
    late = [
        len(tokenizer.encode_ordinary(part.text))
        for part in parts[first:]
        if isinstance(part, Literal)
    ]
    saved = sum(tokens for tokens in late if tokens >= MIN_SAVED_TOKENS)
    if saved:
        name = spec.variables[0]
        yield Finding(
            level="warning",
            code="variable_before_text",
            message=f"about {saved} tokens of fixed text follow {{{{ {name} }}}} "
            "and are computed again for every job",
            remedy=f"Move {{{{ {name} }}}} behind that text; the prefix grows by as much.",
        )


def _positions(
    spec: TemplateSpec, prompts: list[int], max_positions: int | None
) -> Iterator[Finding]:
    new = spec.generation.max_new_tokens
    for number, tokens in enumerate(prompts, 1):
        if max_positions is not None and tokens + new > max_positions:
            yield Finding(
                level="error",
                code="over_model_limit",
                message=f"sample {number} takes {tokens} prompt tokens and up to {new} new ones, "
                f"the model has {max_positions} positions",
                remedy="Shorten the messages, or lower generation.max_new_tokens.",
            )


def errors_of(findings: list[Finding]) -> list[Finding]:
    """Those that keep a template from being published."""
    return [finding for finding in findings if finding.level == "error"]
