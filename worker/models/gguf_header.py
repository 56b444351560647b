"""A GGUF file's header, walked once before any library reads it.

The header is made of counts and lengths that its writer chose. The `gguf` library believes them:
an array of 2**60 bytes at the end of a small file keeps it busy for ever, and Transformers builds
as many layers as the file says there are. Here every length must lie within the file.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import IO

from contract.errors import ModelError
from contract.files import open_regular

MAX_KEYS = 10_000
MAX_TENSORS = 100_000
MAX_ITEMS = 16_000_000  # of all arrays together; the largest vocabularies have a million
MAX_TEXT_BYTES = 64 * 2**20  # of one text: chat templates are the long ones
_MAX_DIMENSIONS = 8
_MAX_NESTING = 4

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"} | {
    10: "<Q",
    11: "<q",
    12: "<d",
}
_TEXT, _ARRAY = 8, 9
_Value = int | float | bool | str | None  # None for what is only passed over


class _Damaged(Exception):
    """What the header has that no header can have."""


def check_gguf(path: Path) -> None:
    """Raise ModelError unless the header is whole and as large as it says."""
    try:
        with open_regular(path) as file:
            _Header(file).check()
    except OSError as error:
        raise ModelError(
            "the file cannot be read",
            given=f"{path}: {error.strerror}",
            remedy="Let this user read it.",
        ) from error
    except _Damaged as error:
        raise ModelError(
            "this is no whole GGUF file",
            given=f"{path}: {error}",
            expected="a GGUF file of version 2 or 3, little-endian",
            remedy="Download it again.",
        ) from error


class _Header:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = os.fstat(file.fileno()).st_size
        self._items = 0

    def check(self) -> None:
        if self._take(4) != b"GGUF":
            raise _Damaged("it does not begin with GGUF")
        version = self._number("<I")
        if version not in (2, 3):
            raise _Damaged(f"version {version}")
        tensors, keys = self._number("<Q"), self._number("<Q")
        if tensors > MAX_TENSORS or keys > MAX_KEYS:
            raise _Damaged(f"{tensors} tensors and {keys} keys")
        values = dict(self._key_and_value() for _ in range(keys))
        for _ in range(tensors):
            self._tensor()
        layers = values.get(f"{values.get('general.architecture')}.block_count", 0)
        if not isinstance(layers, int) or not 0 <= layers <= tensors:
            raise _Damaged("more layers than tensors")

    def _key_and_value(self) -> tuple[str, _Value]:
        return self._text(), self._value(self._number("<I"))

    def _value(self, kind: int, depth: int = 0) -> _Value:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY or depth == _MAX_NESTING:
            raise _Damaged(f"a value of type {kind}")
        kind, count = self._number("<I"), self._number("<Q")
        self._items += count
        if self._items > MAX_ITEMS:
            raise _Damaged(f"an array of {count} values")
        if kind in _SCALARS:
            self._skip(count * struct.calcsize(_SCALARS[kind]))
        elif kind == _TEXT:
            for _ in range(count):
                self._skip(self._number("<Q"))
        else:
            for _ in range(count):
                self._value(kind, depth + 1)
        return None

    def _tensor(self) -> None:
        self._text()
        dimensions = self._number("<I")
        if dimensions > _MAX_DIMENSIONS:
            raise _Damaged(f"a tensor of {dimensions} dimensions")
        elements = 1
        for _ in range(dimensions):
            elements *= self._number("<Q")
        self._number("<I")  # how its numbers are stored
        self._number("<Q")  # where
        # The densest way to store them takes a bit for each.
        if elements > 8 * os.fstat(self._file.fileno()).st_size:
            raise _Damaged(f"a tensor of {elements} numbers")

    def _text(self) -> str:
        length = self._number("<Q")
        if length > MAX_TEXT_BYTES:
            raise _Damaged(f"a text of {length} bytes")
        return self._take(length).decode("utf-8", "replace")

    def _number(self, form: str) -> int:
        value = self._scalar(form)
        assert isinstance(value, int)  # noqa: S101 - the forms asked for are integers
        return value

    def _scalar(self, form: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return value

    def _take(self, length: int) -> bytes:
        self._left -= length
        if self._left < 0:
            raise _Damaged("it ends within its header")
        return self._file.read(length)

    def _skip(self, length: int) -> None:
        self._left -= length
        if self._left < 0:
            raise _Damaged("it ends within its header")
        self._file.seek(length, os.SEEK_CUR)
