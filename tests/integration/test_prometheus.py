"""A real Prometheus with the shipped job, rules and dashboard, before whole worker processes.

The workers have a fake engine: their jobs last and fail as their texts say.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from contract import keys
from contract.errors import JobFailed
from contract.model_folder import ModelFolder
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import Result
from producer.client import Producer
from templates.registry import Registry
from tests.support.fakes import FakeWorker, StartFake, fake_workers
from tests.support.pretend import pretend_model
from tests.support.programs import program
from tests.support.prometheus import Prometheus, in_all, over, panel_queries, prometheus
from tests.support.templates import make_spec, publish
from tests.support.waiting import until

PANELS = {(title, name): query for title, name, query in panel_queries()}


@pytest.fixture(scope="session")
def model(smollm2: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return pretend_model(tmp_path_factory.mktemp("pretend"), tokenizer_from=smollm2.path)


@pytest.fixture
def start_fake(
    worker_settings: Settings, model: ModelFolder, tmp_path: Path
) -> Iterator[StartFake]:
    with fake_workers(
        worker_settings.model_copy(update={"max_attempts": 1}), model.path, tmp_path
    ) as start:
        yield start


WANTED = {
    "PrefillqQueueGrows",
    "PrefillqJobsFail",
    "PrefillqDeadJobs",
    "PrefillqMessagesRefused",
}


def _target(worker: FakeWorker) -> str:
    return str(worker.wait_ready()["metrics"])


def _ended(producer: Producer, templates: list[str], notes: list[str]) -> list[Result]:
    """One job for each template and note, until all have ended."""
    jobs = [producer.submit(template, {"note": note}) for template in templates for note in notes]
    results = []
    for job in jobs:
        with suppress(JobFailed):
            job.result(timeout=60)
        result = job.view().result
        assert result is not None
        results.append(result)
    return results


def _scraped(there: Prometheus, jobs: int) -> None:
    ended = 'sum(prefillq_attempts_total{end="ended"}) - sum(prefillq_jobs_running)'
    until(lambda: there.value(ended) == jobs, what=f"{jobs} jobs are scraped")


def test_panels_show_what_the_results_say(
    producer: Producer,
    registry: Registry,
    model: ModelFolder,
    start_fake: StartFake,
    tmp_path: Path,
) -> None:
    """Each query of the dashboard and each rule works, and the sums are exactly the results'."""
    binary = program("prometheus")
    templates = ["acme/notes", "globex/letters"]
    publish(registry, make_spec("notes"), model)
    publish(registry, make_spec("letters", tenant="globex"), model)
    worker = start_fake(
        *("--metrics-port", "0", "--metrics-tenant", "--seconds-per-token", "0.02"),
        *("--fail-on", "please fail"),
    )
    with prometheus(binary, tmp_path, [_target(worker)]) as there:
        results = []
        for notes in (["one"], ["two", "three, please fail", "four", "five"]):
            results += _ended(producer, templates, notes)
            _scraped(there, len(results))
        _check_numbers(there, results)
        _check_queries(there, results)
        rules = there.rules()
        assert len(rules) == 9
        assert [rule for rule in rules if rule["health"] != "ok"] == []
        assert there.firing() == {}


