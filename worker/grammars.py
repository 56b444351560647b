"""Grammars of `output.schema`, made by llguidance for the worker's tokenizer and kept.

Compiling and masking run outside of the interpreter's lock and within limits, so that one
tenant's schema holds up nobody else's jobs for long.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any

import torch
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from torch import Tensor

from contract.errors import PrefillqError
from contract.logs import get_logger
from templates.answers import AnswerReader
from templates.output_schema import for_grammar, schema_text
from templates.tokenizer import TemplateTokenizer
from worker.engine.base import GrammarFailed, GrammarRun

log = get_logger(__name__)

MAX_GRAMMARS = 128  # a few hundred kilobytes each
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
    """An `output.schema` that cannot be made into a grammar for this worker's model."""

    code = "grammar_refused"


class OutputGrammar:
    """See `worker.engine.base.Grammar`; reads the answers that it led to as well."""

    def __init__(
        self, matcher: LLMatcher, masks: LlguidanceMasks, schema: Mapping[str, Any]
    ) -> None:
        self._matcher = matcher
        self._masks = masks
        self._reader = AnswerReader(schema)

    def start(self) -> GrammarRun:
        """See `Grammar.start`."""
        return _Run(self._matcher.deep_copy(), self._masks)

    def read(self, text: str) -> Any:
        """See `AnswerReader.read`."""
        return self._reader.read(text)


class _Run:
    def __init__(self, matcher: LLMatcher, masks: LlguidanceMasks) -> None:
        self.matcher = matcher
        self.masks = masks

    def advance(self, token_id: int) -> bool:
        """See `GrammarRun.advance`."""
        if token_id in self.masks.eos_ids:
            if self.matcher.is_error() or not self.matcher.is_accepting():
                raise self._failed()
            return True
        if not self.matcher.consume_token(token_id):
            raise self._failed()
        return self.matcher.is_stopped()

    def _failed(self) -> GrammarFailed:
        return GrammarFailed(
            "output.schema allows no next token, or takes too long to say which",
            given=self.matcher.stop_reason(),
            remedy="Simplify its patterns and lengths; 'prefillq templates lint' names those"
            " without an end.",
        )


class LlguidanceMasks:
    """See `worker.engine.base.Masks`. Thread-safe; for one tokenizer."""

    def __init__(self, tokenizer: TemplateTokenizer, eos_ids: Sequence[int]) -> None:
        """Half a second for 50,000 tokens. Raises GrammarRefused."""
        self.eos_ids = frozenset(eos_ids)
        self.tokenizer = _tokenizer(tokenizer, eos_ids)
        self._words = (self.tokenizer.vocab_size + 31) // 32
        self._executor = LLExecutor(max(1, min(8, os.cpu_count() or 1)))
        size = self._words * 32
        never = {i for i in (*tokenizer.control_tokens.values(), *eos_ids) if i < size}
        self._text = ~_bits(never, self._words)
        self._ends = _bits({i for i in eos_ids if i < size}, self._words)

    def allowed(self, runs: Sequence[_Run]) -> Tensor:
        """See `Masks.allowed`; one native call for all runs, on several threads."""
        bits = torch.zeros((len(runs), self._words), dtype=torch.int32)
        self._executor.unsafe_compute_mask_ptr(
            [(run.matcher, row) for row, run in enumerate(runs)],
            bits.data_ptr(),
            self._words * 4,
            len(runs),
        )
        # No control token may stand in an answer, and an end only behind a whole one.
        bits &= self._text
        whole = [row for row, run in enumerate(runs) if run.matcher.is_accepting()]
        if whole:
            bits[whole] |= self._ends
        return bits


class Grammars:
    """The grammars of one worker; each is compiled once, by whoever asks first. Thread-safe."""

    def __init__(
        self, tokenizer: TemplateTokenizer, *, tokenizer_digest: str, eos_ids: Sequence[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._digest = tokenizer_digest
        self._eos_ids = tuple(eos_ids)
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], Future[OutputGrammar]] = OrderedDict()

    def get(self, schema: Mapping[str, Any]) -> OutputGrammar:
        """The grammar of a schema. Raises GrammarRefused, again without another try."""
        text = schema_text(schema)
        key = (hashlib.sha256(text.encode("utf-8")).hexdigest(), self._digest)
        with self._lock:
            future = self._kept.get(key)
            mine = future is None
            if future is None:
                future = self._kept[key] = Future()
                if len(self._kept) > MAX_GRAMMARS:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
        if mine:
            try:
                future.set_result(self._compile(schema))
            except PrefillqError as error:
                future.set_exception(error)
            except BaseException as error:
                with self._lock:  # perhaps it passes: not to be kept
                    self._kept.pop(key, None)
                future.set_exception(error)
                raise
        return future.result()

    @cached_property
    def _masks(self) -> LlguidanceMasks:
        return LlguidanceMasks(self._tokenizer, self._eos_ids)

    def _compile(self, schema: Mapping[str, Any]) -> OutputGrammar:
        with self._lock:
            masks = self._masks  # half a second, once
        matcher = compile_schema(masks.tokenizer, schema)
        if matcher.is_error():
            raise GrammarRefused(
                "output.schema cannot be made into a grammar",
                given=matcher.get_error().partition("\n")[0][:200],
                remedy="Simplify it and publish the template again.",
            )
        return OutputGrammar(matcher, masks, schema)


def compile_schema(tokenizer: LLTokenizer, schema: Mapping[str, Any]) -> LLMatcher:
    """A matcher at the start of an answer, or in its error state. Milliseconds."""
    grammar = LLMatcher.grammar_from_json_schema(schema_text(for_grammar(schema)), overrides=_WAY)
    return LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**_LIMITS))


def _tokenizer(tokenizer: TemplateTokenizer, eos_ids: Sequence[int]) -> LLTokenizer:
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


def _bits(ids: set[int], words: int) -> Tensor:
    """[words] int32 with the bits of these ids."""
    flags = torch.zeros(words * 32, dtype=torch.int64)
    flags[sorted(ids)] = 1
    values = (flags.view(words, 32) << torch.arange(32)).sum(dim=1)
    return torch.where(values >= 2**31, values - 2**32, values).to(torch.int32)
