"""When a completion ends, and why. Plain Python: fed one id at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from contract.types import FinishReason
from templates.spec import GenerationSpec
from worker.engine.base import Grammar, StopReason

Decode = Callable[[Sequence[int]], str]

# A window of ids decodes like the whole but for its first few: half a character, or a space
# that a tokenizer drops at the start of a text. No character takes more than 4 byte tokens.
_WINDOW_MARGIN = 8


class StopStrings:
    """Finds a stop string in the text of a growing list of ids, across token borders."""

    def __init__(self, stop: Sequence[str], decode: Decode) -> None:
        self._stop = tuple(stop)
        self._decode = decode
        # Each id that has text has a byte of it or more, so this many ids hold any stop string.
        longest = max((len(s.encode("utf-8")) for s in self._stop), default=0)
        self._window = longest + _WINDOW_MARGIN

    def found(self, ids: Sequence[int]) -> bool:
        """True when the last id completed a stop string. Decodes the end of the text only."""
        return bool(self._stop) and self._first(self._decode(ids[-self._window :])) is not None

    def cut(self, text: str) -> str:
        """The text before the first stop string."""
        return text[: self._first(text)]

    def _first(self, text: str) -> int | None:
        found = [at for s in self._stop if (at := text.find(s)) >= 0]
        return min(found, default=None)


class Ending:
    """Decides after each id whether the completion ends; `reason` is None while it goes on.

    An answer that is complete counts as complete, even if the job was cancelled meanwhile.
    """

    def __init__(
        self,
        generation: GenerationSpec,
        *,
        eos_ids: Sequence[int],
        decode: Decode,
        should_stop: Callable[[], StopReason | None],
        grammar: Grammar | None = None,
    ) -> None:
        self.run = None if grammar is None else grammar.start()
        self._eos = frozenset(eos_ids)
        self._stop_strings = StopStrings(generation.stop, decode)
        self._should_stop = should_stop
        self._decode = decode
        self.max_new_tokens = generation.max_new_tokens
        self.reason: FinishReason | None = None

    def ask(self) -> FinishReason | None:
        """Ask whether the job is still wanted."""
        self.reason = self._should_stop()
        return self.reason

    def after(self, produced: Sequence[int]) -> bool:
        """Look at all ids produced so far; True when no more should follow.

        Raises GrammarFailed when the last of them is not what the grammar allows.
        """
        if self.reason is not None:
            return True
        whole = self.run is not None and self.run.advance(produced[-1])
        if whole or produced[-1] in self._eos:
            self.reason = "stop"
        elif self._stop_strings.found(produced):
            self.reason = "stop_string"
        elif len(produced) >= self.max_new_tokens:
            self.reason = "length"
        else:
            self.ask()
        return self.reason is not None

    def text(self, token_ids: Sequence[int]) -> str:
        """The completion's text, cut before the stop string."""
        return self._stop_strings.cut(self._decode(token_ids))
