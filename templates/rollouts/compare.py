"""What the canary would have answered, beside what the stable version did.

An entry of the stream `keys.shadowed` is one job: its fields are `job`, `equal` (1 or 0), and
`stable` and `canary`, each the JSON of an `Answered`. The variables are not in it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from contract import keys
from contract.errors import InvalidInput, NotFound
from contract.ids import tenant_of
from contract.redis_client import Client, errors_explained, text
from contract.settings import Settings
from templates.reading import RegistryReader

T = TypeVar("T")

MAX_PAIRS = 1000  # kept of a rollout
MAX_TEXT_CHARS = 4000  # kept of an answer; whether two are equal is found on all of them
_AT_ONCE = 100
_MOST = 10**12  # numbers that add up without overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One version's answer to a job."""

    version: int
    text: str
    choice: str | None
    tokens: int  # of the answer
    seconds: float  # of computing it, without the queue
    error: str = ""  # why there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both versions' answers to one job."""

    job_id: str
    at: float  # when the canary had answered; Redis server time, seconds since the epoch
    stable: Answered
    canary: Answered
    equal: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Of one version's answers; None without any."""

    tokens: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All pairs of a rollout, newest first, and what they come to.

    `agreement` is the share of equal ones among those that the canary answered.
    """

    pairs: tuple[Pair, ...]
    answered: int
    equal: int
    failed: int  # jobs that the canary had no answer to
    agreement: float | None
    stable: Means  # both over the jobs that the canary answered
    canary: Means
    changes: Mapping[tuple[str, str], int]  # choices that differ: (stable, canary) -> how often
    unreadable: int = 0

    def to_dict(self) -> dict[str, Any]:
        """All but the pairs, as plain data."""
        return {
            "jobs": len(self.pairs),
            "answered": self.answered,
            "equal": self.equal,
            "failed": self.failed,
            "agreement": self.agreement,
            "stable": asdict(self.stable),
            "canary": asdict(self.canary),
            "changes": [
                {"stable": old, "canary": new, "jobs": jobs}
                for (old, new), jobs in self.changes.items()
            ],
            "unreadable": self.unreadable,
        }


def equal_answers(stable: Answered, canary: Answered) -> bool:
    """True for the same choice, or the same text where there are no choices on both sides."""
    if canary.error:
        return False
    if stable.choice is not None and canary.choice is not None:
        return stable.choice == canary.choice
    return stable.text == canary.text


def fields_of(job_id: str, stable: Answered, canary: Answered) -> dict[str, str]:
    """The entry of a job, as the stream has it."""
    return {
        "job": job_id,
        "equal": str(int(equal_answers(stable, canary))),
        "stable": _plain(stable),
        "canary": _plain(canary),
    }


def compare(pairs: Sequence[Pair], *, unreadable: int = 0) -> Comparison:
    """Counts, agreement and means."""
    answered = [pair for pair in pairs if not pair.canary.error]
    equal = sum(pair.equal for pair in answered)
    changes = Counter(
        (pair.stable.choice, pair.canary.choice)
        for pair in answered
        if pair.stable.choice is not None
        and pair.canary.choice is not None
        and pair.stable.choice != pair.canary.choice
    )
    return Comparison(
        pairs=tuple(pairs),
        answered=len(answered),
        equal=equal,
        failed=len(pairs) - len(answered),
        agreement=equal / len(answered) if answered else None,
        stable=_means([pair.stable for pair in answered]),
        canary=_means([pair.canary for pair in answered]),
        changes=dict(changes.most_common()),
        unreadable=unreadable,
    )


def read_pairs(client: Client, settings: Settings, tenant: str, rollout_id: str) -> Comparison:
    """What is there of a rollout; it is kept for days after its end."""
    key = keys.shadowed(tenant, rollout_id)
    pairs: list[Pair] = []
    unreadable, last = 0, "+"
    while len(pairs) + unreadable < MAX_PAIRS:
        with errors_explained(settings):
            page: Any = client.xrevrange(key, max=last, count=_AT_ONCE)
        for entry_id, fields in page:
            try:
                pairs.append(_pair(tenant, text(entry_id), fields))
            except (KeyError, TypeError, ValueError, RecursionError, InvalidInput):
                unreadable += 1
        if len(page) < _AT_ONCE:
            break
        last = f"({text(page[-1][0])}"
    return compare(pairs[:MAX_PAIRS], unreadable=unreadable)


def latest_rollout(registry: RegistryReader, tenant: str, name: str) -> str:
    """The id of a template's rollout, or of its last one. Raises NotFound when it had none."""
    for entry in reversed(registry.journal(tenant, name)):
        plain = entry.change.get("rollout")
        if plain is not None:
            return str(plain["id"])
    registry.check_known(tenant, name)
    raise NotFound(
        f"{tenant}/{name} never had a rollout",
        remedy=f"Start one with 'prefillq templates rollout start {tenant}/{name} --to N "
        "--shadow 10%'.",
    )


def _plain(answered: Answered) -> str:
    return json.dumps({**asdict(answered), "text": answered.text[:MAX_TEXT_CHARS]})


def _means(answers: Sequence[Answered]) -> Means:
    if not answers:
        return Means(tokens=None, seconds=None)
    return Means(
        tokens=sum(one.tokens for one in answers) / len(answers),
        seconds=math.fsum(one.seconds for one in answers) / len(answers),
    )


def _pair(tenant: str, entry_id: str, fields: Mapping[bytes, bytes]) -> Pair:
    job_id = text(fields[b"job"])
    if tenant_of(job_id) != tenant:
        raise ValueError("another tenant's job")
    return Pair(
        job_id=job_id,
        at=int(entry_id.partition("-")[0]) / 1000,
        stable=_answered(fields[b"stable"]),
        canary=_answered(fields[b"canary"]),
        equal={b"1": True, b"0": False}[fields[b"equal"]],
    )


def _answered(data: bytes) -> Answered:
    plain = json.loads(data)
    seconds = plain["seconds"]
    if type(seconds) not in (int, float) or not 0 <= seconds < _MOST:
        raise ValueError("seconds are none")
    return Answered(
        version=_of(int, plain, "version"),
        text=_of(str, plain, "text"),
        choice=None if plain["choice"] is None else _of(str, plain, "choice"),
        tokens=_of(int, plain, "tokens"),
        seconds=float(seconds),
        error=_of(str, plain, "error"),
    )


def _of(kind: type[T], plain: Mapping[str, Any], name: str) -> T:
    value = plain[name]
    if type(value) is not kind or (isinstance(value, int) and not 0 <= value < _MOST):
        raise TypeError(f"{name} is none")
    return value
