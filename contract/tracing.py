"""Traces across the queue: the names of what spans say, and how a job's record carries its trace.

The names are OpenTelemetry's semantic conventions for generative AI and for messaging, whose status
is "development": they may change, and then they change here. What the conventions have no name for
begins with `prefillq.`. This module needs no OpenTelemetry.
"""

from __future__ import annotations

import re
from typing import Final

TRACER: Final = "prefillq"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"

MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_OPERATION: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
MESSAGE_COUNT: Final = "messaging.batch.message_count"

ERROR_TYPE: Final = "error.type"

TENANT: Final = "prefillq.tenant"
VERSION: Final = "prefillq.template.version"
DIGEST: Final = "prefillq.template.digest"
STATUS: Final = "prefillq.status"
ATTEMPT: Final = "prefillq.attempt"
WORKER: Final = "prefillq.worker"
DEVICE: Final = "prefillq.device"
BATCH_SIZE: Final = "prefillq.batch_size"
CACHE_STATE: Final = "prefillq.cache.state"
CACHE_REASON: Final = "prefillq.cache.reason"

# Version 00 of W3C Trace Context; ids of zeros are none.
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


def format_traceparent(trace_id: int, span_id: int, flags: int) -> str:
    """A span as a record carries it."""
    return f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"


def parse_traceparent(text: str) -> tuple[int, int, int] | None:
    """Trace id, span id and flags; None for what is no traceparent, which a record may hold."""
    match = _TRACEPARENT.fullmatch(text)
    if match is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    return trace_id, span_id, flags
