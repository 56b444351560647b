"""Which errors of a computation are the machine's and may pass."""

from __future__ import annotations

import sys
from typing import Literal

from worker.engine.base import EngineBroken


def passing_trouble(error: Exception) -> Literal["out_of_memory", "device_lost"] | None:
    """What the machine did to a computation, if that is what `error` tells of.

    Imports no torch: where none is loaded, no error is torch's. On the CPU torch has no class of
    its own for memory that it could not have.
    """
    if isinstance(error, MemoryError):
        return "out_of_memory"
    if isinstance(error, EngineBroken):
        return "device_lost"
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(error, torch.OutOfMemoryError):
        return "out_of_memory"
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):
        return "out_of_memory"
    return "device_lost" if isinstance(error, torch.AcceleratorError) else None
