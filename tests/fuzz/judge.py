"""How one input ended: well, with one of our errors, or as nobody designed it."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from contract.errors import PrefillqError

SECONDS = 10.0  # for one input; most take a few milliseconds
MIB = 512  # by which one input may raise the process's peak

_PER_MIB = 2**20 if sys.platform == "darwin" else 2**10  # units of ru_maxrss


class Found(AssertionError):
    """An input that ended otherwise than designed."""


class TookTooLong(BaseException):
    """Raised into the running input; no `except Exception` on the way catches it."""


def judged(call: Callable[[], object]) -> str:
    """`ok`, or the code of the error that the call raised. What else it raises passes through.

    Raises Found when it takes too long or too much memory, or when its error cannot be shown.
    """
    with bounded():
        try:
            call()
        except PrefillqError as error:
            check_shown(error)
            return error.code
    return "ok"


def check_shown(error: PrefillqError) -> None:
    """Raise Found for an error that a log or a terminal could not bear."""
    text = str(error)
    if len(text) > 2000:
        raise Found(f"an error of {len(text)} characters: {text[:200]}")
    if not error.problem or error.exit_code not in range(1, 9):
        raise Found(f"an error without words or code: {error!r}")
    error.to_dict()


@contextmanager
def bounded(*, seconds: float = SECONDS, mib: float = MIB) -> Iterator[None]:
    """Raise Found when the block takes longer, or raises the peak of memory by more."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TookTooLong

    before = _peak_mib()
    handler = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except TookTooLong as error:
        raise Found(f"over {seconds:g} s") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    if (grown := _peak_mib() - before) > mib:
        raise Found(f"{grown:.0f} MiB more than before")


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _PER_MIB
