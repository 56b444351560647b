"""Input that is nearly right: good seeds with a few edits, of which some are known for trouble."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

S = TypeVar("S", str, bytes)


def nested(depth: int, *, of: type[list[Any] | dict[str, Any]] = list) -> Any:
    """`[[[...]]]` or `{"a": {"a": ...}}`."""
    value: Any = None
    for _ in range(depth):
        value = [value] if of is list else {"a": value}
    return value


TEXTS = (
    *("", " ", "\0", "\n", "\ufeff", "\ud800", "\u202e", "\x1b[2J", "x" * 5000, "é" * 300),
    *("../../etc/passwd", "/dev/zero", "/proc/self/mem", "~nobody-here/x", "C:\\x", "a\0b"),
    *("{{ name }}", "{% raw %}", "${x}", "%s%n", "<|im_end|>", "'; DROP", "NaN", "1e999", "-0"),
    *("9" * 5000, "0x" + "f" * 5000, "1:" * 500 + "1", "٣", "²", "1_000", "null", "true", "~"),
)
NUMBERS: tuple[float | int, ...] = (
    *(0, -1, 1, 2**31, 2**53, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30),
    *(0.0, -0.0, 5e-324, 1.5, 1e308, float("inf"), float("-inf"), float("nan")),
)
PLAIN: tuple[Any, ...] = (
    *(None, True, False, [], {}, [None], {"": None}),
    *TEXTS,
    *NUMBERS,
    *(nested(33), nested(33, of=dict), nested(200), [[]] * 500, {str(n): n for n in range(500)}),
)
BYTES = (
    *(b"\0", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\r\n", b"\x80" * 9, b"\xc1"),
    *(
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\x7f\xff\xff\xff",
    ),
    *((2**n).to_bytes(8, "little") for n in (16, 31, 32, 53, 62, 63)),
    *(b"\x91" * 40, b"\x81\xa1a" * 40, b"[" * 2000, b'{"a":' * 2000, b"9" * 5000),
)


@st.composite
def edited(draw: DrawFn, seeds: Sequence[S], pieces: Sequence[S]) -> S:
    """One of the seeds after up to six edits, with `pieces` to put in."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.integers(0, 40)))
        match draw(st.sampled_from(("insert", "replace", "delete", "repeat", "cut", "move"))):
            case "insert":
                data = data[:start] + draw(st.sampled_from(pieces)) + data[start:]
            case "replace":
                data = data[:start] + draw(st.sampled_from(pieces)) + data[stop:]
            case "delete":
                data = data[:start] + data[stop:]
            case "repeat":
                data = data[:stop] + data[start:stop] * draw(st.integers(1, 50)) + data[stop:]
            case "cut":
                data = data[:start]
            case "move":
                data = data[start:stop] + data[:start] + data[stop:]
    return data


@st.composite
def edited_plain(draw: DrawFn, seeds: Sequence[Any], values: Sequence[Any] = PLAIN) -> Any:
    """One of the seeds, which are JSON-like data, with up to four places changed."""
    data = copy.deepcopy(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        place = data
        put: Callable[[Any], None] | None = None
        while isinstance(place, dict | list) and place and (put is None or draw(st.booleans())):
            key = draw(
                st.sampled_from(
                    sorted(place, key=str) if isinstance(place, dict) else range(len(place))
                )
            )
            put, holder = _setter(place, key), place
            place = place[key]
        if put is None:
            return draw(st.sampled_from(values))
        match draw(st.sampled_from(("set", "set", "drop", "add", "wrap"))):
            case "set":
                put(copy.deepcopy(draw(st.sampled_from(values))))
            case "drop":
                del holder[key]
            case "wrap":
                put(draw(st.sampled_from(([place], {"a": place}, str(place)[:100]))))
            case "add":
                new = copy.deepcopy(draw(st.sampled_from(values)))
                if isinstance(holder, dict):
                    holder[draw(st.sampled_from(TEXTS))] = new
                else:
                    holder.append(new)
    return data


def _setter(holder: Any, key: Any) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        holder[key] = value

    return put


def edited_json(seeds: Sequence[Any]) -> SearchStrategy[bytes]:
    """JSON text: of data that was changed, or changed as text."""
    texts = [json.dumps(seed).encode() for seed in seeds]
    plain = tuple(value for value in PLAIN if not isinstance(value, bytes))
    changed = edited_plain(seeds, plain).map(lambda data: json.dumps(data).encode())
    return st.one_of(changed, edited(texts, [*BYTES, b"NaN", b"Infinity", b"1e999", b"\\ud800"]))
