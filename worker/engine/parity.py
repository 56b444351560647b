"""Does the cached path give what the uncached path gives? Asked when a version is first warmed."""

from __future__ import annotations

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

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.06, "float16": 0.01}


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
    engine: Engine, entry: PrefixEntry, ids: Sequence[int], *, max_new_tokens: int = 16
) -> Parity:
    """Answer one request uncached, with the entry, and with the same entry again; compare."""
    started = time.perf_counter()
    try:
        plain, *cached = (
            _greedy(engine, tuple(ids), use, max_new_tokens) for use in (None, entry, entry)
        )
    except RequestTooLong:
        if max_new_tokens == 1:
            raise
        # Near the model's last position one token is compared rather than none.
        return check_parity(engine, entry, ids, max_new_tokens=1)
    except NonFiniteLogits:
        return Parity(
            outcome="non_finite",
            checked_tokens=0,
            first_difference=None,
            max_logit_error=0.0,
            seconds=time.perf_counter() - started,
        )
    error = max(_largest_error(plain, use) for use in cached)
    allowed = TOLERANCE[entry.key.dtype] * max(map(abs, plain.first_scores), default=0.0)
    differences = [d for use in cached if (d := _first_difference(plain, use)) is not None]
    outcome: Outcome = "identical"
    if differences:
        outcome = "differs" if entry.key.dtype == "float32" else "within_tolerance"
    if error > allowed or not entry.audit():
        outcome = "differs"
    return Parity(
        outcome=outcome,
        checked_tokens=len(plain.token_ids),
        first_difference=min(differences, default=None),
        max_logit_error=error,
        seconds=time.perf_counter() - started,
    )


def _greedy(
    engine: Engine, ids: tuple[int, ...], entry: PrefixEntry | None, tokens: int
) -> Generation:
    # As many minimum as maximum tokens: an early end would leave little to compare.
    spec = GenerationSpec(max_new_tokens=tokens, min_new_tokens=tokens)
    request = GenerationRequest(ids=ids, generation=spec, entry=entry, keep_scores=True)
    return engine.generate(request)


def _largest_error(plain: Generation, cached: Generation) -> float:
    pairs = zip(plain.first_scores, cached.first_scores, strict=True)
    # Equal infinities (a masked vocabulary) are no difference; their subtraction would be NaN.
    return max((abs(ours - theirs) for ours, theirs in pairs if ours != theirs), default=0.0)


def _first_difference(plain: Generation, cached: Generation) -> int | None:
    pairs = zip(plain.token_ids, cached.token_ids, strict=True)
    return next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
