"""From a producer's span to those of a real worker process, over OTLP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider

from contract.model_folder import ModelFolder
from contract.types import JobState
from local.workers import WorkerProcess
from producer.client import Producer
from templates.registry import Registry
from tests.support.templates import make_spec, publish

Start = Callable[..., WorkerProcess]


class Collector:
    """What an OTLP collector was sent."""

    def __init__(self) -> None:
        self.spans: dict[str, Span] = {}
        self.services: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for group in request.resource_spans:
            self.services |= {
                item.value.string_value
                for item in group.resource.attributes
                if item.key == "service.name"
            }
            for scope in group.scope_spans:
                self.spans |= {span.name: span for span in scope.spans}


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()


def test_a_workers_spans_are_children_of_the_producers(
    monkeypatch: pytest.MonkeyPatch,
    producer: Producer,
    registry: Registry,
    tiny_llama: ModelFolder,
    start_worker: Start,
    collector: Collector,
) -> None:
    """One trace over two processes; what is left is sent when the worker ends."""
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    publish(registry, make_spec("notes"), tiny_llama)
    worker = start_worker("--traces", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    with trace.get_tracer("app").start_as_current_span("request") as request:
        job = producer.submit("acme/notes", {"note": "planted-marker"})
    result = job.result(timeout=60)
    worker.stop()
    trace_id = request.get_span_context().trace_id.to_bytes(16, "big")
    assert {span.trace_id for span in collector.spans.values()} == {trace_id}
    assert {"queue", "process acme/notes", "prefill suffix", "decode", "commit"} <= set(
        collector.spans
    )
    assert collector.services == {"prefillq-worker"}
    chat = next(span for name, span in collector.spans.items() if name.startswith("chat "))
    tokens = {item.key: item.value.int_value for item in chat.attributes}
    assert tokens["gen_ai.usage.input_tokens"] == result.usage.prompt_tokens
    assert "planted-marker" not in str(collector.spans)


def test_a_collector_that_is_away_costs_no_job(
    producer: Producer, registry: Registry, tiny_llama: ModelFolder, start_worker: Start
) -> None:
    """Nor does the worker's end wait for it for long."""
    publish(registry, make_spec("notes"), tiny_llama)
    worker = start_worker("--traces", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    results = [producer.submit("acme/notes", {"note": str(n)}).result(timeout=60) for n in range(5)]
    assert {result.status for result in results} == {JobState.SUCCEEDED}
    assert worker.stop(grace_s=20.0) == 0
