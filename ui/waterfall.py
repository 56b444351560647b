"""Where a job's time went, as bars one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contract.types import Timings

WIDTH = 1000.0  # of the drawing, in its own units
_LONG_S = 1e10  # whoever writes records may write any number
_LEAST = 2.0  # so that a stage of microseconds can be seen

# In the order in which a job goes through them, with what each is.
STAGES: Sequence[tuple[str, str, str]] = (
    ("queue_s", "Queue", "from submit to claim"),
    ("tokenize_s", "Tokenize", "variables into the template"),
    ("verify_s", "Verify", "ids against the prefix"),
    ("prefill_s", "Prefix prefill", "computed by this job"),
    ("fork_s", "Fork", "a view of the cached prefix"),
    ("suffix_prefill_s", "Suffix prefill", "to the first token"),
    ("decode_s", "Decode", "the other tokens"),
    ("commit_s", "Commit", "result written"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A stage. `x` and `width` are of WIDTH."""

    key: str
    name: str
    meaning: str
    seconds: float
    share: float  # of the whole
    x: float
    width: float


def _sane(value: float) -> float:
    return value if 0 < value <= _LONG_S else 0.0


def bars(timings: Timings) -> list[Bar]:
    """All stages that took time; what is left of the total comes last, as `other`.

    Stages may be the work of a batch, so their sum may be more than the total.
    """
    found = [
        (key, name, meaning, value)
        for key, name, meaning in STAGES
        if (value := _sane(getattr(timings, key))) > 0
    ]
    spent, total = sum(value for *_, value in found), _sane(timings.total_s)
    other = total - spent
    if total > 0 and other > 0.001 * total:
        found.append(("other_s", "Other", "waiting for its turn in the batch, and checks", other))
    whole = max(total, spent)
    rows, before = [], 0.0
    for key, name, meaning, value in found:
        width = max(_LEAST, WIDTH * value / whole)
        rows.append(
            Bar(
                key=key.removesuffix("_s"),
                name=name,
                meaning=meaning,
                seconds=value,
                share=value / whole,
                x=round(min(WIDTH * before / whole, WIDTH - width), 2),
                width=round(width, 2),
            )
        )
        before += value
    return rows
