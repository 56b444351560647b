"""A submit's span, and the traceparent that its records carry."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from contract import tracing as names
from contract.errors import Conflict
from contract.ids import TemplateAddress
from contract.tracing import format_traceparent, parse_traceparent
from producer.tracing import sending

ADDRESS = TemplateAddress(tenant="acme", name="triage")


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


def test_the_record_carries_the_span_of_the_submit(exporter: InMemorySpanExporter) -> None:
    """Inside the caller's own span."""
    with (
        trace.get_tracer("app").start_as_current_span("request") as request,
        sending(ADDRESS, ["acme.1"]) as traceparent,
    ):
        pass
    [span] = [span for span in exporter.get_finished_spans() if span.name == "send acme/triage"]
    parsed = parse_traceparent(traceparent)
    assert parsed == (span.context.trace_id, span.context.span_id, span.context.trace_flags)
    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id
    assert (span.attributes or {})[names.MESSAGE_ID] == "acme.1"


def test_a_batch_is_one_span(exporter: InMemorySpanExporter) -> None:
    """With their number instead of their ids."""
    with sending(ADDRESS, ["acme.1", "acme.2"]):
        pass
    [span] = exporter.get_finished_spans()
    assert (span.attributes or {})[names.MESSAGE_COUNT] == 2


def test_a_failed_submit_says_why_and_nothing_more(exporter: InMemorySpanExporter) -> None:
    """The error's code; its text is not for a span."""
    with pytest.raises(Conflict), sending(ADDRESS, ["acme.1"]):
        raise Conflict("planted")
    [span] = exporter.get_finished_spans()
    assert (span.attributes or {})[names.ERROR_TYPE] == "conflict"
    assert "planted" not in span.to_json()


def test_without_a_provider_nothing_is_carried() -> None:
    """OpenTelemetry is there, but the application does not trace."""
    with sending(ADDRESS, ["acme.1"]) as traceparent:
        assert traceparent == ""


def test_an_application_that_does_not_trace_is_spared_the_import() -> None:
    """Of a library that it may have by chance."""
    code = (
        "import sys; from contract.ids import TemplateAddress; import producer; "
        "from producer.tracing import sending\n"
        "with sending(TemplateAddress(tenant='acme', name='triage'), ['acme.1']) as t:\n"
        "    assert t == ''\n"
        "assert not [m for m in sys.modules if m.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("ids", [(1, 1, 0), (2**128 - 1, 2**64 - 1, 255)], ids=["least", "most"])
def test_what_is_written_is_read(ids: tuple[int, int, int]) -> None:
    """The W3C's form."""
    assert parse_traceparent(format_traceparent(*ids)) == ids
