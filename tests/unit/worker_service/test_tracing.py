"""The spans of an attempt: which there are, whose children, from when to when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import (
    error_attributes,
    gen_ai_attributes,
    messaging_attributes,
)
from opentelemetry.trace import SpanKind, StatusCode

from contract import tracing as names
from worker.engine.base import NonFiniteLogits
from worker.engine.fake import FakeEngine
from worker.tracing import JobTraces

NOW = 2_000_000.0
SENDER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traces(exporter: InMemorySpanExporter) -> JobTraces:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return JobTraces(provider, clock=lambda: NOW)


def _by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def _parent(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def _id(span: ReadableSpan) -> str:
    return f"{span.context.span_id:016x}"


def _attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return dict(span.attributes or {})


def test_an_attempt_is_a_tree_in_the_trace_of_its_sender(
    make_stack: Any, traces: JobTraces, exporter: InMemorySpanExporter
) -> None:
    """All in the sender's trace; the model's spans inside the attempt's."""
    stack = make_stack(watcher=traces)
    result = stack.runner.run(stack.submit("hello", traceparent=SENDER))
    spans = _by_name(exporter)
    assert set(spans) == {
        "queue",
        "process acme/notes",
        "chat tiny",
        "prefill suffix",
        "decode",
        "commit",
    }
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {SENDER[3:35]}
    process, chat = spans["process acme/notes"], spans["chat tiny"]
    assert _parent(spans["queue"]) == _parent(process) == SENDER[36:52]
    assert _parent(chat) == _parent(spans["commit"]) == _id(process)
    for name in ("prefill suffix", "decode"):
        assert _parent(spans[name]) == _id(chat)
    assert process.kind is SpanKind.CONSUMER
    assert _attributes(process)[names.MESSAGE_ID] == result.job_id
    assert _attributes(chat)[names.INPUT_TOKENS] == result.usage.prompt_tokens
    assert _attributes(chat)[names.CACHED_TOKENS] == result.usage.cached_tokens
    assert _attributes(chat)[names.FINISH_REASONS] == (result.finish_reason,)


def test_spans_are_where_the_timings_say(
    make_stack: Any, traces: JobTraces, exporter: InMemorySpanExporter
) -> None:
    """To the microsecond, and each inside its parent."""
    stack = make_stack(watcher=traces)
    seconds = stack.runner.run(stack.submit(traceparent=SENDER)).timings
    spans = _by_name(exporter)
    submitted = NOW - seconds.total_s
    claimed = submitted + seconds.queue_s
    first = submitted + seconds.ttft_s
    expected = {
        "queue": (submitted, claimed),
        "process acme/notes": (claimed, NOW),
        "chat tiny": (claimed, NOW - seconds.commit_s),
        "prefill suffix": (first - seconds.suffix_prefill_s, first),
        "decode": (first, first + seconds.decode_s),
        "commit": (NOW - seconds.commit_s, NOW),
    }
    for name, (start, end) in expected.items():
        span = spans[name]
        assert span.start_time is not None
        assert span.end_time is not None
        assert (span.start_time / 1e9, span.end_time / 1e9) == pytest.approx(
            (start, end), abs=1e-6, rel=0
        ), name


def test_a_prefix_that_was_computed_is_a_span_of_its_own(
    make_stack: Any, traces: JobTraces, exporter: InMemorySpanExporter
) -> None:
    """Right after the job was tokenized; a job that found it warm has none."""
    stack = make_stack()
    job_id = stack.submit()
    job = stack.store.get(job_id).job
    result = stack.runner.run(job_id)
    seconds = replace(result.timings, tokenize_s=0.25, prefill_s=1.5, total_s=4.0, queue_s=1.0)
    traces.attempt_answered(job, replace(result, timings=seconds))
    prefix = _by_name(exporter)["prefill prefix"]
    assert prefix.start_time == pytest.approx((NOW - 4.0 + 1.0 + 0.25) * 1e9)
    assert prefix.end_time == pytest.approx((NOW - 4.0 + 1.0 + 0.25 + 1.5) * 1e9)


def test_each_attempt_of_a_job_has_its_own_spans(
    make_stack: Any, traces: JobTraces, exporter: InMemorySpanExporter
) -> None:
    """Those that failed say why, by the error's code."""

    class Nan(FakeEngine):
        def generate(self, _: Any) -> Any:
            raise NonFiniteLogits("nan")

    stack = make_stack(engine=Nan(), watcher=traces)
    job_id = stack.submit(traceparent=SENDER)
    for _ in range(5):
        stack.runner.run(job_id)
        stack.clock.now += 120
    attempts = [s for s in exporter.get_finished_spans() if s.name == "process acme/notes"]
    assert [_attributes(span)[names.ATTEMPT] for span in attempts] == [1, 2, 3, 4, 5]
    assert {_attributes(span)[names.ERROR_TYPE] for span in attempts} == {"non_finite_logits"}
    assert {span.status.status_code for span in attempts} == {StatusCode.ERROR}


@pytest.mark.parametrize(
    "traceparent",
    ["", "garbage", SENDER[:-1], SENDER.upper(), f"00-{'0' * 32}-b7ad6b7169203331-01"],
    ids=["none", "garbage", "short", "upper", "zeros"],
)
def test_a_job_without_a_sender_begins_a_trace(
    make_stack: Any, traces: JobTraces, exporter: InMemorySpanExporter, traceparent: str
) -> None:
    """Also when its record, which a tenant writes, holds something else there."""
    stack = make_stack(watcher=traces)
    stack.runner.run(stack.submit(traceparent=traceparent))
    spans = _by_name(exporter)
    assert _parent(spans["process acme/notes"]) is None
    assert "queue" not in spans
    assert len({span.context.trace_id for span in spans.values()}) == 1


def test_a_sender_that_is_not_sampled_is_not_traced(
    make_stack: Any, traces: JobTraces, exporter: InMemorySpanExporter
) -> None:
    """The decision is the sender's."""
    stack = make_stack(watcher=traces)
    assert stack.runner.run(stack.submit(traceparent=SENDER[:-2] + "00")) is not None
    assert exporter.get_finished_spans() == ()


def test_no_span_holds_what_a_user_wrote(
    make_stack: Any, traces: JobTraces, exporter: InMemorySpanExporter
) -> None:
    """Neither the variables nor the answer."""
    stack = make_stack(watcher=traces)
    result = stack.runner.run(stack.submit("planted-marker", traceparent=SENDER))
    written = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert "planted-marker" not in written
    assert result.text
    assert result.text not in written


def test_names_are_those_of_the_conventions() -> None:
    """As the library has them, where it has them."""
    theirs = {
        value
        for module in (gen_ai_attributes, messaging_attributes, error_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    ours = {
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and "." in value
    }
    assert {name for name in ours if not name.startswith("prefillq.")} <= theirs
