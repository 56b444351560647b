"""What a batch has seen, in little memory: a line in a bit, a name in at most 24 bytes."""

from __future__ import annotations

import secrets
from array import array
from hashlib import blake2b

from contract.errors import InvalidInput

MAX_LINES = 2**24  # which bounds both, at 2 and 400 MB


def check_index(index: int) -> None:
    """Raise InvalidInput for a line beyond the last that a batch may have."""
    if index >= MAX_LINES:
        raise InvalidInput(
            "the batch has too many lines",
            given=f"over {MAX_LINES}",
            expected=f"at most {MAX_LINES}",
            remedy="Split the file; each part is a batch with an output of its own.",
        )


class Indexes:
    """A set of lines, by index under MAX_LINES."""

    def __init__(self) -> None:
        self.bits = bytearray()

    def add(self, index: int) -> None:
        check_index(index)
        byte = index // 8
        if byte >= len(self.bits):
            self.bits.extend(bytes(max(byte + 1, 2 * len(self.bits)) - len(self.bits)))
        self.bits[byte] |= 1 << index % 8

    def __contains__(self, index: int) -> bool:
        byte = index // 8
        return byte < len(self.bits) and bool(self.bits[byte] & 1 << index % 8)


class Names:
    """Which line had which name first.

    A name is kept as 64 bits of a hash whose key nobody knows, so that its length costs nothing. Of
    100,000 batches of 16 million names, one has two that are wrongly taken for one.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)
        self._hashes = array("Q")
        self._lines = array("I")  # of the same places
        self._table = array("I", [0]) * 1024  # open addressing: place + 1, 0 where it is free

    def first(self, name: str, line: int) -> int:
        """The line that had this name first: `line` itself, or an earlier one."""
        data = name.encode("utf-8", "surrogatepass")
        value = int.from_bytes(blake2b(data, digest_size=8, key=self._key).digest(), "big")
        slot = self._slot(value)
        if place := self._table[slot]:
            return self._lines[place - 1]
        self._hashes.append(value)
        self._lines.append(line)
        self._table[slot] = len(self._hashes)
        if 3 * len(self._hashes) > 2 * len(self._table):
            self._grow()
        return line

    def _slot(self, value: int) -> int:
        last = len(self._table) - 1
        slot = value & last
        while (place := self._table[slot]) and self._hashes[place - 1] != value:
            slot = slot + 1 & last
        return slot

    def _grow(self) -> None:
        self._table = array("I", [0]) * (2 * len(self._table))
        for place, value in enumerate(self._hashes, 1):
            self._table[self._slot(value)] = place
