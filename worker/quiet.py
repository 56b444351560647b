"""Transformers' progress bars, kept back for a while and given back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_bars() -> Iterator[None]:
    """No progress bars of Transformers inside the block; after it, those that were on before."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging  # without type hints
    shown = logging.is_progress_bar_enabled()
    if not shown:
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
