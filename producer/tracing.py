"""A span around each submit, where the application traces."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from contract import tracing
from contract.errors import PrefillqError
from contract.ids import TemplateAddress

if TYPE_CHECKING:
    from opentelemetry.trace import Span


@contextmanager
def sending(address: TemplateAddress, job_ids: list[str]) -> Iterator[str]:
    """Around one submit: its span, by the application's own tracer provider.

    Gives the traceparent for the jobs' records, "" when nothing is traced. An application that
    traces has imported OpenTelemetry before it submits; any other is spared the import.
    """
    if "opentelemetry.trace" not in sys.modules:
        yield ""
        return
    from opentelemetry.trace import SpanKind, StatusCode, get_tracer

    attributes: dict[str, Any] = {
        tracing.MESSAGING_SYSTEM: "prefillq",
        tracing.MESSAGING_OPERATION: "send",
        tracing.MESSAGING_OPERATION_TYPE: "send",
        tracing.DESTINATION: f"{address.tenant}/{address.name}",
        tracing.TENANT: address.tenant,
    }
    if len(job_ids) == 1:
        attributes[tracing.MESSAGE_ID] = job_ids[0]
    else:
        attributes[tracing.MESSAGE_COUNT] = len(job_ids)
    with get_tracer(tracing.TRACER).start_as_current_span(
        f"send {address.tenant}/{address.name}",
        kind=SpanKind.PRODUCER,
        attributes=attributes,
        # Not the library's own: an exception's text and traceback are not for a span.
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield _traceparent(span)
        except Exception as error:
            code = error.code if isinstance(error, PrefillqError) else type(error).__name__
            span.set_attribute(tracing.ERROR_TYPE, code)
            span.set_status(StatusCode.ERROR)
            raise


def _traceparent(span: Span) -> str:
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return tracing.format_traceparent(context.trace_id, context.span_id, context.trace_flags)
