"""The HTTP endpoint: what KEDA reads, and what it is told when there is nothing to read."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest

from contract.errors import Conflict, NotFound, RedisRefused, RedisUnreachable, SettingsError
from contract.load import Sight
from scale.endpoint import Endpoint, Pages
from scale.formula import Goal
from scale.keda import Cluster, scaled_objects
from scale.rows import rows_of
from scale.watching import Seen
from tests.unit.scale.test_agreement import AGREED
from tests.unit.scale.test_rows import NAMED, report

MODEL = AGREED.model


class Looker:
    """Stands for `Watcher`; what it was asked, and what it raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[tuple[list[str], Goal]] = []
        self.error = error

    def look(self, targets: Sequence[str], goal: Goal, **_: float) -> Seen:
        self.asked.append((list(targets), goal))
        if self.error is not None:
            raise self.error
        sight = Sight(now=5.0, loads=(AGREED,), workers=(report(),), unacked=2)
        rows = rows_of(sight, [NAMED], goal)
        return Seen(
            now=sight.now,
            goal=goal,
            rows=rows.templates,
            models=rows.models,
            unacked=2,
            unreadable={},
        )


@contextmanager
def serving(looker: Looker) -> Iterator[tuple[str, int]]:
    pages = Pages(cast(Any, looker), Goal(wait_s=10.0), window_s=60.0)
    endpoint = Endpoint(pages.answer, host="127.0.0.1", port=0)
    thread = threading.Thread(target=endpoint.serve)
    thread.start()
    try:
        yield endpoint.host, endpoint.port
    finally:
        endpoint.close()
        thread.join(10)


def ask(looker: Looker, path: str, method: str = "GET") -> tuple[int, dict[str, Any]]:
    with serving(looker) as (host, port):
        connection = http.client.HTTPConnection(host, port, timeout=10)
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        assert response.getheader("Content-Type") == "application/json"
        return response.status, json.loads(body) if body else {}


def at(body: Any, location: str) -> Any:
    """What GJSON finds at a path of plain names."""
    for name in location.split("."):
        body = body[name]
    return body


def test_keda_finds_its_number() -> None:
    """At the valueLocation that the ScaledObject names, and it is a number."""
    status, body = ask(Looker(), "/templates/acme/notes")
    assert status == 200
    (shown,) = scaled_objects([NAMED], Goal(wait_s=10.0), Cluster(endpoint="http://scale"))
    desired = at(body, shown["spec"]["triggers"][0]["metadata"]["valueLocation"])
    assert type(desired) is int
    assert desired == 1
    assert at(body, f"models.{MODEL}.waiting") == 3


def test_query_sets_the_goal() -> None:
    """Each ScaledObject has its own."""
    looker = Looker()
    status, body = ask(looker, "/templates/acme/notes?target_wait=2m&min=3&max=9")
    assert (status, at(body, f"models.{MODEL}.desired")) == (200, 3)
    assert looker.asked == [(["acme/notes"], Goal(wait_s=120.0, minimum=3, maximum=9))]


@pytest.mark.parametrize(
    ("path", "targets"),
    [
        ("/templates", []),
        ("/templates/", []),
        ("/templates/acme", ["acme"]),
        (f"/models/{MODEL}", []),
        (f"/models/{MODEL}{'0' * 52}", []),
    ],
)
def test_other_pages(path: str, targets: list[str]) -> None:
    """Lists, and a whole model."""
    looker = Looker()
    status, body = ask(looker, path)
    assert status == 200
    assert looker.asked[0][0] == targets
    assert "desired" in (body if "models" in path else body["templates"][0])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", 404),
        ("/templates/acme/notes/1", 404),
        ("/models", 404),
        ("/models/ffffffffffff", 404),
        (f"/models/{MODEL[:4]}", 404),
        ("/metrics", 404),
        ("/templates/acme/notes?target_wait=soon", 400),
        ("/templates/acme/notes?target_wait=0", 400),
        ("/templates/acme/notes?min=5&max=2", 400),
        ("/templates/acme/notes?min=-1", 400),
        ("/templates/acme/notes?max=999999999", 400),
        ("/templates/acme/notes?max=0000000999999999", 400),
        pytest.param("/templates/acme/notes?min=" + "0" * 6000, 400, id="many zeros"),
        ("/templates/acme/notes?replicas=1", 400),
        ("/templates/acme/notes?" + "&".join(f"min={n}" for n in range(40)), 400),
    ],
)
def test_what_cannot_be_answered(path: str, expected: int) -> None:
    """As JSON with a word for the error and what to do; nothing of Redis is asked for a query that
    cannot be answered."""
    looker = Looker()
    status, body = ask(looker, path)
    assert (status, "error" in body, bool(body["remedy"])) == (expected, True, True)
    assert not looker.asked or "/models" in path


def test_url_that_is_none() -> None:
    """As a client other than Python's may send it."""
    status, body = Pages(cast(Any, Looker()), Goal(wait_s=1.0), window_s=60.0).answer("http://[")
    assert (status, body["error"], bool(body["remedy"])) == (400, "invalid_input", True)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RedisUnreachable("Redis cannot be reached"), 503),
        (RedisRefused("Redis refused a command"), 503),
        (NotFound("no such template"), 404),
        (RuntimeError("secret words"), 500),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_trouble_has_a_status(error: Exception, expected: int) -> None:
    """KEDA keeps its replicas for all but 200; the words of a foreign error stay here."""
    status, body = ask(Looker(error), "/templates/acme/notes")
    assert status == expected
    assert "secret" not in json.dumps(body)


def test_health_asks_nothing() -> None:
    """The process answers, wherever Redis is."""
    looker = Looker(RedisUnreachable("away"))
    assert ask(looker, "/healthz") == (200, {"status": "ok"})
    assert looker.asked == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "PATCH"])
def test_only_get_is_answered(method: str) -> None:
    """405 for the others."""
    status, body = ask(Looker(), "/templates/acme/notes", method)
    assert (status, method == "HEAD" or body["remedy"]) == (405, method == "HEAD" or "Use GET.")


def test_many_at_once_are_answered() -> None:
    """Each by a thread of its own."""
    looker = Looker()
    with serving(looker) as (host, port):
        statuses: list[int] = []

        def get() -> None:
            connection = http.client.HTTPConnection(host, port, timeout=10)
            connection.request("GET", "/templates/acme/notes")
            statuses.append(connection.getresponse().status)
            connection.close()

        threads = [threading.Thread(target=get) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert statuses == [200] * 20


def test_port_that_is_taken() -> None:
    """Said at once, with what to do."""
    with serving(Looker()) as (host, port), pytest.raises(Conflict, match="--serve"):
        Endpoint(lambda _: (None, {}), host=host, port=port)  # type: ignore[arg-type,return-value]


def test_address_that_is_not_ours() -> None:
    """192.0.2.1 is nobody's (RFC 5737)."""
    with pytest.raises(SettingsError):
        Endpoint(lambda _: (None, {}), host="192.0.2.1", port=0)  # type: ignore[arg-type,return-value]
