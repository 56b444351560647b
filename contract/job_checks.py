"""What no job store takes, whatever it is made of."""

from __future__ import annotations

from contract.described import describe
from contract.errors import InvalidInput
from contract.ids import check_name
from contract.job_store import Submission, TenantLimits
from contract.types import Result

MAX_DEADLINE_S = 366 * 86_400.0
MAX_KEY_CHARS = 256
_MAX_SCORE = 1e12


def check_submission(submission: Submission) -> None:
    """Raise InvalidInput for a deadline, key or limit that no record can carry."""
    deadline_s, key = submission.deadline_s, submission.idempotency_key
    if deadline_s is not None and not 0 < deadline_s <= MAX_DEADLINE_S:
        raise InvalidInput(
            "not a deadline",
            given=f"{deadline_s!r:.40} seconds",
            expected=f"over 0, at most {MAX_DEADLINE_S:.0f} seconds",
        )
    if key is not None and not usable_key(key):
        raise InvalidInput(
            "not an idempotency key",
            given=describe(key),
            expected=f"1 to {MAX_KEY_CHARS} characters of valid Unicode text",
        )


def usable_key(key: object) -> bool:
    """True for what can be an idempotency key."""
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_CHARS:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in key)


def check_ended(result: Result) -> None:
    """Raise InvalidInput for a result whose status is no end."""
    if not result.status.ended:
        raise InvalidInput(
            "only the end of a job can be committed",
            given=f"status {result.status}",
            expected="succeeded, failed, cancelled or expired",
        )


def check_score(name: str, value: float) -> float:
    """The value to 12 decimals. Raises InvalidInput for what is no score."""
    check_name("score", name)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not abs(value) <= _MAX_SCORE:  # NaN is not
        raise InvalidInput(
            f"the score {name} cannot be used",
            given=f"{value!r:.40}" if number else describe(value),
            expected=f"a number from -{_MAX_SCORE:g} to {_MAX_SCORE:g}",
        )
    return round(float(value), 12)


def check_limits(limits: TenantLimits) -> None:
    """Raise InvalidInput for what is no limit."""
    rate, counts = limits.rate_per_s, (limits.max_queued, limits.max_running)
    if rate is not None and not 1e-4 <= rate <= 1e6:
        raise InvalidInput("not a rate", given=f"{rate!r:.40}", expected="0.0001 to 1e6 a second")
    for count in counts:
        if count is not None and not 0 <= count <= 10**9:
            raise InvalidInput("not a limit", given=f"{count!r:.40}", expected="0 to 1000000000")
