"""A real Prometheus with what deploy/ ships: its scrape job, its rules, the dashboard's queries."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from local.guard import start_guarded
from tests.support.waiting import until

DEPLOY = Path(__file__).parents[2] / "deploy"
SCRAPES = DEPLOY / "prometheus" / "prometheus.yml"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "prefillq.json"

_LISTENS = re.compile(r'msg="Listening on" address=(127\.0\.0\.1:\d+)')
_DURATION = re.compile(r"\b(\d+)([smhd])\b")
_MILLISECONDS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Sample = tuple[dict[str, str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """One that runs, by its HTTP API."""

    url: str

    def get(self, path: str, **query: str) -> Any:
        """`data` of an answer with the status success; fails with the error of any other."""
        try:
            address = f"{self.url}/api/v1/{path}?{urlencode(query)}"
            with urlopen(address, timeout=10) as answer:  # noqa: S310 - http, on this machine
                body = json.load(answer)
        except HTTPError as error:
            body = json.load(error)
        assert body["status"] == "success", (path, query, body)
        return body["data"]

    def query(self, expression: str) -> list[Sample]:
        """Labels and value of each series now; fails where Prometheus warns of something."""
        data = self.get("query", query=expression)
        return [(one["metric"], float(one["value"][1])) for one in data["result"]]

    def value(self, expression: str) -> float:
        """The one value of an expression; NaN where it has none."""
        found = self.query(expression)
        assert len(found) < 2, (expression, found)
        return found[0][1] if found else float("nan")

    def rules(self) -> list[dict[str, Any]]:
        """All rules as they were last evaluated."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def firing(self) -> dict[str, str]:
        """Names of the alerts that fire, and what the first of each says."""
        alerts = reversed(self.get("alerts")["alerts"])
        return {
            alert["labels"]["alertname"]: alert["annotations"]["summary"]
            for alert in alerts
            if alert["state"] == "firing"
        }


@contextmanager
def prometheus(
    binary: str, folder: Path, targets: Sequence[str], *, every: str = "1s", quicker: int = 1
) -> Iterator[Prometheus]:
    """Scrape `targets` (host:port) as the shipped files say, but `every` so often.

    That is the limit of a scrape's time too. With `quicker` all durations of the rules are divided
    by it.
    """
    (folder / "rules.yml").write_text(yaml.safe_dump(_rules(quicker)), "utf-8")
    (folder / "prometheus.yml").write_text(
        yaml.safe_dump(_scrapes(targets, every, folder / "rules.yml")), "utf-8"
    )
    log = folder / "prometheus.log"
    with log.open("wb") as written:
        process, guard = start_guarded(
            [
                binary,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'series'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:
        found = until(
            lambda: process.poll() is not None or _LISTENS.search(log.read_text("utf-8")),
            what="Prometheus listens",
        )
        assert isinstance(found, re.Match), log.read_text("utf-8")
        until(lambda: "is ready to receive" in log.read_text("utf-8"), what="Prometheus is ready")
        yield Prometheus(url=f"http://{found[1]}")
    finally:
        process.terminate()
        process.wait(20)
        guard.release()


def _scrapes(targets: Sequence[str], every: str, rules: Path) -> dict[str, Any]:
    """prometheus.yml, with the place of its DNS name and of its rules, and the pace, replaced."""
    config: dict[str, Any] = yaml.safe_load(SCRAPES.read_text("utf-8"))
    config["global"] = dict.fromkeys(config["global"], every)
    config["rule_files"] = [str(rules)]
    (job,) = config["scrape_configs"]
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": list(targets)}]
    return config


def _rules(quicker: int) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(RULES.read_text("utf-8"))

    def divided(found: re.Match[str]) -> str:
        return f"{int(found[1]) * _MILLISECONDS[found[2]] // quicker}ms"

    for group in config["groups"]:
        for rule in group["rules"]:
            for key in {"expr", "for"} & set(rule):
                rule[key] = _DURATION.sub(divided, rule[key])
    return config


def panel_queries() -> list[tuple[str, str, str]]:
    """Title, reference and expression of each query of the dashboard, with all values chosen."""
    board = json.loads(DASHBOARD.read_text("utf-8"))
    chosen = {each["name"]: each["allValue"] for each in board["templating"]["list"]}
    found = []
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in chosen.items():
                expression = expression.replace(f"${name}", value)
            found.append((panel["title"], target["refId"], expression))
    return found


def over(window: str, expression: str) -> str:
    """A panel's expression with a window of its own in the place of Grafana's."""
    return expression.replace("$__rate_interval", window)


def in_all(expression: str) -> str:
    """A panel's expression with all that was ever counted in the place of rates."""
    return re.sub(r"rate\(([^()]+)\[\$__rate_interval\]\)", r"\1", expression)
