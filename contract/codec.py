"""msgpack, and nothing that it would change on the way.

A value either comes back equal and of the same type, or is refused here, in the process
that made it, with the path of the offending field. On the wire such values lose the job:
msgpack cannot carry integers over 64 bits, map keys that are no strings are rejected by the
reader, and dates come back as something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgpack

from contract.errors import CodecError, InvalidInput

MAX_DEPTH = 32
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1


def check_plain(value: object, *, path: str = "$") -> None:
    """Raise InvalidInput unless `value` is made of str, bool, int, float, None, list and dict.

    `path` names the value in the message, in JSONPath style (`$.ticket.lines[3]`).
    """
    _check(value, path, 0)


def _refuse(path: str, given: str, expected: str, remedy: str) -> InvalidInput:
    return InvalidInput(
        f"{path} cannot be sent as msgpack", given=given, expected=expected, remedy=remedy
    )


def _check(value: object, path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _refuse(path, "deeper nesting", f"at most {MAX_DEPTH} levels", "Flatten the value.")
    match value:
        case None | bool():
            pass
        case int():
            if not _MIN_INT <= value <= _MAX_INT:
                raise _refuse(
                    path, "an integer over 64 bits", "-2**63 to 2**64-1", "Send it as a string."
                )
        case float():
            if not math.isfinite(value):
                raise _refuse(
                    path, f"the float {value}", "a finite number", "Send null or a string."
                )
        case str():
            _check_text(value, path)
        case list() | tuple():
            for index, item in enumerate(value):
                _check(item, f"{path}[{index}]", depth + 1)
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise _refuse(
                        path,
                        f"the key {key!r:.40} of type {type(key).__name__}",
                        "string keys",
                        "Write the key as a string.",
                    )
                _check_text(key, f"{path} (a key)")
                _check(item, f"{path}.{key:.40}", depth + 1)
        case _:
            raise _refuse(
                path,
                f"a value of type {type(value).__name__}",
                "text, number, boolean, null, list or object",
                "Convert it first, for example a date with .isoformat().",
            )


def _check_text(value: str, path: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _refuse(
            path,
            f"text with a lone surrogate at character {error.start}",
            "text that can be written as UTF-8",
            "Decode the source with errors='replace'.",
        ) from None


def pack(value: object, *, path: str = "$") -> bytes:
    """Encode plain data. Raises InvalidInput naming the field that cannot be carried."""
    check_plain(value, path=path)
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(data: bytes) -> Any:
    """Decode what `pack` wrote. Raises CodecError on anything else."""
    return _unpack(data, check_plain)  # msgpack knows more than our messages do


def unpack_unchecked(data: bytes) -> Any:
    """As `unpack`, many times as fast, for who takes a few values and checks those alone.

    The others may be what msgpack knows and our messages do not: dates, bytes and extensions.
    """
    return _unpack(data, lambda _: None)


def _unpack(data: bytes, check: Callable[[object], None]) -> Any:
    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=True)
        check(value)
    except (ValueError, msgpack.UnpackException, RecursionError, InvalidInput) as error:
        raise CodecError(
            "these bytes are not a msgpack message of ours",
            given=f"{len(data)} bytes ({type(error).__name__})",
            expected="a message written by contract.codec.pack",
        ) from error
    return value
