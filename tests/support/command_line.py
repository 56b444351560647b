"""The real `prefillq` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How one run ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its stdout, which must be one JSON value on one line."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """Runs commands against one Redis and one cache folder, given by environment variables."""

    settings: Settings
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if "PREFILLQ" not in key}
        return {
            **clean,
            "PREFILLQ_REDIS_URL": self.settings.redis_url,
            "PREFILLQ_CACHE_DIR": str(self.settings.cache_dir),
            "PYTHONWARNINGS": "error",
        }

    def run(self, *arguments: str | Path, stdin: str = "", **env: str) -> Ran:
        """Run to the end, at most 60 s."""
        done = subprocess.run(
            self.command(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=self.folder,
            env={**self.environment, **env},
        )
        return Ran(code=done.returncode, out=done.stdout, err=done.stderr)

    def command(self, *arguments: str | Path) -> list[str]:
        """The words of the command, for a process that a test watches itself."""
        return [sys.executable, "-m", "producer", *map(str, arguments)]
