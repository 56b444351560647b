"""Which code computes here: what was proven or stored by other code is not trusted."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from worker.engine.native.build import kernels_digest


@cache
def code_digest() -> str:
    """Hex digest of the engines' own sources, and of what their kernels are compiled to here."""
    digest = hashlib.sha256(kernels_digest().encode())
    here = Path(__file__).parent
    for path in sorted(here.rglob("*")):
        if path.suffix in (".py", ".cpp", ".h"):
            digest.update(path.relative_to(here).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
