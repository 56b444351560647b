"""What shows in tokens: how much of the prompt every job shares, and what keeps it from more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from contract.errors import InvalidInput, TemplateRefused
from contract.model_folder import ModelFolder
from templates.compile import compile_template
from templates.compiled import CompiledTemplate, Control, Piece
from templates.finding import Finding
from templates.lint_texts import changes_by_name
from templates.placeholders import Literal, Variable, content_of, first_variable_at, parse_content
from templates.skeleton import common_length
from templates.spec import Message, TemplateSpec
from templates.tokenizer import TemplateTokenizer

MIN_PREFIX_TOKENS = 16
MIN_PREFIX_SHARE = 0.5
MIN_SAVED_TOKENS = 16  # a reorder that saves fewer is not worth a remark
# Nearly every template loses one: a blank or line break before a variable merges with the value.
MIN_LOST_TOKENS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A spec and what it was compiled to, with what compiled it."""

    spec: TemplateSpec
    compiled: CompiledTemplate
    model: ModelFolder
    tokenizer: TemplateTokenizer


def lint_prefix(it: Compiled, prompts: Sequence[int]) -> Iterator[Finding]:
    """Warnings about the prefix. `prompts` are the samples' lengths in tokens."""
    yield from _short(it, prompts)
    yield from _late_text(it)
    yield from _seam(it)


def _short(it: Compiled, prompts: Sequence[int]) -> Iterator[Finding]:
    prefix = len(it.compiled.prefix_ids)
    share = prefix / median(prompts) if prompts else 1.0
    if prefix < MIN_PREFIX_TOKENS or share < MIN_PREFIX_SHARE:
        part = f", {share:.0%} of a sample's prompt" if prompts else ""
        yield Finding(
            level="warning",
            code="short_prefix",
            message=f"only {prefix} tokens are the same for every job{part}",
            remedy="Put fixed text (rules, examples) before the first variable.",
        )


def _late_text(it: Compiled) -> Iterator[Finding]:
    """Fixed text behind the first variable: it could be in the prefix, and is not."""
    contents = [parse_content(message.content) for message in it.spec.messages]
    parts = [part for content in contents for part in content]
    first = next((i for i, part in enumerate(parts) if isinstance(part, Variable)), len(parts))
    late = [
        len(it.tokenizer.encode_ordinary(part.text))
        for part in parts[first:]
        if isinstance(part, Literal)
    ]
    estimate = sum(tokens for tokens in late if tokens >= MIN_SAVED_TOKENS)
    if not estimate:
        return
    moved = variables_last(it.spec)
    saved = None if moved is None else _saved(it, moved)
    if saved is not None and saved < MIN_SAVED_TOKENS:
        return
    name = it.spec.variables[0]
    number, at = _place_of_first(it.spec)
    known = f"{saved}" if saved is not None else f"about {estimate}"
    where = "" if moved is None or saved is None else f"to the end of message {_target(it.spec)}, "
    cause = f"{{{{ {name} }}}}"
    if changes_by_name(name):
        cause += ", which by its name changes with every job,"
    yield Finding(
        level="warning",
        code="variable_before_text",
        message=f"{known} tokens of fixed text follow {cause} and are computed again for every job",
        remedy=f"Move {{{{ {name} }}}} {where}behind that text; the prefix grows by as much.",
        in_message=number,
        at=at,
    )


def variables_last(spec: TemplateSpec) -> TemplateSpec | None:
    """The same texts and variables, with all variables at the end of the last user message.

    None when there is no such message. Messages that held nothing else are left out.
    """
    target = _target(spec)
    if target is None:
        return None
    variables: list[Variable] = []
    texts: list[str] = []
    for message in spec.messages:
        parts = parse_content(message.content)
        variables += (part for part in parts if isinstance(part, Variable))
        texts.append(content_of(part for part in parts if isinstance(part, Literal)))
    tail = "\n".join(content_of([variable]) for variable in variables)
    texts[target - 1] = f"{texts[target - 1].rstrip()}\n\n{tail}".lstrip("\n")
    messages = tuple(
        Message(role=message.role, content=text)
        for message, text in zip(spec.messages, texts, strict=True)
        if text.strip()
    )
    return spec.model_copy(update={"messages": messages})


def _target(spec: TemplateSpec) -> int | None:
    """The number of the last user message."""
    users = [n for n, message in enumerate(spec.messages, 1) if message.role == "user"]
    return users[-1] if users else None


def _saved(it: Compiled, moved: TemplateSpec) -> int | None:
    """Tokens that the prefix of `moved` has more; None when the model takes no such prompt."""
    try:
        other = compile_template(moved, it.model, it.tokenizer)
    except (TemplateRefused, InvalidInput):
        return None
    return len(other.prefix_ids) - len(it.compiled.prefix_ids)


def _place_of_first(spec: TemplateSpec) -> tuple[int, int]:
    """Message and character at which the first variable stands; there must be one."""
    places = ((n, first_variable_at(message.content)) for n, message in enumerate(spec.messages, 1))
    return next((number, at) for number, at in places if at is not None)


def _seam(it: Compiled) -> Iterator[Finding]:
    """Fixed text right before the first variable whose tokens depend on the value."""
    fixed, glued = _head(it.compiled)
    whole = it.tokenizer.encode_segments(fixed)
    lost = len(whole) - common_length(whole, it.compiled.prefix_ids)
    if not glued or lost < MIN_LOST_TOKENS:
        return
    name = it.spec.variables[0]
    number, at = _place_of_first(it.spec)
    yield Finding(
        level="warning",
        code="seam_merges",
        message=f"the last {lost} tokens of the fixed text before {{{{ {name} }}}} depend on its "
        "value, so that they are not in the prefix",
        remedy="Put a blank, a line break or a new message between that text and the variable.",
        in_message=number,
        at=at,
    )


def _head(compiled: CompiledTemplate) -> tuple[list[Control | str], bool]:
    """All that stands before the first variable, and whether the author's own text ends it."""
    fixed: list[Control | str] = []
    for segment in compiled.segments:
        if isinstance(segment, Control):
            fixed.append(segment)
            continue
        text, glued, ends = _head_of(segment)
        fixed.append(text)
        if ends:
            return fixed, glued
    return fixed, False


def _head_of(piece: Piece) -> tuple[str, bool, bool]:
    """The piece's text up to its first variable, whether the same span holds some of it, and
    whether there is a variable at all.
    """
    text = ""
    for span in piece.spans:
        own = ""
        for part in span.parts:
            if isinstance(part, Variable):
                return text + (own.lstrip() if "l" in span.strip else own), bool(own), True
            own += part.text
        text += own  # a span without a variable is never stripped
    return text, False, False
