"""What a template file says: the border where YAML becomes a checked, frozen value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from contract.codec import check_plain
from contract.described import describe
from contract.errors import InvalidInput, SpecInvalid
from contract.ids import check_name
from contract.job_checks import MAX_DEADLINE_S
from templates.metaschema import check_metaschema
from templates.output_schema import check_output_schema
from templates.placeholders import variables_in
from templates.yaml_source import parse_documents, read_source

MAX_VARIABLES = 100
_TEXTS = {"content", "samples", "choices"}  # fields that hold what models or users say
_SHOWN_CHARS = 60
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Strict(BaseModel):
    # Pydantic's own messages would quote what was given, and that may be a prompt.
    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True
    )


class Message(_Strict):
    """One turn. `content` may hold `{{ name }}`: plain substitution, no logic."""

    role: Literal["system", "user", "assistant"]
    content: str


class InputSpec(_Strict):
    """The JSON Schema (draft 2020-12) that a job's variables must satisfy."""

    json_schema: dict[str, Any] = Field(alias="schema")


class OutputSpec(_Strict):
    """With `choices`, the answer is always exactly one of them; with a schema, JSON that fits."""

    choices: Annotated[tuple[str, ...], Field(min_length=2)] | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")

    @model_serializer(mode="wrap")
    def _plain(self, default: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Versions without a schema keep the digest that they had before there were any.
        plain: dict[str, Any] = default(self)
        return {k: v for k, v in plain.items() if v is not None or k == "choices"}


class GenerationSpec(_Strict):
    """How tokens are chosen. The default is greedy."""

    max_new_tokens: Annotated[int, Field(ge=1, le=32_768)] = 128
    min_new_tokens: Annotated[int, Field(ge=0, le=32_768)] = 0
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] = 0  # 0: no limit
    repetition_penalty: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    stop: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


class LimitsSpec(_Strict):
    """`deadline_s` counts from submit; a job past it ends as expired (see README, limits)."""

    deadline_s: Annotated[float, Field(gt=0, le=MAX_DEADLINE_S)] | None = None
    max_queue: Annotated[int, Field(ge=1)] | None = None


class Sample(_Strict):
    """Variables to try the template on, with the answer that is expected, if one is."""

    input: dict[str, Any]
    expected: str | None = None


class TemplateSpec(_Strict):
    """One version of a template, as its author wrote it."""

    tenant: str
    name: str
    model: str
    description: str = ""
    messages: Annotated[tuple[Message, ...], Field(min_length=1, max_length=1000)]
    input: InputSpec
    output: OutputSpec = OutputSpec()
    generation: GenerationSpec = GenerationSpec()
    limits: LimitsSpec = LimitsSpec()
    samples: Annotated[tuple[Sample, ...], Field(max_length=1000)] = ()  # each is tried
    strict: bool = False  # True: a job whose prefix does not verify fails, never runs uncached

    @field_validator("tenant", "name")
    @classmethod
    def _name(cls, value: str, info: Any) -> str:
        try:
            return check_name(info.field_name, value)
        except InvalidInput as error:
            raise ValueError(str(error)) from error

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_schema(self.input.json_schema)
        declared = set(self.input.json_schema.get("properties", {}))
        used = {name for message in self.messages for name in variables_in(message.content)}
        if len(used) > MAX_VARIABLES:  # each is tried alone, with hundreds of values
            raise ValueError(f"messages use {len(used)} variables; at most {MAX_VARIABLES}")
        if missing := sorted(used - declared):
            raise ValueError(f"messages use {missing}, which input.schema does not declare")
        required = set(self.input.json_schema.get("required", []))
        if optional := sorted(used - required):
            raise ValueError(
                f"messages use {optional}, which input.schema does not list under 'required'; "
                "a variable has no value to fall back to"
            )
        if self.generation.min_new_tokens > self.generation.max_new_tokens:
            raise ValueError("generation.min_new_tokens is over max_new_tokens")
        choices = self.output.choices
        if choices and (len(set(choices)) < len(choices) or not all(c.strip() for c in choices)):
            raise ValueError("output.choices must differ and not be blank")
        self._check_output_schema()
        return self

    def _check_output_schema(self) -> None:
        if self.output.json_schema is None:
            return
        if self.output.choices is not None:
            raise ValueError("output has both choices and schema; give one of them")
        if self.generation.stop:
            raise ValueError(
                "generation.stop would cut JSON short; with output.schema an answer ends by itself"
            )
        if self.generation.min_new_tokens:
            raise ValueError(
                "generation.min_new_tokens cannot be with output.schema: an answer ends once whole"
            )
        check_output_schema(self.output.json_schema)

    @property
    def variables(self) -> tuple[str, ...]:
        """Names used in the messages, in order of first use."""
        names = (name for message in self.messages for name in variables_in(message.content))
        return tuple(dict.fromkeys(names))

    def to_plain(self) -> dict[str, Any]:
        """Plain data that `parse_spec` reads back to an equal spec; the digest is taken of it."""
        return self.model_dump(mode="json", by_alias=True)


