"""Metrics of real worker processes, scraped over HTTP as Prometheus does it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from contract.errors import Conflict
from contract.model_folder import ModelFolder
from contract.types import CacheState, JobState, Result
from local.workers import WorkerProcess
from producer.client import Producer
from templates.registry import Registry
from tests.support.scraped import Scraped
from tests.support.templates import make_spec, publish

Start = Callable[..., WorkerProcess]
PORT = ("--metrics-port", "0")
LONG = {"max_new_tokens": 200}


def _address(worker: WorkerProcess) -> str:
    return str(worker.wait_ready()["metrics"])


def _once(address: str, ready: Callable[[Scraped], bool], *, seconds: float = 30.0) -> Scraped:
    """A page of which `ready` holds: jobs are counted a moment after their results are written."""
    give_up = time.monotonic() + seconds
    while not ready(page := Scraped.over_http(address)):
        assert time.monotonic() < give_up, page.page
        time.sleep(0.1)
    return page


def _ended(page: Scraped, jobs: int) -> bool:
    return page("attempts_total", end="ended") == jobs


def _run(producer: Producer, address: str, count: int) -> list[Result]:
    jobs = [producer.submit(address, {"note": f"note {number}"}) for number in range(count)]
    return [job.result(timeout=60) for job in jobs]


def test_numbers_are_those_of_the_results(
    producer: Producer, registry: Registry, tiny_llama: ModelFolder, start_worker: Start
) -> None:
    """Tokens, counts and seconds of three versions, one of them without a cache, add up exactly."""
    publish(registry, make_spec("notes"), tiny_llama)
    publish(registry, make_spec("notes", rules="Answer. Be brief."), tiny_llama)
    publish(registry, make_spec("letters"), tiny_llama)
    worker = start_worker(*PORT)
    results = [
        *_run(producer, "acme/notes@1", 5),
        *_run(producer, "acme/notes@2", 3),
        *_run(producer, "acme/letters@1", 2),
        producer.submit("acme/letters@1", {"note": "x"}, use_cache=False).result(timeout=60),
    ]
    page = _once(_address(worker), lambda page: _ended(page, len(results)))
    for template, version in (("notes", 1), ("notes", 2), ("letters", 1)):
        here = [r for r in results if (r.ref.template, r.ref.version) == (template, version)]
        labels = {
            "model_name": str(tiny_llama.path),
            "template": template,
            "version": str(version),
        }
        asked = [r for r in here if r.cache.state is not CacheState.OFF]
        assert _numbers(page, labels) == pytest.approx(
            {
                "jobs_total": len(here),
                "prompt_tokens_total": sum(r.usage.prompt_tokens for r in here),
                "generation_tokens_total": sum(r.usage.completion_tokens for r in here),
                "prefix_cache_queries_total": sum(r.usage.prompt_tokens for r in asked),
                "prefix_cache_hits_total": sum(r.usage.cached_tokens for r in here),
                "time_to_first_token_seconds_sum": sum(r.timings.ttft_s for r in here),
                "request_queue_time_seconds_sum": sum(r.timings.queue_s for r in here),
                "request_prefill_time_seconds_sum": sum(
                    r.timings.prefill_s + r.timings.suffix_prefill_s for r in here
                ),
                "request_decode_time_seconds_sum": sum(r.timings.decode_s for r in here),
                # All but the time of the commit, which a result's reader may not see yet.
                "e2e_request_latency_seconds_sum": page(
                    "e2e_request_latency_seconds_sum", **labels
                ),
            },
            rel=1e-9,
        )
        total_s = sum(r.timings.total_s for r in here)
        assert total_s <= page("e2e_request_latency_seconds_sum", **labels) + 1e-6
        assert page("e2e_request_latency_seconds_sum", **labels) < total_s + 0.5 * len(here)
        for name in ("time_to_first_token", "request_decode_time", "e2e_request_latency"):
            assert page(f"{name}_seconds_count", **labels) == len(here)
    assert page("prefix_cache_hits_total") > 0
    assert page("jobs_total", status="succeeded") == len(results)
    assert page("jobs_running") == 0
    assert page("kv_cache_bytes") > 0
    assert page("kv_cache_entries") == 3
    assert page("engine_info", device="cpu", dtype="float32") == 1
    assert "acme" not in page.page.replace(str(tiny_llama.path), "")


def _numbers(page: Scraped, labels: dict[str, str]) -> dict[str, float]:
    names = (
        *("jobs_total", "prompt_tokens_total", "generation_tokens_total"),
        *("prefix_cache_queries_total", "prefix_cache_hits_total"),
        *("time_to_first_token_seconds_sum", "request_queue_time_seconds_sum"),
        *("request_prefill_time_seconds_sum", "request_decode_time_seconds_sum"),
        "e2e_request_latency_seconds_sum",
    )
    return {name: page(name, **labels) for name in names}


def test_two_workers_on_a_host_and_tenants_as_a_label(
    producer: Producer, registry: Registry, tiny_llama: ModelFolder, start_worker: Start
) -> None:
    """Each answers on its own port for its own jobs; a third that wants one of the two ends."""
    for tenant in ("acme", "globex"):
        publish(registry, make_spec("notes", tenant=tenant), tiny_llama)
    first = start_worker(*PORT, "--metrics-tenant", "--template", "acme/*")
    second = start_worker(*PORT, "--metrics-tenant", "--template", "globex/*")
    one, two = _address(first), _address(second)
    assert one != two
    _run(producer, "acme/notes", 3)
    _run(producer, "globex/notes", 2)
    page_one = _once(one, lambda page: _ended(page, 3))
    page_two = _once(two, lambda page: _ended(page, 2))
    assert page_one("jobs_total", tenant="acme", status="succeeded") == 3
    assert page_two("jobs_total", tenant="globex", status="succeeded") == 2
    assert page_one.values_of("tenant") == {"acme"}
    assert page_two.values_of("tenant") == {"globex"}

    started = time.monotonic()
    third = start_worker("--metrics-port", one.rpartition(":")[2], ready=False)
    assert third.process is not None
    assert third.process.wait(60) == 7
    assert time.monotonic() - started < 30
    log = third.log_tail()
    assert "the port for metrics is taken" in log
    assert f"127.0.0.1:{one.rpartition(':')[2]}" in log
    assert "--metrics-port" in log
    assert "Traceback" not in third.log_path.read_text()
    assert Scraped.over_http(one)("jobs_total", status="succeeded") == 3


def test_answers_while_the_engine_computes(
    producer: Producer, registry: Registry, tiny_llama: ModelFolder, start_worker: Start
) -> None:
    """Within a second, with jobs running."""
    publish(registry, make_spec("notes", generation=LONG), tiny_llama)
    worker = start_worker(*PORT, "--batch", "2")
    address = _address(worker)
    jobs = producer.submit_many("acme/notes", [{"note": f"n {n}"} for n in range(24)])
    seconds, running = [], []
    while not all(job.status().ended for job in jobs):
        started = time.monotonic()
        page = Scraped.over_http(address)
        seconds.append(time.monotonic() - started)
        running.append(page("jobs_running"))
        time.sleep(0.05)
    assert max(running) >= 2
    assert max(seconds) < 1.0, max(seconds)
    assert len(seconds) > 3
    assert all(job.result(timeout=5).status is JobState.SUCCEEDED for job in jobs)


def test_a_queue_that_waits_is_seen(
    producer: Producer, registry: Registry, tiny_llama: ModelFolder, start_worker: Start
) -> None:
    """Length of the queue while one long job holds the only row."""
    publish(registry, make_spec("notes", generation={"max_new_tokens": 400}), tiny_llama)
    worker = start_worker(*PORT, "--batch", "1")
    address = _address(worker)
    jobs = producer.submit_many("acme/notes", [{"note": f"n {n}"} for n in range(40)])
    page = _once(address, lambda page: page.has("queue_length") and page("queue_length") > 0)
    assert page("queue_length", template="notes") < 40
    for job in jobs:
        with suppress(Conflict):  # it has ended
            job.cancel()


def test_series_of_a_withdrawn_template_go(
    producer: Producer,
    registry: Registry,
    tiny_llama: ModelFolder,
    start_worker: Start,
    client: Any,
) -> None:
    """Once the worker has noticed that it is not served any more."""
    publish(registry, make_spec("notes"), tiny_llama)
    publish(registry, make_spec("letters"), tiny_llama)
    worker = start_worker(*PORT)
    address = _address(worker)
    _run(producer, "acme/notes", 1)
    _run(producer, "acme/letters", 1)
    _once(address, lambda page: _ended(page, 2))
    client.srem("pq:acme:templates", "letters")
    page = _once(address, lambda page: not page.has("jobs_total", template="letters"))
    assert page("jobs_total", template="notes", status="succeeded") == 1
