"""The native kernels, compiled once for all tests and not once for each cache folder."""

from __future__ import annotations

from pathlib import Path

from contract.settings import Settings


def share_kernels(cache_dir: Path) -> None:
    """Let a cache folder of a test find the user's compiled kernels, and leave its own there."""
    own = Settings.load().cache_dir.absolute() / "native"
    own.mkdir(parents=True, exist_ok=True)
    cache_dir.mkdir(parents=True, exist_ok=True)
    (cache_dir / "native").symlink_to(own)