def parse_spec(data: object, *, source: str = "the template") -> TemplateSpec:
    """Check plain data. Raises SpecInvalid that names the field, its value and the remedy."""
    try:
        check_plain(data)
        return TemplateSpec.model_validate(data)
    except InvalidInput as error:
        raise SpecInvalid(
            f"{source} holds a value that YAML or JSON text cannot", given=error
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part)[:60] for part in first["loc"]) or "the whole file"
        more = error.error_count() - 1
        raise SpecInvalid(
            f"{source} is no template: {field}",
            given=_shown(first["loc"], first["input"]),
            expected=first["msg"].removeprefix("Value error, "),
            remedy=f"{more} more problem(s) follow once this one is mended." if more else "",
        ) from error


def load_spec(path: Path) -> TemplateSpec:
    """Read a file that holds one template. Raises SpecInvalid."""
    return spec_of(read_source(path), source=str(path))


def spec_of(text: str, *, source: str) -> TemplateSpec:
    """Read the text of a file that holds one template. Raises SpecInvalid."""
    documents = parse_documents(text, source=source)
    if len(documents) != 1:
        raise SpecInvalid(
            f"{source} is no template file",
            given=f"{len(documents)} YAML documents",
            expected="one",
            remedy="Read an exported bundle with 'prefillq templates import'.",
        )
    return parse_spec(documents[0], source=source)


def _shown(place: tuple[int | str, ...], value: object) -> str:
    """A value for a message: settings as they are, but never what is or may be prompt text."""
    if isinstance(value, bool | int | float) or value is None:
        return repr(value)
    if isinstance(value, str) and len(value) <= _SHOWN_CHARS and not _TEXTS & set(place):
        return repr(value)
    return describe(value)


def _check_schema(schema: dict[str, Any]) -> None:
    check_metaschema(schema, "input.schema")
    for keyword, value in _keywords(schema):
        if keyword in ("$ref", "$dynamicRef") and not value.startswith("#"):
            raise ValueError(
                f"input.schema refers to {value!r}; use places inside it (#/$defs/...)"
            )
        if keyword in ("pattern", "patternProperties"):
            _check_pattern(value)
    if schema.get("type") != "object":
        raise ValueError("input.schema must have type: object")
    if bad := [name for name in schema.get("properties", {}) if not _VARIABLE.fullmatch(name)]:
        raise ValueError(f"not variable names: {bad}; use letters, digits and _")


def _keywords(schema: object) -> Iterator[tuple[str, str]]:
    """All text-valued keywords of a schema, at any depth, and keys that are patterns."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in ("const", "default", "enum", "examples"):
                continue  # data, not schema
            if isinstance(value, str):
                yield key, value
            if key == "patternProperties" and isinstance(value, dict):
                yield from ((key, pattern) for pattern in value)
            yield from _keywords(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _keywords(item)


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"input.schema has the pattern {pattern!r:.60}: {error}") from error
