"""Things by name, when a hostile log may hold a million names."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, ValuesView
from typing import Generic, TypeVar

T = TypeVar("T")

OTHERS = "(others)"


class Named(Generic[T]):
    """One thing for each of the first `at_most` names; the names after them share one."""

    def __init__(self, make: Callable[[], T], *, at_most: int) -> None:
        self._make = make
        self._at_most = at_most
        self._things: dict[str, T] = {}

    def of(self, name: str) -> T:
        """The thing of this name, made when it is new."""
        found = self._things.get(name)
        if found is not None:
            return found
        if len(self._things) >= self._at_most and name != OTHERS:
            return self.of(OTHERS)
        made = self._things[name] = self._make()
        return made

    def find(self, name: str) -> T | None:
        """The thing of this name alone."""
        return self._things.get(name)

    def items(self) -> ItemsView[str, T]:
        """In the order of their first appearance."""
        return self._things.items()

    def values(self) -> ValuesView[T]:
        """In the same order."""
        return self._things.values()

    def __len__(self) -> int:
        return len(self._things)


class Tally:
    """How often each of the first `at_most` names came; the others are counted together."""

    def __init__(self, *, at_most: int = 50) -> None:
        self._at_most = at_most
        self._counts: dict[str, int] = {}

    def add(self, name: str, count: int = 1) -> None:
        """Count one, or so many."""
        if name not in self._counts and len(self._counts) >= self._at_most:
            name = OTHERS
        self._counts[name] = self._counts.get(name, 0) + count

    def merge(self, other: Tally) -> None:
        """Count what the other one has counted."""
        for name, count in other._counts.items():
            self.add(name, count)

    def to_dict(self) -> dict[str, int]:
        """Most frequent first, equal ones by name."""
        return dict(sorted(self._counts.items(), key=lambda item: (-item[1], item[0])))
