"""msgpack carries plain data unchanged; all else is refused where it is made."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import msgpack
import pytest
from hypothesis import given, strategies as st

from contract.codec import MAX_DEPTH, check_plain, pack, unpack
from contract.errors import CodecError, InvalidInput

texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
plain = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20
)


@given(plain)
def test_plain_data_comes_back_equal_and_of_the_same_types(value: object) -> None:
    """Whatever pack accepts, unpack gives back, True as True and 1.0 as 1.0."""
    assert repr(unpack(pack(value))) == repr(value)


@pytest.mark.parametrize(
    ("variables", "field", "word"),
    [
        ({"a": {1: "x"}}, "$.a", "the key 1 of type int"),
        ({"a": [0, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]}, "$.a[1]", "type datetime"),
        ({"a": {"b": 2**70}}, "$.a.b", "over 64 bits"),
        ({"a": -(2**63) - 1}, "$.a", "over 64 bits"),
        ({"a": b"raw"}, "$.a", "type bytes"),
        ({"a": math.nan}, "$.a", "the float nan"),
        ({"a": math.inf}, "$.a", "the float inf"),
        ({"a": "x\ud800"}, "$.a", "lone surrogate at character 1"),
        ({"\udfff": 1}, "$ (a key)", "lone surrogate"),
        ({"a": {1, 2}}, "$.a", "type set"),
        ({"a": 1j}, "$.a", "type complex"),
    ],
)
def test_what_msgpack_would_change_is_refused_by_name(
    variables: dict[Any, Any], field: str, word: str
) -> None:
    """Case Q10: int keys, dates, huge integers, bytes and NaN are refused, naming the field."""
    with pytest.raises(InvalidInput) as caught:
        pack(variables)
    assert field in caught.value.problem
    assert word in str(caught.value.given)
    assert caught.value.remedy


def test_nesting_has_a_limit() -> None:
    """A value as deep as the limit passes, one level more is refused."""
    value: list[Any] = []
    for _ in range(MAX_DEPTH):
        value = [value]
    check_plain(value)
    with pytest.raises(InvalidInput, match="deeper nesting"):
        check_plain([value])


@given(st.binary(max_size=64))
def test_foreign_bytes_are_a_codec_error_or_plain_data(data: bytes) -> None:
    """No bytes make unpack raise anything else, or return what pack would refuse."""
    try:
        value = unpack(data)
    except CodecError:
        return
    check_plain(value)


@pytest.mark.parametrize(
    "value",
    [b"raw", {1: 2}, msgpack.Timestamp(0), msgpack.ExtType(5, b"x")],
    ids=["bytes", "int_key", "timestamp", "extension"],
)
def test_msgpack_that_is_not_ours_is_refused(value: object) -> None:
    """Valid msgpack of types that our messages never hold is a CodecError."""
    with pytest.raises(CodecError):
        unpack(msgpack.packb(value))
