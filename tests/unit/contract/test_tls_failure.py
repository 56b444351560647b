"""Which error lies behind another one."""

from __future__ import annotations

import ssl

import pytest

from contract.tls import tls_failure


def _raised(error: BaseException, *, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def test_tls_error_behind_others_is_found() -> None:
    """However deep it lies."""
    tls = ssl.SSLError("no")
    assert tls_failure(_raised(OSError("a"), cause=_raised(ValueError("b"), cause=tls))) is tls
    assert tls_failure(OSError("a")) is None
    assert tls_failure(None) is None


@pytest.mark.timeout(10)
def test_errors_that_caused_each_other_are_looked_at_once() -> None:
    """As the bell's are, when Redis goes away: it raises a cause again from what it caused."""
    inner = OSError("inner")
    outer = _raised(OSError("outer"), cause=inner)
    inner.__cause__ = outer
    assert tls_failure(outer) is None
