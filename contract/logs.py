"""Log lines: JSON when nobody looks, readable on a terminal. Talk goes to stderr."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog


def configure_logs(
    *, level: str = "INFO", stream: TextIO | None = None, force_json: bool = False
) -> None:
    """Send structlog and the standard library through one renderer.

    Celery's, kombu's and Transformers' records come out in the same shape as ours, so that
    one parser reads a worker's whole output.
    """
    out = sys.stderr if stream is None else stream
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[structlog.typing.Processor]
    if out.isatty() and not force_json:
        # Plain: the rich traceback prints local variables, and those hold what users wrote.
        plain = structlog.dev.plain_traceback
        renderer = [structlog.dev.ConsoleRenderer(exception_formatter=plain)]
    else:
        renderer = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose every call gives `action=` style events: a verb phrase and fields."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger
