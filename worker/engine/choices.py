"""Answers restricted to a list: which ids may come next, and when the answer is known."""

from __future__ import annotations

from collections.abc import Sequence

from contract.errors import InvalidInput


class Choices:
    """The allowed answers as ids, without an end-of-sequence id.

    A choice may be the beginning of another one; then the end-of-sequence id decides. Otherwise
    the answer is known as soon as one choice is left, and nothing more has to be computed.
    """

    def __init__(self, choices: Sequence[tuple[int, ...]], eos_ids: Sequence[int]) -> None:
        if not choices or not all(choices):
            raise InvalidInput("each output choice must come to at least one token", given=choices)
        self._choices = tuple(choices)
        self._eos = tuple(eos_ids)
        self.longest = max(map(len, self._choices))
        if not self._eos and (begun := self._beginnings()):
            raise InvalidInput(
                "an output choice is the beginning of another, and the model has no "
                "end-of-sequence token to tell them apart",
                given=f"choice number {begun[0]}",
                expected="choices none of which begins another",
            )

    def __getitem__(self, index: int) -> tuple[int, ...]:
        return self._choices[index]

    def allowed(self, produced: tuple[int, ...]) -> list[int]:
        """Ids that may follow what was produced: of a choice, or of its end."""
        left = self._left(produced)
        ids = {self._choices[i][len(produced)] for i in left if self._choices[i] != produced}
        if any(self._choices[i] == produced for i in left):
            ids.update(self._eos)
        return sorted(ids)

    def decided(self, produced: tuple[int, ...]) -> int | None:
        """The index of the answer once nothing else can follow, else None."""
        if produced and produced[-1] in self._eos:
            whole = produced[:-1]
            return self._choices.index(whole) if whole in self._choices else None
        left = self._left(produced)
        return left[0] if len(left) == 1 else None

    def _left(self, produced: tuple[int, ...]) -> list[int]:
        return [i for i, ids in enumerate(self._choices) if ids[: len(produced)] == produced]

    def _beginnings(self) -> list[int]:
        return [i for i, ids in enumerate(self._choices) if len(self._left(ids)) > 1]
