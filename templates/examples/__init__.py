"""Template files to read, publish and change; `prefillq demo` runs them."""

from __future__ import annotations

from pathlib import Path


def example_paths() -> list[Path]:
    """The example files, by name; a template's versions come in order."""
    return sorted(Path(__file__).parent.glob("*.yaml"))
