"""The admission proof: small random prompts, answered by an engine and by the plain path."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from contract.errors import PrefillqError
from templates.spec import GenerationSpec
from worker.engine.base import Engine, Generation, GenerationRequest
from worker.engine.parity import TOLERANCE, largest_error, largest_score
from worker.engine.reference import ReferenceEngine
from worker.model import LoadedModel
from worker.prefix.entry import PrefixEntry

# Prefill chunks while proving, so that the prompts below cross their borders.
CHUNK_TOKENS = 24
_NEW_TOKENS = 4
_PREFIX_TOKENS = 48
# A sliding window is left behind where it is no longer than this; a longer one would take
# minutes to prove on a CPU.
_LONGEST_WINDOW = 4_096
_SUFFIXES = (2, 5, 19, 40)  # tokens beyond the prefix
_CHOICE_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.02}


class NotProven(PrefillqError):
    """An engine that does not give what the plain path gives."""

    code = "not_proven"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    ids: tuple[int, ...]
    prefix: int | None  # index among the proof's prefixes; None: uncached, among the others
    plain: Generation


class Proof:
    """Prompts on two prefixes and on none, with what the plain path says to them."""

    def __init__(self, model: LoadedModel) -> None:
        """Computes the plain answers. Raises NonFiniteLogits where they are unusable."""
        self._model = model
        self._dtype = model.dtype_name
        plain = ReferenceEngine(model)
        rng = random.Random(0)
        vocabulary = range(model.module.config.vocab_size)
        longest = _PREFIX_TOKENS
        if 0 < (window := _window(model)) <= _LONGEST_WINDOW:
            longest = max(longest, window + _PREFIX_TOKENS // 3)
        limit = model.folder.max_positions or longest * 4
        longest = min(longest, limit - max(_SUFFIXES) - _NEW_TOKENS)
        self._prefixes = [
            tuple(rng.choices(vocabulary, k=tokens))
            for tokens in (longest, _PREFIX_TOKENS * 2 // 3)
        ]
        whose = [0, 0, 1, 0, 1, None]
        tails = [rng.choices(vocabulary, k=k) for k in (*_SUFFIXES, 7, 11)]
        self._cases = []
        for prefix, tail in zip(whose, tails, strict=True):
            ids = (() if prefix is None else self._prefixes[prefix]) + tuple(tail)
            self._cases.append(_Case(ids=ids, prefix=prefix, plain=plain.generate(_asked(ids))))
        eos = model.folder.eos_ids
        first, second, third = rng.sample([i for i in vocabulary if i not in eos], 3)
        self._choices = ((first, second), (first, third), (second,))
        ids = self._cases[1].ids
        self._scored = plain.generate(_scoring(ids, self._choices))
        self._grammar = _Some(rng.sample(vocabulary, len(vocabulary) // 2), len(vocabulary))
        self._held = plain.generate(_held(ids, self._grammar))

    def check(self, engine: Engine) -> float:
        """The largest difference of scores, as a share of the largest score.

        All cases at once, all again on the same entries, then one alone. Raises NotProven, or
        what the engine raised.
        """
        entries = [
            engine.prefill(self._model.prefix_key("", f"proof-{number}"), ids)
            for number, ids in enumerate(self._prefixes)
        ]
        requests = [
            _asked(case.ids, None if case.prefix is None else entries[case.prefix])
            for case in self._cases
        ]
        worst = 0.0
        with ThreadPoolExecutor(max_workers=len(requests)) as threads:
            for use in ("first", "second"):
                answers = list(threads.map(engine.generate, requests))
                worst = max(worst, *map(self._compared, self._cases, answers))
                if not all(entry.audit() for entry in entries):
                    raise NotProven("a prefix changed while it was used", given=f"{use} use")
        worst = max(worst, self._compared(self._cases[1], engine.generate(requests[1])))
        scored = engine.generate(_scoring(self._cases[1].ids, self._choices, entries[0]))
        self._compare_choices(scored.choice_probabilities)
        self._compare_held(engine.generate(_held(self._cases[1].ids, self._grammar, entries[0])))
        return worst

    def _compared(self, case: _Case, answer: Generation) -> float:
        error = largest_error(case.plain.first_scores, answer.first_scores)
        share = error / (largest_score(case.plain.first_scores) or 1.0)
        given = f"{len(case.ids)} tokens, " + (
            "no prefix" if case.prefix is None else f"prefix of {len(self._prefixes[case.prefix])}"
        )
        if share > TOLERANCE[self._dtype]:
            raise NotProven(
                "the scores differ from the plain path's",
                given=f"{share:.2g} of the largest score at {given}",
                expected=f"{TOLERANCE[self._dtype]:.2g} at most in {self._dtype}",
            )
        if self._dtype == "float32" and answer.token_ids != case.plain.token_ids:
            raise NotProven("the tokens differ from the plain path's", given=given)
        return share

    def _compare_choices(self, probabilities: Sequence[float]) -> None:
        pairs = zip(self._scored.choice_probabilities, probabilities, strict=True)
        worst = max(abs(ours - theirs) for ours, theirs in pairs)
        if worst > _CHOICE_TOLERANCE[self._dtype]:
            raise NotProven("the choices' probabilities differ", given=f"by {worst:.2g}")

    def _compare_held(self, answer: Generation) -> None:
        if not self._grammar.ids.issuperset(answer.token_ids):
            raise NotProven("a token was chosen that the grammar does not allow")
        if self._dtype == "float32" and answer.token_ids != self._held.token_ids:
            raise NotProven("the tokens under a grammar differ from the plain path's")


class _Some:
    """A grammar, its run and its masks at once: the same ids are allowed at each step."""

    def __init__(self, ids: Sequence[int], vocabulary: int) -> None:
        self.ids = frozenset(ids)
        flags = torch.zeros(-(-vocabulary // 32), 32, dtype=torch.int64)
        flags.view(-1)[list(ids)] = 1
        # A shift by 31 makes the sign bit of the 32 that are kept.
        self._bits = (flags << torch.arange(32)).sum(dim=1).to(torch.int32)

    @property
    def masks(self) -> _Some:
        return self

    def start(self) -> _Some:
        return self

    def allowed(self, runs: Sequence[Any]) -> Tensor:
        return self._bits.repeat(len(runs), 1)

    def advance(self, token_id: int) -> bool:
        if token_id not in self.ids:
            raise NotProven("a token was chosen that the grammar does not allow")
        return False


def _window(model: LoadedModel) -> int:
    """The model's sliding window in tokens, 0 for none."""
    return int(getattr(model.module.config, "sliding_window", None) or 0)


def _asked(ids: tuple[int, ...], entry: PrefixEntry | None = None) -> GenerationRequest:
    spec = GenerationSpec(max_new_tokens=_NEW_TOKENS, min_new_tokens=_NEW_TOKENS)
    return GenerationRequest(ids=ids, generation=spec, entry=entry, keep_scores=True)


def _held(
    ids: tuple[int, ...], grammar: _Some, entry: PrefixEntry | None = None
) -> GenerationRequest:
    spec = GenerationSpec(max_new_tokens=_NEW_TOKENS)
    return GenerationRequest(ids=ids, generation=spec, grammar=grammar, entry=entry)


def _scoring(
    ids: tuple[int, ...], choices: tuple[tuple[int, ...], ...], entry: PrefixEntry | None = None
) -> GenerationRequest:
    return GenerationRequest(ids=ids, generation=GenerationSpec(), choices=choices, entry=entry)
