"""Rules, dashboard and compose profile: what they name is there."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from contract import keys
from contract.ids import new_job_id
from contract.types import CacheInfo, CacheState, JobState, Result, VersionRef
from producer.cli import main
from tests.support.programs import program
from tests.support.promql import grouped_labels, matched_labels, metric_names
from tests.support.scraped import Scraped
from worker.cli import start
from worker.metrics.exporter import Exporter

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
RULES_TEST = DEPLOY / "prometheus" / "rules_test.yml"
SCRAPES = DEPLOY / "prometheus" / "prometheus.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "prefillq.json"
# What Prometheus itself makes of a scrape.
OF_PROMETHEUS = {"up"}
TARGET_LABELS = {"instance", "job"}


@pytest.fixture(scope="module")
def page() -> Scraped:
    """A page of a worker with a finished job, with tenants; scraped over HTTP."""
    described: dict[str, Any] = {
        "model_digest": "a" * 64,
        "device": "cpu",
        "dtype": "float32",
        "engine": "reference",
        "admission": {"way": {"mode": "copy", "kernels": None}, "refused": []},
        "batch_size": 1,
        "running": 0,
        "draining": False,
        "refused_messages": {},
        "cache": {"entries": 0, "bytes": 0, "max_bytes": 1, "evictions": {}},
    }
    result = Result(
        job_id=new_job_id("acme"),
        ref=VersionRef(tenant="acme", template="notes", version=1, digest="d" * 64),
        status=JobState.SUCCEEDED,
        cache=CacheInfo(state=CacheState.HIT),
    )
    exporter = Exporter(host="127.0.0.1", port=0, model_name="tiny", by_tenant=True)
    with closing(exporter):
        exporter.follow(lambda: described, lambda: {("acme", "notes"): 1})
        exporter.jobs.job_finished(result)
        return Scraped.over_http(exporter.address)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Where each stands, and the query."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in json.loads(DASHBOARD.read_text("utf-8"))["templating"]["list"]:
        query = variable["query"]["query"]
        metric, _, _ = query.removeprefix("label_values(").partition(",")
        yield variable["name"], metric


QUERIES = list(queries())


def missing(query: str, page: Scraped) -> set[str]:
    """Metrics that a query names and no worker exports."""
    return metric_names(query) - page.names() - OF_PROMETHEUS


def strange_labels(query: str, page: Scraped) -> set[str]:
    """Labels that a query matches or groups by and that none of its metrics has."""
    has: dict[str, set[str]] = {"up": set()}
    for sample in page.samples:
        has.setdefault(sample.name, set()).update(sample.labels)
    wrong = {
        label
        for name, labels in matched_labels(query).items()
        for label in labels - has.get(name, set()) - TARGET_LABELS
    }
    known = set().union(*(has[name] for name in metric_names(query))) | TARGET_LABELS
    return wrong | (grouped_labels(query) - known)


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _ in QUERIES])
def test_every_query_names_what_a_worker_exports(where: str, query: str, page: Scraped) -> None:
    """Metrics by their full names, and labels that these metrics have."""
    assert metric_names(query), where
    assert missing(query, page) == set()
    assert strange_labels(query, page) == set()


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ('sum by (a) (rate(x_total{c="d{e}"}[5m])) / y > 0.5 * z offset 1d', {"x_total", "y", "z"}),
        ('absent(m) or sum(up{job="w"}) == 0', {"m", "up"}),
        ("histogram_quantile(0.95, sum by (le) (rate(h_bucket[$__rate_interval])))", {"h_bucket"}),
        ("max by (t) (q) > on (t) group_left 9 * sum(r) by (t) and s offset 1m", {"q", "r", "s"}),
    ],
)
def test_names_are_read_out_of_queries(query: str, names: set[str]) -> None:
    """Metrics alone: no function, label, keyword, duration or string."""
    assert metric_names(query) == names


def test_a_misspelt_metric_or_label_is_caught(page: Scraped) -> None:
    """The checks above can fail."""
    assert missing("rate(prefillq_job_total[5m])", page) == {"prefillq_job_total"}
    assert missing("prefillq_jobs", page) == {"prefillq_jobs"}
    assert strange_labels('prefillq_jobs_total{state="x"}', page) == {"state"}
    assert strange_labels("sum by (status) (prefillq_queue_length)", page) == {"status"}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_rules_say_what_to_do(rule: dict[str, Any]) -> None:
    """A summary of two sentences at least, one of which asks for something; a severity."""
    summary = rule["annotations"]["summary"]
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert re.search(r"\b(Start|Look|Raise|See|Find|If)\b", summary.partition(". ")[2]), summary
    assert rule["annotations"]["description"]


def test_commands_and_options_that_summaries_name_exist() -> None:
    """Whoever is woken can type them."""
    text = " ".join(text for rule in rules() for text in rule["annotations"].values())
    commands = re.findall(r"'prefillq ([a-z -]+?)(?: --|')", text)
    assert len(commands) > 5
    for words in commands:
        command, ctx = main, click.Context(main, info_name="prefillq", **main.context_settings)
        for word in words.split():
            assert isinstance(command, click.Group), words
            _, found, _ = command.resolve_command(ctx, [word])
            assert found is not None, words
            command, ctx = found, click.Context(found, info_name=word, parent=ctx)
    options = {option for parameter in start.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", text)) <= options


def test_what_the_alerts_watch() -> None:
    """Queue, workers, hit ratio, failures, p95, dead jobs, evictions."""
    names = set().union(*(metric_names(rule["expr"]) for rule in rules()))
    assert names >= {
        "prefillq_queue_length",
        "prefillq_build_info",
        "prefillq_prefix_cache_hits_total",
        "prefillq_jobs_total",
        "prefillq_e2e_request_latency_seconds_bucket",
        "prefillq_jobs_dead_total",
        "prefillq_cache_evictions_total",
    }


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    command = [program("promtool"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_prometheus_takes_the_files() -> None:
    """By its own tool."""
    for words in (("rules", str(RULES)), ("config", "--syntax-only", str(SCRAPES))):
        done = promtool("check", *words)
        assert done.returncode == 0, done.stderr + done.stdout


def test_each_alert_fires_and_stays_quiet() -> None:
    """On the series of deploy/prometheus/rules_test.yml."""
    done = promtool("test", "rules", str(RULES_TEST))
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
@pytest.mark.parametrize("expression", ["vector(0) > 1", "vector(1)"], ids=["never", "always"])
def test_the_series_notice_an_alert_that_is_wrong(
    rule: dict[str, Any], expression: str, tmp_path: Path
) -> None:
    """One that never fires, and one that always does."""
    tests = yaml.safe_load(RULES_TEST.read_text("utf-8"))
    # With its own series alone, which takes a fraction of the time.
    tests["tests"] = [test for test in tests["tests"] if test["name"].startswith(rule["alert"])]
    (tmp_path / RULES_TEST.name).write_text(yaml.safe_dump(tests), "utf-8")

    def noticed(expression: str) -> bool:
        group = {"name": "prefillq", "rules": [rule | {"expr": expression}]}
        (tmp_path / RULES.name).write_text(yaml.safe_dump({"groups": [group]}), "utf-8")
        return promtool("test", "rules", str(tmp_path / RULES_TEST.name)).returncode != 0

    assert not noticed(rule["expr"])
    assert noticed(expression)


def test_panels_do_not_overlap_and_have_a_unit() -> None:
    """24 columns; each panel in its own place, reading from the provisioned source."""
    board = json.loads(DASHBOARD.read_text("utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    source = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text("utf-8")
    )
    (uid,) = [one["uid"] for one in source["datasources"]]
    assert {target["datasource"]["uid"] for panel in panels() for target in panel["targets"]} == {
        uid
    }
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in panels())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def compose_services() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    return dict(services["services"])


def test_the_profile_has_all_of_it_pinned_and_on_loopback() -> None:
    """A release each, never `latest`; open to this machine alone."""
    services = compose_services()
    ours = {n: s for n, s in services.items() if s.get("profiles") == ["observability"]}
    assert set(ours) == {"prometheus", "grafana", "flower", "ui"}
    for name, service in ours.items():
        if name != "ui":  # whose image is built here
            assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        mounted = ("./deploy/", "prometheus:")
        assert all(volume.startswith(mounted) for volume in service.get("volumes", ()))


def test_prometheus_scrapes_the_workers_of_the_compose_file() -> None:
    """By their services' names, at the port that they are started with."""
    services = compose_services()
    (job,) = yaml.safe_load(SCRAPES.read_text("utf-8"))["scrape_configs"]
    (discovery,) = job["dns_sd_configs"]
    assert job["job_name"] == "prefillq"  # the rules match it
    for name in discovery["names"]:
        worker = services[name]
        assert f"--metrics-port {discovery['port']}" in worker["command"][-1]
        assert worker["expose"] == [str(discovery["port"])]
        assert "ports" not in worker
    mounted = [volume.split(":")[:2] for volume in services["prometheus"]["volumes"]]
    assert ["./deploy/prometheus/rules.yml", "/etc/prometheus/rules.yml"] in mounted
    assert yaml.safe_load(SCRAPES.read_text("utf-8"))["rule_files"] == ["/etc/prometheus/rules.yml"]


def test_flower_looks_where_the_queues_are() -> None:
    """Its configuration names the same prefix as `contract.keys`."""
    text = (DEPLOY / "flower" / "celeryconfig.py").read_text("utf-8")
    assert f'"{keys.BROKER_PREFIX}"' in text
