"""How long this process has been running."""

from __future__ import annotations

import os
import time
from pathlib import Path

_IMPORTED = time.monotonic()
_STAT = Path("/proc/self/stat")
_STARTED = 19  # of what stands behind the name in /proc/PID/stat: ticks since the system's start


def process_age_s() -> float:
    """Seconds since this process began, to hundredths; without /proc, since this was imported."""
    try:
        ticks = _STAT.read_text("ascii", "replace").rpartition(")")[2].split()
        started_s = int(ticks[_STARTED]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
    except (OSError, AttributeError, ValueError, IndexError):
        return time.monotonic() - _IMPORTED
