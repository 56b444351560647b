"""The libraries that shape what a model computes; what was found with others is not trusted."""

from __future__ import annotations

from importlib.metadata import version


def library_versions() -> dict[str, str]:
    """Installed versions by name."""
    return {name: version(name) for name in ("torch", "transformers")}
