"""Where one Redis request or reply ends and the next begins; nothing is interpreted."""

from __future__ import annotations

_LINES = b"+-:_#,("  # a line is all there is
_BLOBS = b"$!="  # a length, then that many bytes
_LISTS = {"*": 1, "~": 1, ">": 1, "%": 2, "|": 2}  # a count, then that many values, or pairs


class Splitter:
    """Cuts a stream into whole RESP2 or RESP3 values; what is incomplete waits for more."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The values that are complete now."""
        self._rest += data
        found, start = [], 0
        while (end := _end(self._rest, start)) is not None:
            found.append(self._rest[start:end])
            start = end
        self._rest = self._rest[start:]
        return found


def words(request: bytes) -> list[bytes]:
    """The parts of a request, which is a list of blobs."""
    parts, at = [], request.index(b"\r\n") + 2
    while at < len(request):
        head = request.index(b"\r\n", at)
        size = int(request[at + 1 : head])
        parts.append(request[head + 2 : head + 2 + size])
        at = head + 2 + size + 2
    return parts


def _end(data: bytes, at: int) -> int | None:
    """Where the value that begins at `at` ends; None when it goes on beyond the data."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return None
    kind, head, at = data[at : at + 1], data[at + 1 : line], line + 2
    if kind in _LINES:
        return at
    size = int(head)
    if kind in _BLOBS:
        end = at if size < 0 else at + size + 2
        return end if end <= len(data) else None
    for _ in range(_LISTS[kind.decode()] * max(size, 0)):
        inner = _end(data, at)
        if inner is None:
            return None
        at = inner
    return at
