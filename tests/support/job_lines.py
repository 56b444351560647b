"""Workers' log lines, made without a worker: the real ones of `log_finished`, and made-up ones."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from contract.logs import configure_logs
from contract.types import Result

# 2026-11-30T02:00:00Z; what `job_line` ends at unless told otherwise.
T0 = 1_796_004_000.0


def logged(results: Iterable[Result]) -> list[bytes]:
    """What a worker writes when these results are committed."""
    from worker.outcome import log_finished

    stream = io.StringIO()
    with _logs_to(stream):
        for result in results:
            log_finished(result)
    return [f"{line}\n".encode() for line in stream.getvalue().splitlines()]


@contextmanager
def _logs_to(stream: io.StringIO) -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    cached = structlog.get_config()
    configure_logs(stream=stream)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        structlog.configure(**cached)


def job_line(*, leave_out: Iterable[str] = (), **fields: Any) -> bytes:
    """A `job_finished` line of a hit that took a second, with these fields instead."""
    line: dict[str, Any] = {
        "job_id": "acme.01a22a2e268cb189d5133bd3190018e1",
        "tenant": "acme",
        "template": "triage",
        "version": 1,
        "digest": "6e96",
        "status": "succeeded",
        "model": "tiny",
        "device": "cpu",
        "worker": "host-1",
        "attempt": 1,
        "cache_state": "hit",
        "cache_reason": "",
        "prompt_tokens": 120,
        "cached_tokens": 100,
        "completion_tokens": 10,
        "batch_size": 4,
        "finish_reason": "stop",
        "error": None,
        "queue_s": 0.1,
        "tokenize_s": 0.01,
        "verify_s": 0.02,
        "prefill_s": 0.0,
        "fork_s": 0.03,
        "suffix_prefill_s": 0.2,
        "ttft_s": 0.4,
        "decode_s": 0.5,
        "commit_s": 0.04,
        "total_s": 1.0,
        "event": "job_finished",
        "level": "info",
        "logger": "worker.outcome",
        "timestamp": "2026-11-30T02:00:00.000000Z",
    }
    line |= fields
    for name in leave_out:
        del line[name]
    return f"{json.dumps(line)}\n".encode()


def at(seconds: float) -> str:
    """The timestamp of so many seconds after 2026-11-30T02:00Z, as structlog writes it."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(T0 + seconds, UTC).isoformat().replace("+00:00", "Z")
