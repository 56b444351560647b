"""Log lines: JSON when nobody looks, readable on a terminal. Talk goes to stderr.

A log holds no prompts. So an exception is logged by its type and where it was raised; its words,
which may quote what the code had in its hands, are logged only at the level debug.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, TextIO

import structlog

from contract.errors import PrefillqError

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

_HIDDEN = "(not shown)"


def configure_logs(
    *, level: str = "INFO", stream: TextIO | None = None, force_json: bool = False
) -> None:
    """Send structlog and the standard library through one renderer.

    Celery's, kombu's and Transformers' records come out in the same shape as ours, so that
    one parser reads a worker's whole output.
    """
    out = sys.stderr if stream is None else stream
    whole = level.upper() == "DEBUG"
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[structlog.typing.Processor]
    if out.isatty() and not force_json:
        # Never the rich traceback: it prints local variables, and those hold what users wrote.
        formatter_of = structlog.dev.plain_traceback if whole else _print_without_words
        renderer = [structlog.dev.ConsoleRenderer(exception_formatter=formatter_of)]
    else:
        renderer = [
            structlog.processors.format_exc_info
            if whole
            else structlog.processors.ExceptionRenderer(without_words),
            structlog.processors.JSONRenderer(),
        ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    if not whole:
        handler.addFilter(_hide_task_words)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def without_words(exc_info: ExcInfo) -> str:
    """A traceback with the exceptions' types and not their words, those of our own errors aside."""
    return "\n".join(_described(exc_info[1], set())).rstrip()


def _described(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _described(before, seen)
        yield "which led to:"
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):"
        yield "".join(traceback.format_tb(error.__traceback__)).rstrip()
    kind = type(error)
    words = f": {error}" if isinstance(error, PrefillqError) else ""
    yield f"{kind.__module__}.{kind.__qualname__}{words}"
    for one in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        if id(one) not in seen:
            yield "in it:"
            yield from _described(one, seen)


def _print_without_words(stream: TextIO, exc_info: ExcInfo) -> None:
    stream.write(f"\n{without_words(exc_info)}")


def _hide_task_words(record: logging.LogRecord) -> bool:
    """Celery's own lines about tasks and messages, without what is in them."""
    if record.name == "celery.app.trace" and isinstance(record.args, dict):
        hidden: dict[str, Any] = dict.fromkeys(("exc", "traceback", "args", "kwargs"), _HIDDEN)
        record.args = {**record.args, **hidden}
    elif (
        record.name.startswith("celery.worker.")
        and isinstance(record.args, tuple)
        and "body" in str(record.msg)
    ):
        record.args = (_HIDDEN,) * len(record.args)
    return True


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose every call gives `action=` style events: a verb phrase and fields."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger
