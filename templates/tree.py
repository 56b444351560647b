"""The template files below a folder, and what is in the way of reading it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """A path that could not be looked into, and why."""

    path: Path
    reason: str


def walk(folder: Path) -> Iterator[Path | Blocked]:
    """All YAML files below a folder, by name; links are followed. Names with a dot are left out.

    A link that leads back to a folder above it is Blocked, not followed.
    """
    yield from _walk(folder, ())


def _walk(folder: Path, above: tuple[str, ...]) -> Iterator[Path | Blocked]:
    try:
        real = os.path.realpath(folder, strict=True)
        if real in above:
            yield Blocked(path=folder, reason=f"a link that leads back to {real}, above it")
            return
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        yield Blocked(path=folder, reason=f"it cannot be listed: {error.strerror}")
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = folder / entry.name
        if _is_folder(entry):
            yield from _walk(path, (*above, real))
        elif path.suffix.lower() in _ENDINGS:
            yield path


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; reading it will say so, should it be named as a template
        return False
