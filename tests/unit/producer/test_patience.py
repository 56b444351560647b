"""Trying again: as long as asked, and not for what trying again cannot mend."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from contract.errors import RedisRefused, RedisUnreachable
from producer import patience as patience_module
from producer.patience import Patience


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience_module, "RETRY_S", 0.01)


def failing(times: int, error: Exception) -> Callable[[], str]:
    left = [error] * times

    def act() -> str:
        if left:
            raise left.pop()
        return "done"

    return act


AWAY = RedisUnreachable("Redis cannot be reached")


def test_without_patience_the_first_error_is_it() -> None:
    """As before: an error at once."""
    with pytest.raises(RedisUnreachable):
        Patience().call(failing(1, AWAY))


def test_with_patience_it_is_tried_until_it_works() -> None:
    """And what it gives is given."""
    assert Patience(5.0).call(failing(7, AWAY)) == "done"


def test_patience_ends() -> None:
    """With the last error, and not much later than asked."""
    started = time.monotonic()
    with pytest.raises(RedisUnreachable):
        Patience(0.1).call(failing(10**6, AWAY))
    assert 0.05 < time.monotonic() - started < 1


def test_several_calls_may_share_one_patience() -> None:
    """The second has what the first left."""
    patience = Patience(5.0)
    assert patience.call(failing(3, AWAY), until=patience.until()) == "done"
    with pytest.raises(RedisUnreachable):
        patience.call(failing(3, AWAY), until=time.monotonic())


def test_a_refusal_is_not_tried_again() -> None:
    """A full Redis is not away: waiting for it is the caller's decision."""
    with pytest.raises(RedisRefused):
        Patience(5.0).call(failing(1, RedisRefused("Redis refused a command")))
