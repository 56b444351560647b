"""Does the cached path give what the uncached path gives? Asked when a version is first warmed."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from templates.spec import GenerationSpec
from worker.engine.base import (
    Engine,
    Generation,
    GenerationRequest,
    NonFiniteLogits,
    RequestTooLong,
)
from worker.prefix.entry import PrefixEntry

Outcome = Literal["identical", "within_tolerance", "differs", "non_finite"]

# How far a first token's scores may lie from the uncached ones, as a share of the largest score.
# Measured on a CPU with SmolLM2-135M (96 and 671 prefix tokens) and ten random small models: a
# right cache is off by at most 2e-6 in float32, 0.011 in bfloat16 and 0.0015 in float16; one
# that lost a recurrent state by 0.08 or more with two tokens beyond the prefix; one wrong id
# among 96 by 0.012 to 0.1, which in bfloat16 only `verify_prefix` can find.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.01}
# The fewer tokens follow the prefix, the more a fault in what was cached shows. Two, because
# some models take a single one another way, in which they are right.
SHORT_TAIL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """What the check found; `first_difference` is the index of the first token that differs."""

    outcome: Outcome
    checked_tokens: int
    first_difference: int | None
    max_logit_error: float  # largest |cached - uncached| among the first token's scores
    seconds: float

    @property
    def ok(self) -> bool:
        """False when the version must run uncached here."""
        return self.outcome in ("identical", "within_tolerance")


def check_parity(
    engine: Engine,
    entry: PrefixEntry,
    ids: Sequence[int],
    *,
    plain: Engine | None = None,
    max_new_tokens: int = 16,
) -> Parity:
    """Compare greedy answers with the entry and without it; `ids` is a whole request's prompt.

    `plain` is the engine that answers without it, `engine` itself if None is given.

    Two prompts are tried on the one entry: the request cut short after the prefix, for the
    scores of its first token, and the whole request, for `max_new_tokens` tokens. In float32
    the tokens must be identical and the scores within TOLERANCE; in half precision near ties
    may go either way, so that the scores alone decide. An entry that the two uses changed
    differs. Raises PrefixMismatch when the entry is no prefix of `ids`.
    """
    started = time.perf_counter()
    short = tuple(ids[: len(entry.ids) + SHORT_TAIL])
    probe: _Comparison | None = None
    whole: _Comparison | None = None
    try:
        probe = _compare(engine, plain or engine, entry, short, 1)
        whole = _compare(engine, plain or engine, entry, tuple(ids), max_new_tokens)
    except RequestTooLong:
        if max_new_tokens == 1:
            raise
        # Near the model's last position one token is compared rather than none.
        return check_parity(engine, entry, ids, plain=plain, max_new_tokens=1)
    except NonFiniteLogits:
        whole = None
    return Parity(
        outcome=_outcome(entry, probe, whole),
        checked_tokens=whole.tokens if whole else 0,
        first_difference=whole.first_difference if whole else None,
        max_logit_error=max(probe.error, whole.error) if probe and whole else 0.0,
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    tokens: int
    first_difference: int | None
    error: float
    scale: float  # the largest of the uncached scores, in absolute value


def _compare(
    engine: Engine, oracle: Engine, entry: PrefixEntry, ids: tuple[int, ...], tokens: int
) -> _Comparison:
    plain = _greedy(oracle, ids, None, tokens)
    cached = _greedy(engine, ids, entry, tokens)
    token_pairs = enumerate(zip(plain.token_ids, cached.token_ids, strict=True))
    return _Comparison(
        tokens=len(plain.token_ids),
        first_difference=next((i for i, (ours, theirs) in token_pairs if ours != theirs), None),
        error=largest_error(plain.first_scores, cached.first_scores),
        scale=largest_score(plain.first_scores),
    )


def largest_error(plain: Sequence[float], cached: Sequence[float]) -> float:
    """The largest difference between two lists of scores."""
    # Equal infinities (a masked vocabulary) are no difference; subtracted they give NaN.
    pairs = zip(plain, cached, strict=True)
    return max((abs(ours - theirs) for ours, theirs in pairs if ours != theirs), default=0.0)


def largest_score(scores: Sequence[float]) -> float:
    """The largest absolute value among the finite scores; what errors are a share of."""
    return max((abs(score) for score in scores if math.isfinite(score)), default=0.0)


def _outcome(entry: PrefixEntry, probe: _Comparison | None, whole: _Comparison | None) -> Outcome:
    if probe is None or whole is None:
        return "non_finite"
    allowed = TOLERANCE[entry.key.dtype]
    if any(c.error > allowed * c.scale for c in (probe, whole)) or not entry.audit():
        return "differs"
    if probe.first_difference is None and whole.first_difference is None:
        return "identical"
    return "differs" if entry.key.dtype == "float32" else "within_tolerance"


def _greedy(
    engine: Engine, ids: tuple[int, ...], entry: PrefixEntry | None, tokens: int
) -> Generation:
    # As many minimum as maximum tokens: an early end would leave little to compare.
    spec = GenerationSpec(max_new_tokens=tokens, min_new_tokens=tokens)
    request = GenerationRequest(ids=ids, generation=spec, entry=entry, keep_scores=True)
    return engine.generate(request)