def _check_numbers(there: Prometheus, results: list[Result]) -> None:
    """What the panels add up, over all time instead of a window that cuts some off."""

    def total(title: str, name: str = "A") -> float:
        return there.value(in_all(PANELS[title, name]))

    def by(title: str, *labels: str) -> dict[tuple[str, ...], float]:
        found = there.query(in_all(PANELS[title, "A"]))
        return {tuple(series[label] for label in labels): value for series, value in found}

    usage = [result.usage for result in results]
    prompt = sum(each.prompt_tokens for each in usage)
    cached = sum(each.cached_tokens for each in usage)
    assert cached > 0
    assert total("Workers") == 1
    assert total("Waiting") == 0
    assert total("Rows in use") == 0
    assert total("Jobs a second") == len(results) == 10
    assert total("Failed") == pytest.approx(2 / 10)
    assert total("From the cache") == pytest.approx(cached / prompt)
    assert total("Tokens a second", "A") == prompt
    assert total("Tokens a second", "B") == cached
    assert total("Tokens a second", "C") == sum(each.completion_tokens for each in usage)
    assert by("Jobs by status", "status") == {
        (status,): float(count)
        for status, count in Counter(result.status.value for result in results).items()
    } | {("cancelled",): 0.0, ("expired",): 0.0}
    assert by("Jobs by version", "template", "version") == {
        ("letters", "1"): 5,
        ("notes", "1"): 5,
    }
    assert by("Queue length", "tenant", "template") == {
        ("acme", "notes"): 0,
        ("globex", "letters"): 0,
    }
    assert by("Ends of attempts", "end")[("ended",)] == len(results)
    assert by("Engines", "device", "engine") == {("cpu", "scripted"): 1}
    # A bucket's edges are at most 2.5 apart.
    for title, seconds in {
        "From submit to result": [result.timings.total_s for result in results],
        "From submit to first token": [result.timings.ttft_s for result in results],
        "In the queue": [result.timings.queue_s for result in results],
        "Decode": [result.timings.decode_s for result in results],
    }.items():
        median, p95 = by(title, "template"), there.query(in_all(PANELS[title, "B"]))
        assert set(median) == {("notes",), ("letters",)}
        most = max(seconds)
        assert all(0 < value <= 2.5 * most + 0.01 for value in median.values()), title
        assert all(0 < value <= 2.5 * most + 0.01 for _, value in p95), title


def _check_queries(there: Prometheus, results: list[Result]) -> None:
    """As they stand, with Grafana's window: each has numbers, and the variables have values."""
    for (title, name), query in PANELS.items():
        found = there.query(over("1m", query))
        assert found, (title, name)
        assert not any(math.isnan(value) for _, value in found), (title, name, found)
    assert there.value(over("1m", PANELS["Jobs a second", "A"])) > 0
    for label, values in {"template": {"letters", "notes"}, "version": {"1"}}.items():
        names = there.get(f"label/{label}/values", **{"match[]": "prefillq_jobs_total"})
        assert set(names) == values


def test_alerts_fire_for_what_really_happens(
    producer: Producer,
    registry: Registry,
    model: ModelFolder,
    client: Client,
    start_fake: StartFake,
    tmp_path: Path,
) -> None:
    """A queue grows, jobs fail and die, a message is forged, the workers go; 75 times as quick."""
    binary = program("prometheus")
    for name in ("slow", "notes"):
        publish(registry, make_spec(name), model)
    workers = [
        start_fake("--metrics-port", "0", "--batch", "1", "--template", "acme/slow"),
        start_fake(
            *("--metrics-port", "0", "--exclude", "acme/slow"),
            *("--fail-on", "please fail", "--nan-on", "not finite"),
        ),
    ]
    targets = [_target(worker) for worker in workers]
    with prometheus(binary, tmp_path, targets, quicker=75) as there:
        until(lambda: there.value("count(prefillq_queue_length)") == 2, what="both are scraped")
        until(lambda: not there.firing(), what="the workers have been seen")
        producer.submit("acme/notes", {"note": "not finite"})
        client.lpush(keys.messages(keys.queue("acme", "notes", model.model_digest)), b"forged")
        fired: dict[str, str] = {}

        def all_fired() -> bool:
            producer.submit("acme/notes", {"note": "please fail"})
            producer.submit_many("acme/slow", [{"note": "work=5"}] * 10)
            time.sleep(0.3)
            fired.update(there.firing())
            return set(fired) >= WANTED

        until(all_fired, 90, what=f"{WANTED} fire")
        for worker in workers:
            worker.kill()
        until(lambda: "PrefillqNoWorker" in there.firing(), what="nobody answers")
        fired.update(there.firing())
    assert "jobs of slow wait" in fired["PrefillqQueueGrows"]
    assert "% of the jobs of notes fail" in fired["PrefillqJobsFail"]
    assert not [text for text in fired.values() if "{{" in text or "error expanding" in text]
