"""From a template file to a compiled template, proven on many values before any job uses it.

The chat template is rendered with stand-ins for the contents that hold variables. What comes
out is cut at its control tokens into pieces. Then the chat template itself is the judge: for
each of several hundred values, the filled pieces must give its text and, where no control
token is spelt in a variable, its token ids. A template that fails in this is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contract.errors import InvalidInput, TemplateRefused
from contract.model_folder import ModelFolder
from templates.chat import check_chat_template
from templates.compiled import CompiledTemplate, Control, Piece, Segment, Span
from templates.fill import fill, filled_text, trusted_ids
from templates.placeholders import Literal
from templates.probes import SEAMS, content_probes
from templates.skeleton import Conversation, common_length, find_skeleton, holds_variable
from templates.spec import TemplateSpec
from templates.tokenizer import TemplateTokenizer


@dataclass(frozen=True, slots=True)
class _Request:
    label: str  # what it tries, for the message to the author
    variables: Mapping[str, Any]


def compile_template(
    spec: TemplateSpec, model: ModelFolder, tokenizer: TemplateTokenizer
) -> CompiledTemplate:
    """Compile for one model. Pure: nothing is loaded, no clock is read.

    Raises TemplateRefused, with the reason, when the prompt cannot be split into trusted
    control tokens and ordinary text so that it equals what the chat template makes.
    """
    check_chat_template(model.chat_template)
    chat = Conversation.of(spec, model)
    _check_literals(chat, tokenizer)
    compiled = CompiledTemplate(
        segments=tuple(_segments(find_skeleton(chat), tokenizer)), prefix_ids=()
    )
    _check_length(compiled, model, tokenizer)
    requests = list(_requests(spec))
    for request in (*requests, *_content_requests(spec, model)):
        _check_text(chat, compiled, request)
    prompts = [_checked_ids(compiled, request, tokenizer) for request in requests]
    # Fewer than the shortest prompt has: every job needs a token of its own to start from.
    shared = min(common_length(*prompts), min(map(len, prompts)) - 1)
    return replace(compiled, prefix_ids=prompts[0][: max(shared, 0)])


def _check_literals(chat: Conversation, tokenizer: TemplateTokenizer) -> None:
    for number, parts in enumerate(chat.contents, 1):
        for part in parts:
            if not isinstance(part, Literal) or not tokenizer.holds_control(part.text):
                continue
            spelt = [c.text for c in tokenizer.cut(part.text) if isinstance(c, Control)]
            raise TemplateRefused(
                f"message {number} spells a control token of the model",
                given=repr(spelt[0]) if spelt else "a text that becomes one once normalized",
                expected="ordinary text; control tokens are the chat template's business",
                remedy="Take it out, or put a space into it.",
            )


def _check_length(
    compiled: CompiledTemplate, model: ModelFolder, tokenizer: TemplateTokenizer
) -> None:
    """Raise TemplateRefused for fixed text that no job could run with.

    Before the hundreds of values are tried on it, each of which takes as long as it is.
    """
    texts = [
        part.text
        for segment in compiled.segments
        if isinstance(segment, Piece)
        for span in segment.spans
        for part in span.parts
        if isinstance(part, Literal)
    ]
    if model.max_positions is None or sum(map(len, texts)) <= model.max_positions:
        return  # a token has at least one character
    try:
        tokens = sum(len(tokenizer.encode_ordinary(text)) for text in texts)
    except InvalidInput:
        return  # what is wrong will be said of the first request
    if tokens > model.max_positions:
        raise TemplateRefused(
            "the fixed text is longer than the model can read",
            given=f"about {tokens} tokens",
            expected=f"at most {model.max_positions}, with the variables and the answer",
            remedy="Shorten the messages, or choose a model that reads more.",
        )


def _segments(spans: Sequence[Span], tokenizer: TemplateTokenizer) -> Iterator[Segment]:
    """Cut the chat template's own text at control tokens; contents are ordinary text."""
    piece: list[Span] = []
    for span in spans:
        if holds_variable(span.parts):
            piece.append(span)
            continue
        text = "".join(part.text for part in span.parts if isinstance(part, Literal))
        for part in tokenizer.cut(text):
            if isinstance(part, str):
                piece.append(Span(parts=(Literal(part),)))
                continue
            if piece:
                yield Piece(spans=tuple(piece))
                piece = []
            yield part
    if piece:
        yield Piece(spans=tuple(piece))


def _requests(spec: TemplateSpec) -> Iterator[_Request]:
    """The samples, and all that may meet the fixed text at a seam."""
    for number, sample in enumerate(spec.samples, 1):
        yield _Request(f"sample {number}", sample.input)
    for probe in SEAMS if spec.variables else SEAMS[:1]:
        yield _Request(f"{probe.label} in a variable", dict.fromkeys(spec.variables, probe.value))


def _content_requests(spec: TemplateSpec, model: ModelFolder) -> Iterator[_Request]:
    """What the chat template may look for in a content: in all variables at once, and in each."""
    if not spec.variables:
        return
    neutral = dict.fromkeys(spec.variables, "x")
    for probe in content_probes(model.chat_template):
        label = f"{probe.label} in a variable"
        yield _Request(label, dict.fromkeys(spec.variables, probe.value))
        for name in spec.variables if len(spec.variables) > 1 else ():
            yield _Request(label, neutral | {name: probe.value})


def _check_text(chat: Conversation, compiled: CompiledTemplate, request: _Request) -> None:
    """The chat template must make the text that the filled pieces make."""
    try:
        filled = filled_text(compiled, request.variables)
        outcome = "" if chat.render(request.variables) == filled else "another prompt around it"
    except InvalidInput as error:
        raise _refused(error, request) from error
    except TemplateRefused as error:
        outcome = str(error.given)
    if outcome:
        raise TemplateRefused(
            "the chat template does something of its own with certain contents",
            given=f"{request.label}: {outcome}",
            expected="the same fixed text around any content",
            remedy="Begin and end the message with fixed text, such as 'Text: {{ name }} (end)', "
            "or use a model whose chat template does not look into contents.",
        )


def _checked_ids(
    compiled: CompiledTemplate, request: _Request, tokenizer: TemplateTokenizer
) -> tuple[int, ...]:
    """The prompt's ids, which must be those of the whole text where that is safe to read."""
    try:
        filled = fill(compiled, request.variables, tokenizer)
    except InvalidInput as error:
        raise _refused(error, request) from error
    if filled.plain:
        wanted = trusted_ids(compiled, request.variables, tokenizer)
        if wanted != filled.ids:
            place = common_length(wanted, filled.ids)
            raise TemplateRefused(
                "the tokenizer reads the whole prompt and its pieces differently",
                given=f"{request.label}: ids differ from number {place} on, "
                f"at {tokenizer.decode(wanted[place : place + 4], skip_control=False)!r}",
                expected="the ids of apply_chat_template",
                remedy="Use a model whose control tokens have 'normalized': false in "
                "tokenizer.json.",
            )
    return filled.ids


def _refused(error: InvalidInput, request: _Request) -> TemplateRefused:
    return TemplateRefused(
        f"{request.label} cannot be filled in: {error.problem}",
        given=error.given,
        expected=error.expected,
        remedy=error.remedy,
    )
