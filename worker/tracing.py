"""Spans of each attempt at a job, in the trace of whoever submitted it.

    send acme/triage                     the producer's
    ├── queue                            from submit to this claim
    └── process acme/triage              from the claim to the end of the attempt
        ├── chat smollm2-135m-instruct   what the model did
        │   ├── prefill prefix           when this job had to compute it
        │   ├── prefill suffix           ends with the first token
        │   └── decode
        └── commit

They are made once an attempt has ended, from the timings of its result, so a job costs nothing
while it runs. Without a trace in the record a job begins one of its own. Neither variables nor
answers are in a span.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from contract import tracing as names
from contract.errors import SettingsError
from contract.types import Job, JobState, Result
from worker.watcher import Watcher

try:
    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        SpanKind,
        StatusCode,
        TraceFlags,
        set_span_in_context,
    )
except ImportError as error:
    raise SettingsError(
        "traces need OpenTelemetry, which is not installed",
        given="--traces",
        remedy="pip install 'prefillq[otel]'",
    ) from error

_INSTANCE = "service.instance.id"
_FLUSH_MS = 2000  # at the end, for spans that are not sent yet


def open_traces(worker_id: str) -> JobTraces:
    """Export by OTLP over HTTP, where and how the standard `OTEL_` variables say.

    The exporter has a thread and a bounded queue of its own: a collector that is away costs spans,
    never jobs. Raises SettingsError without the extra `otel`.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    resource = Resource.create({_INSTANCE: worker_id})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "prefillq-worker"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return JobTraces(provider)


class JobTraces(Watcher):
    """Tells a tracer provider of each attempt."""

    def __init__(self, provider: TracerProvider, *, clock: Callable[[], float] = time.time) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(names.TRACER)
        self._clock = clock

    def attempt_answered(self, job: Job, result: Result) -> None:
        seconds = result.timings
        end = self._clock()
        claimed = end - (seconds.total_s - seconds.queue_s)
        submitted = claimed - seconds.queue_s
        sender = _sender(job)
        template = f"{result.ref.tenant}/{result.ref.template}"

        # Without a sender this span would be a trace by itself.
        if sender:
            self._span("queue", submitted, claimed, sender)
        process = self._tracer.start_span(
            f"process {template}",
            sender,
            SpanKind.CONSUMER,
            _of_process(template, job, result),
            start_time=_ns(claimed),
        )
        if result.error is not None:
            process.set_status(StatusCode.ERROR)
        inside = set_span_in_context(process, Context())
        committing = end - seconds.commit_s
        if result.usage.prompt_tokens:
            self._model_spans(result, submitted, claimed, committing, inside)
        if seconds.commit_s:
            self._span("commit", committing, end, inside)
        process.end(_ns(end))

    def _model_spans(
        self, result: Result, submitted: float, start: float, end: float, parent: Context
    ) -> None:
        seconds = result.timings
        chat = self._tracer.start_span(
            f"chat {result.model}", parent, attributes=_of_chat(result), start_time=_ns(start)
        )
        inside = set_span_in_context(chat, Context())
        if seconds.prefill_s:
            tokenized = start + seconds.tokenize_s
            self._span("prefill prefix", tokenized, tokenized + seconds.prefill_s, inside)
        if seconds.ttft_s:
            first = submitted + seconds.ttft_s
            self._span("prefill suffix", first - seconds.suffix_prefill_s, first, inside)
            self._span("decode", first, first + seconds.decode_s, inside)
        chat.end(_ns(end))

    def _span(self, name: str, start: float, end: float, parent: Context) -> None:
        self._tracer.start_span(name, parent, start_time=_ns(start)).end(_ns(end))

    def close(self) -> None:
        """Send what is left, for a bounded time."""
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()


def _sender(job: Job) -> Context:
    """The submit's span as a parent; empty when the record has none that can be read."""
    parsed = names.parse_traceparent(job.traceparent)
    if parsed is None:
        return Context()
    trace_id, span_id, flags = parsed
    remote = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return set_span_in_context(NonRecordingSpan(remote), Context())


def _of_process(template: str, job: Job, result: Result) -> Mapping[str, Any]:
    attributes: dict[str, Any] = {
        names.MESSAGING_SYSTEM: "prefillq",
        names.MESSAGING_OPERATION: "process",
        names.MESSAGING_OPERATION_TYPE: "process",
        names.DESTINATION: template,
        names.MESSAGE_ID: job.id,
        names.TENANT: result.ref.tenant,
        names.VERSION: result.ref.version,
        names.DIGEST: result.ref.digest,
        names.STATUS: str(result.status),
        names.ATTEMPT: result.attempt,
        names.WORKER: result.worker,
    }
    if result.error is not None:
        attributes[names.ERROR_TYPE] = result.error.code
    return attributes


def _of_chat(result: Result) -> Mapping[str, Any]:
    attributes: dict[str, Any] = {
        names.OPERATION: "chat",
        names.PROVIDER: "prefillq",
        names.REQUEST_MODEL: result.model,
        names.RESPONSE_MODEL: result.model,
        names.RESPONSE_ID: result.job_id,
        names.INPUT_TOKENS: result.usage.prompt_tokens,
        names.CACHED_TOKENS: result.usage.cached_tokens,
        names.OUTPUT_TOKENS: result.usage.completion_tokens,
        names.CACHE_STATE: str(result.cache.state),
        names.CACHE_REASON: result.cache.reason,
        names.BATCH_SIZE: result.batch_size,
        names.DEVICE: result.device,
    }
    if result.status is JobState.SUCCEEDED:
        attributes[names.FINISH_REASONS] = [result.finish_reason]
    return attributes


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
