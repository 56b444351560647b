"""What Redis and redis-py say of a command that went wrong, without the command."""

from __future__ import annotations

import pytest
from redis.exceptions import NoPermissionError, OutOfMemoryError, RedisError, ResponseError

from contract.errors import RedisFull, RedisRefused
from contract.redis_client import errors_explained, text
from contract.settings import Settings


@pytest.mark.parametrize(
    "error",
    [
        ResponseError("Command # 1 (SET key planted) of pipeline caused error: ERR it says why"),
        ResponseError("Command # 12 (A (b\nplanted) of pipeline caused error: ERR it says why"),
        ResponseError("ERR it says why: unknown command 'X', with args beginning with: 'planted'"),
        NoPermissionError("Command # 1 (GET planted) of pipeline caused error: it says why"),
        RedisError("Command # 1 (GET planted) of pipeline caused error: it says why"),
    ],
)
def test_commands_are_left_out(error: RedisError) -> None:
    """Their arguments are keys and what users wrote."""
    with (
        pytest.raises(RedisRefused, match="it says why") as caught,
        errors_explained(Settings()),
    ):
        raise error
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(("error", "full"), [(OutOfMemoryError, True), (ResponseError, False)])
def test_a_full_redis_is_told_from_one_that_never_will(error: type[RedisError], full: bool) -> None:
    """Memory may come free; whoever can wait does."""
    with pytest.raises(RedisRefused) as caught, errors_explained(Settings()):
        raise error("command not allowed")
    assert isinstance(caught.value, RedisFull) is full


def test_a_reply_that_is_no_text_is_escaped() -> None:
    """Two that differ stay different."""
    assert (text(b"\xff"), text(b"\xfe"), text("é".encode()), text(7)) == (
        "\\xff",
        "\\xfe",
        "é",
        "7",
    )


def test_a_password_is_in_no_repr() -> None:
    """Settings are passed around, and printed by whoever debugs."""
    assert "planted" not in repr(Settings(redis_url="redis://:planted@h"))
