"""From token ids to text that will stay as it is, while more ids come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from worker.engine.stopping import Decode

_HALF = "\ufffd"  # what decoders make of a character whose other bytes have not come yet
_LONGEST = 4  # bytes of a character, and each id that has text has one or more
_PENDING = 2 * _LONGEST  # ids for which a character may be waited for


class SafeText:
    """Gives out whole characters, and nothing that may turn out to be part of a stop string.

    Decodes the last few ids only: what came before an end of a character stays as it was.
    """

    def __init__(self, stop: Sequence[str], decode: Decode) -> None:
        self._stop = tuple(stop)
        self._decode = decode
        self._ids: list[int] = []  # those since the last but one end of a character
        self._known = 0  # how many of them are in the text already
        self._held = ""  # whole characters that may begin a stop string
        self._stopped = False

    def add(self, ids: Iterable[int]) -> str:
        """The text that is certain now and was not before."""
        for each in ids:
            self._ids.append(each)
            self._held += self._whole()
        return self._release()

    def _whole(self) -> str:
        """What the newest id adds, once it ends a character."""
        before = self._decode(self._ids[: self._known])
        text, end = self._decode(self._ids), len(self._ids)
        if text.endswith(_HALF) or not text.startswith(before):
            if end - self._known <= _PENDING:
                return ""
            text, end = self._overdue(before, text)
        if text != before:  # a token without text, such as the end of the sequence, moves nothing
            self._ids = self._ids[self._known :]
            self._known = end - self._known
        return text[len(before) :]

    def _overdue(self, before: str, text: str) -> tuple[str, int]:
        """The text so far and how many ids it is of, where no character is as long as what waits:
        the model means U+FFFD, or its bytes are no characters. `before` if it can wait still.
        """
        late = len(self._ids) - self._known > _PENDING + _LONGEST
        # The last few may begin a character all the same: cut where both sides come to the whole.
        for end in range(len(self._ids) - 1, len(self._ids) - 1 - _LONGEST, -1):
            head, tail = self._decode(self._ids[:end]), self._decode(self._ids[end:])
            clean = tail and head + tail == text and head.startswith(before)
            # Some decoders take all bytes of a run for broken until the last is there, and so a
            # cut is sure only behind an id that added no character: it ended one.
            if clean and (late or len(head) <= len(self._decode(self._ids[: end - 1]))):
                return head, end
        if late:
            return before + self._decode(self._ids[self._known :]), len(self._ids)
        return before, 0

    def _release(self) -> str:
        if self._stopped:
            return ""
        found = [at for s in self._stop if (at := self._held.find(s)) >= 0]
        if found:
            self._stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        kept = max((_overlap(self._held, s) for s in self._stop), default=0)
        end = len(self._held) - kept
        text, self._held = self._held[:end], self._held[end:]
        return text


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` with which `stop` begins."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
