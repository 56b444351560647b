"""A compiled template and a job's variables become token ids.

No chat template is rendered here, so nothing in a variable can steer one; and every piece is
encoded as ordinary text, so nothing in a variable can become a control token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from contract.errors import InvalidInput
from templates.compiled import CompiledTemplate, Control, Piece, Segment, Span
from templates.placeholders import Literal, to_text
from templates.spec import TemplateSpec
from templates.tokenizer import TemplateTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A job's whole prompt. With `plain`, `trusted_ids` must give the same ids."""

    ids: tuple[int, ...]
    plain: bool  # no control token's text stands in or across a variable


def fill(
    compiled: CompiledTemplate, variables: Mapping[str, Any], tokenizer: TemplateTokenizer
) -> Filled:
    """Token ids of the prompt. What lies before the first variable is encoded only once.

    Raises InvalidInput that names a variable which is missing or cannot be written as text.
    """
    texts = _texts(compiled.segments, variables)
    start = _first_filled(compiled.segments)
    ids = _head_ids(compiled, tokenizer) + tokenizer.encode_segments(texts[start:])
    return Filled(ids=ids, plain=tokenizer.reads_back(texts))


def filled_text(compiled: CompiledTemplate, variables: Mapping[str, Any]) -> str:
    """The prompt as text, for previews and checks."""
    return _join(_texts(compiled.segments, variables))


def trusted_ids(
    compiled: CompiledTemplate, variables: Mapping[str, Any], tokenizer: TemplateTokenizer
) -> tuple[int, ...]:
    """Ids that `apply_chat_template` gives: text in a variable does become control tokens here.

    A check on `fill` for plain jobs, never an input for a model.
    """
    return tokenizer.encode_trusted(filled_text(compiled, variables))


def most_new_tokens(spec: TemplateSpec, tokenizer: TemplateTokenizer) -> int:
    """How many tokens an answer may have; among choices, the longest and its end."""
    if spec.output.choices is None:
        return spec.generation.max_new_tokens
    return max(len(tokenizer.encode_ordinary(choice)) for choice in spec.output.choices) + 1


def check_positions(prompt_tokens: int, max_new_tokens: int, max_positions: int | None) -> None:
    """Raise InvalidInput, with the numbers, when prompt and answer exceed the model's positions.

    An empty prompt is refused too: there is no token to start an answer from.
    """
    if prompt_tokens == 0:
        raise InvalidInput(
            "the prompt is empty",
            given="0 tokens",
            expected="at least one",
            remedy="Put some fixed text into the template.",
        )
    if max_positions is not None and prompt_tokens + max_new_tokens > max_positions:
        raise InvalidInput(
            "the prompt and its answer are longer than the model can read",
            given=f"{prompt_tokens} prompt tokens + {max_new_tokens} new tokens "
            f"= {prompt_tokens + max_new_tokens}",
            expected=f"at most {max_positions}",
            remedy="Shorten the variables, or lower generation.max_new_tokens.",
        )


def fill_span(span: Span, variables: Mapping[str, Any]) -> str:
    """The text of one span. Raises InvalidInput as `fill` does."""
    text = "".join(
        part.text if isinstance(part, Literal) else _value(part.name, variables)
        for part in span.parts
    )
    if "l" in span.strip:
        text = text.lstrip()
    return text.rstrip() if "r" in span.strip else text


def _texts(
    segments: tuple[Segment, ...], variables: Mapping[str, Any]
) -> tuple[Control | str, ...]:
    return tuple(
        segment
        if isinstance(segment, Control)
        else "".join(fill_span(span, variables) for span in segment.spans)
        for segment in segments
    )


def _join(texts: tuple[Control | str, ...]) -> str:
    return "".join(part.text if isinstance(part, Control) else part for part in texts)


def _value(name: str, variables: Mapping[str, Any]) -> str:
    try:
        text = to_text(variables[name])
        text.encode("utf-8")
    except KeyError:
        raise InvalidInput(
            f"variable {name} is missing",
            given=", ".join(sorted(map(str, variables))) or "no variables",
            remedy=f"Give a value for {name!r}.",
        ) from None
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"variable {name} cannot be written as UTF-8",
            given=f"a lone surrogate at character {error.start}",
            expected="valid Unicode text",
            remedy="Decode its source with errors='replace'.",
        ) from None
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"variable {name} has no JSON form", given=str(error), expected="text or JSON data"
        ) from error
    return text


def _first_filled(segments: tuple[Segment, ...]) -> int:
    """Index from which each job encodes anew: the control token before the first variable.

    Beginning at a control token makes the text after it encode as it does in the whole prompt.
    """
    for index, segment in enumerate(segments):
        if isinstance(segment, Piece) and not segment.constant:
            return max(index - 1, 0)
    return len(segments)


@lru_cache(maxsize=256)
def _head_ids(compiled: CompiledTemplate, tokenizer: TemplateTokenizer) -> tuple[int, ...]:
    """Ids before `_first_filled`, the same for every job."""
    start = _first_filled(compiled.segments)
    if start == 0:
        return ()
    # The control token at `start` may take white space off the text before it.
    ids = tokenizer.encode_segments(_texts(compiled.segments[: start + 1], {}))
    return ids[:-1] if start < len(compiled.segments) else ids
