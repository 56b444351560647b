"""Programs that tests need beside Python. What is missing skips locally and fails in CI."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip the test that asks; in CI (`CI` is set) fail it."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def program(name: str) -> str:
    """The path of a program, on PATH or beside this Python, where `make services` puts some."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which(name) or shutil.which(name, path=beside)
    return found or missing(f"there is no {name} on this machine; 'make services' brings it")
