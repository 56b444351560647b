"""The grammar of an `output.schema` for a tokenizer, by llguidance: the same for who publishes a
template, so that one whose answers cannot be held to it is refused, and for workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from contract.errors import PrefillqError
from templates.output_schema import for_grammar, schema_text
from templates.tokenizer import TemplateTokenizer

_WAY: Any = {
    # One way to write each value: no blanks for a model to lose itself in, and no \u escapes,
    # which can spell halves of characters and control codes.
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',
}
# Half of llguidance's own or less; a schema of a page takes a hundredth of it.
_LIMITS: Any = {
    "initial_lexer_fuel": 500_000,  # about 10 ms
    "step_lexer_fuel": 200_000,  # about 15 ms
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,  # 1 to 2 KB each
    "max_grammar_size": 100_000,
    "verbose_errors": False,  # they would quote the answer
}


class GrammarRefused(PrefillqError):
    """An `output.schema` that cannot be made into a grammar for a model's tokenizer."""

    code = "grammar_refused"


def grammar_tokenizer(tokenizer: TemplateTokenizer, eos_ids: Sequence[int]) -> LLTokenizer:
    """llguidance's view of a tokenizer. Half a second for 50,000 tokens. Raises GrammarRefused."""
    try:
        return LLTokenizer(
            tokenizer.to_json(),
            eos_token=list(eos_ids) or None,
            slices=LLTokenizer.json_slices(),
        )
    except BaseException as error:
        # The library, in Rust, also panics, which is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise GrammarRefused(
            "this model's tokenizer cannot be held to a schema",
            given=f"{type(error).__name__}: {error!s:.200}",
            expected="one that spells every byte, as byte-level BPE does",
            remedy="Use another model, or leave output.schema out.",
        ) from error


def compile_schema(tokenizer: LLTokenizer, schema: Mapping[str, Any]) -> LLMatcher:
    """A matcher at the start of an answer. Milliseconds. Raises GrammarRefused."""
    grammar = LLMatcher.grammar_from_json_schema(schema_text(for_grammar(schema)), overrides=_WAY)
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**_LIMITS))
    if matcher.is_error():
        raise GrammarRefused(
            "output.schema cannot be made into a grammar",
            given=matcher.get_error().partition("\n")[0][:200],
            remedy="Simplify it and publish the template again.",
        )
    return matcher
