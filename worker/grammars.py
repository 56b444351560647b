"""Grammars of `output.schema` for the worker's tokenizer: kept, and their masks.

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
from llguidance import LLExecutor, LLMatcher
from torch import Tensor

from contract.errors import PrefillqError
from contract.logs import get_logger
from templates.answers import AnswerReader
from templates.grammar import compile_schema, grammar_tokenizer
from templates.output_schema import schema_text
from templates.tokenizer import TemplateTokenizer
from worker.engine.base import GrammarFailed, GrammarRun

log = get_logger(__name__)

MAX_GRAMMARS = 128  # a few hundred kilobytes each


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
        self.tokenizer = grammar_tokenizer(tokenizer, eos_ids)
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
        return OutputGrammar(compile_schema(masks.tokenizer, schema), masks, schema)


def _bits(ids: set[int], words: int) -> Tensor:
    """[words] int32 with the bits of these ids."""
    flags = torch.zeros(words * 32, dtype=torch.int64)
    flags[sorted(ids)] = 1
    values = (flags.view(words, 32) << torch.arange(32)).sum(dim=1)
    return torch.where(values >= 2**31, values - 2**32, values).to(torch.int32)
