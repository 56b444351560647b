"""The machine a number was measured on, in one line."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch
import transformers


def describe_machine() -> str:
    """Processor, cores, threads and library versions."""
    return (
        f"{_processor()}, {os.cpu_count()} cores, torch {torch.__version__} on "
        f"{torch.get_num_threads()} threads, transformers {transformers.__version__}, "
        f"Python {platform.python_version()}, {platform.system()}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
