"""The page on a real Redis: what it shows, what it leaves alone, and who may be shown what."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from contract import keys
from contract.codec import pack
from contract.redis_client import Client, connect
from contract.settings import Settings
from contract.types import JobError
from contract.users import WORKER, RedisUser, Role
from contract.worker_reports import REVISION
from local.redis_server import EmbeddedRedis
from producer.client import Producer
from templates.reading import RegistryReader
from templates.rollouts.plain import MAX_TEXT_BYTES
from tests.support.answering import Answering
from tests.support.logins import refusals
from tests.support.page_data import TEMPLATES, PageData, worker_report
from tests.support.page_server import page_app, page_server, reader_of
from tests.support.published import COMPILED, MODEL, make_spec
from tests.support.two_tenants import ACME, GLOBEX, TwoTenants, two_tenants
from tests.support.waiting import until
from ui import reader, values
from ui.guard import HEADERS
from ui.live import MAX_STREAMS, Streams
from ui.look import MAX_ROLLOUTS
from ui.words import NONE

PLACES = ("/", "/queues", "/workers", "/jobs", "/rollouts", "/tenants")
NAMES = ("acme/reply-draft", "globex/product-tagger")
PLANTED = "<script>secret of acme's customer</script>"
WAIT_S = 0.05  # so that nearly each look is a new one


@pytest.fixture
def data(client: Client, settings: Settings) -> PageData:
    return PageData(client, settings)


@pytest.fixture
def page(worker_settings: Settings) -> Iterator[TestClient]:
    with page_app(worker_settings, interval_s=WAIT_S) as app:
        yield TestClient(app)


def _get(page: TestClient, path: str, status: int = 200) -> str:
    answer = page.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


def test_an_empty_redis(page: TestClient, client: Client) -> None:
    """Each page says what there is none of, and what to do."""
    client.delete(keys.TENANTS)
    for place in PLACES:
        assert 'class="empty"' in _get(page, place), place
    assert "prefillq templates publish" in _get(page, "/")
    assert "prefillq worker start" in _get(page, "/workers")


def test_what_is_there(page: TestClient, data: PageData, settings: Settings) -> None:
    """Queues with their lengths, workers with their prefixes, jobs in every state, rollouts."""
    data.publish()
    _get(page, "/")  # from here on it hears of ended jobs
    jobs = data.live_after_publish()
    overview = _get(page, "/")
    assert "<strong>148</strong> waiting" in overview
    assert "<strong>26</strong> running" in overview
    assert "<strong>1</strong> dead" in overview
    assert "23 waiting in acme/support-triage" in _get(page, "/queues")
    workers = _get(page, "/workers")
    assert "gpu-01-4021-9f3c" in workers
    assert "1,480" in workers  # tokens of a prefix
    assert "212 MiB" in workers
    listed = _get(page, "/jobs")
    for name in ("running", "dead"):
        assert jobs[name] in listed, name
    assert "23 <" in _get(page, "/tenants")
    rollout = _get(page, "/templates/acme/support-triage")
    for words in ("Version", "50 % on 3", "inconclusive", "shorter answers", "mira@acme"):
        assert words in rollout, words
    assert "failures" in rollout


def test_only_so_many_prefixes_are_listed(page: TestClient, client: Client) -> None:
    """Workers may hold thousands, and each browser is sent its page every two seconds."""
    for worker_id in ("w1", "w2"):
        report = worker_report(worker_id)
        version = report["versions"][0]
        parts: dict[Any, Any] = {
            f"acme/t{n:04}": pack(
                {
                    "served": True,
                    "versions": [{**version, "version": f"acme/t{n:04}@1", "cached": n >= 600}],
                }
            )
            for n in range(1200)
        }
        client.set(keys.worker(worker_id), pack(report))
        client.hset(keys.worker_templates(worker_id), mapping={REVISION: 1, **parts})
        client.zadd(keys.WORKERS, {worker_id: 1})
    shown = _get(page, "/workers")
    assert shown.count('data-key="acme/t') == 1000
    assert shown.count("500 of 1,200, those in memory first") == 2
    assert "acme/t0600@1" in shown
    assert "acme/t0599@1" not in shown
    assert len(shown) < 500_000


def test_filters_of_jobs(page: TestClient, data: PageData) -> None:
    """By tenant, template and state; what is no such thing shows nothing and breaks nothing."""
    data.publish()
    [acme] = data.submit("acme/support-triage")
    [globex] = data.submit("globex/product-tagger")
    data.claim([globex])
    assert acme in _get(page, "/jobs")
    assert acme not in _get(page, "/jobs?tenant=globex")
    assert globex in _get(page, "/jobs?tenant=globex&template=product-tagger&state=running")
    assert globex not in _get(page, "/jobs?state=waiting")
    for query in ("tenant=%3Cscript%3E", "state=x", "template=%00", "tenant=" + "x" * 1000):
        assert globex not in _get(page, f"/jobs?{query}")


def test_only_so_many_records_are_read(
    page: TestClient, data: PageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared evenly between tenants; where not all were read, how many run is not made up."""
    monkeypatch.setattr(values, "MAX_ROWS", 6)
    data.publish()
    many = data.claim(data.submit("acme/reply-draft", 5))
    few = data.claim(data.submit("globex/product-tagger", 2))
    listed = _get(page, "/jobs?state=running")
    assert sum(job.id in listed for job in many) == 3
    assert sum(job.id in listed for job in few) == 2
    queues = _get(page, "/queues")
    rows = {name: queues.split(f'data-key="{name}"')[1].split("</tr>")[0] for name in NAMES}
    assert f'<td class="number">{NONE}</td>' in rows["acme/reply-draft"]
    assert '<td class="number">2</td>' in rows["globex/product-tagger"]
    assert "<strong>7</strong> running" in _get(page, "/")


def test_only_so_many_pages_are_live(settings: Settings) -> None:
    """One more is told so, and gets its page without updates."""
    streams = Streams()
    streams.open = MAX_STREAMS
    with page_app(settings, streams=streams) as app:
        assert "Too many" in _get(TestClient(app), "/live/", 503)
        _get(TestClient(app), "/")


def test_ended_jobs_are_heard_of(page: TestClient, data: PageData) -> None:
    """Redis has no list of them; the page knows those that ended while it listened."""
    data.publish()
    _get(page, "/jobs")

    def one_more() -> bool:
        [job] = data.claim(data.submit("acme/reply-draft"))
        data.finish(job)
        return job.id in _get(page, "/jobs?state=ended")

    until(one_more, what="an ended job is listed")


def test_a_job(page: TestClient, data: PageData) -> None:
    """Waiting, running, ended, failed; with the stages of its time."""
    data.publish()
    [job_id] = data.submit("acme/support-triage")
    assert 'badge queued">' in _get(page, f"/jobs/{job_id}")
    [job] = data.claim([job_id], "gpu-02")
    running = until(lambda: _with(_get(page, f"/jobs/{job_id}"), 'badge running">'))
    assert "gpu-02" in running
    error = JobError(code="broken", message="it broke", remedy="Mend it.")
    data.finish(job, hit=False, error=error)
    failed = until(lambda: _with(_get(page, f"/jobs/{job_id}"), 'badge failed">'))
    for words in ("it broke", "Mend it.", "Prefix prefill", "Decode", "698", "cold"):
        assert words in failed, words
    assert failed.count('<rect class="stage') >= 6


def _with(html: str, words: str) -> str:
    return html if words in html else ""


def test_a_job_of_a_worker(producer: Producer, data: PageData, settings: Settings) -> None:
    """From submit to the page, with whatever a worker writes."""
    data.publish({"acme": {"triage": 1}})
    with Answering(settings), page_app(settings, interval_s=WAIT_S) as app:
        job = producer.submit("acme/triage", {"ticket": "x"})
        job.result(timeout=20)
        assert "succeeded" in _get(TestClient(app), f"/jobs/{job.id}")


def test_what_is_not_there(page: TestClient, data: PageData) -> None:
    """404, with a way back; no path leads elsewhere."""
    data.publish()
    for path in (
        "/nothing",
        "/jobs/acme." + "0" * 32,
        "/jobs/nothing",
        "/templates/acme/nothing",
        "/templates/ACME/x",
        "/static/nothing.js",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/find?id=nothing",
        "/find?id=//evil.example/",
    ):
        assert "Not found" in _get(page, path, 404), path


@pytest.mark.parametrize("path", ["/", "/jobs/", "/templates/acme/", "/jobs?tenant=", "/find?id="])
@pytest.mark.parametrize("quoted", [True, False], ids=["quoted", "raw"])
def test_an_address_is_no_markup(settings: Settings, path: str, quoted: bool) -> None:
    """As a browser sends it, and as only an attacker's own program does."""
    script = '"><script>alert(1)</script>'
    with page_server(settings) as address:
        connection = HTTPConnection(address.removeprefix("http://"), timeout=30)
        connection.request("GET", path + (quote(script, safe="") if quoted else script))
        html = connection.getresponse().read().decode()
        connection.close()
    assert "</html>" in html
    assert "<script>alert" not in html


def test_find_leads_to_a_job(page: TestClient) -> None:
    """And to nothing else."""
    job_id = "acme." + "0" * 32
    answer = page.get(f"/find?id=%20{job_id}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job_id}")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_other_methods(page: TestClient, method: str) -> None:
    """Nothing here can be changed."""
    for path in (
        *PLACES,
        "/jobs/acme." + "0" * 32,
        "/live/",
        "/live/jobs",
        "/static/ui.js",
        "/find",
    ):
        answer = page.request(method, path)
        assert answer.status_code == 405, path
        assert answer.headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]


def test_headers(page: TestClient) -> None:
    """On every answer, whatever it is; and HEAD gives no body."""
    for path in ("/", "/nothing", "/static/ui.css", "/jobs/x"):
        answer = page.head(path)
        assert answer.content == b""
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, (path, name)


def test_another_name_is_refused(page: TestClient) -> None:
    """What a browser sends whose name for us was made by an attacker."""
    answer = page.get("/", headers={"Host": "evil.example"})
    assert answer.status_code == 421
    assert "Overview" not in answer.text
    assert "Content-Security-Policy" in answer.headers


def _everything(client: Any) -> dict[bytes, Any]:
    readers = {
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"stream": client.xrange,
        b"string": client.get,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    # What is left of a tenant's rate expires by itself.
    found = [key for key in client.scan_iter() if not key.endswith(b":rate")]
    return {key: readers[client.type(key)](key) for key in found}


@pytest.mark.unrestricted("it is the operator who counts commands")
def test_nothing_is_written(settings: Settings, client: Client, data: PageData) -> None:
    """Every page with everything on it: reading commands alone, and what they read is as before."""
    data.publish()
    jobs = data.live_after_publish()
    before = _everything(client)
    client.config_resetstat()
    with page_app(settings, show_text=True, interval_s=WAIT_S) as app:
        page = TestClient(app)
        for path in (
            *PLACES,
            *(f"/jobs/{job_id}" for job_id in jobs.values()),
            "/templates/acme/support-triage",
        ):
            _get(page, path)
        used: Any = client.info("commandstats")
    assert _everything(client) == before
    reads = {"time", "smembers", "zcard", "zcount", "zrange", "hmget", "hgetall", "get", "mget"}
    more = {"hget", "hkeys", "hstrlen", "getrange", "xrevrange", "subscribe"}
    script = {"evalsha", "script|exists", "script|load"}
    of_connections = {"select", "hello", "ping", "client|setinfo", "client|setname"}
    its_own = {"info", "config|resetstat"}
    named = {name.removeprefix("cmdstat_") for name in used}
    assert named <= reads | more | script | {"multi", "exec"} | of_connections | its_own


def test_text_only_on_request(settings: Settings, data: PageData) -> None:
    """Variables and answers are on a job's page with --show-text, and nowhere else."""
    data.publish()
    [job] = data.claim(data.submit("acme/reply-draft", text=PLANTED))
    data.finish(job, text=PLANTED)
    shown = PLANTED.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;")
    paths = (*PLACES, f"/jobs/{job.id}", "/templates/acme/reply-draft")
    with page_app(settings) as app:
        for path in paths:
            assert "secret of" not in _get(TestClient(app), path), path
    with page_app(settings, show_text=True) as app:
        html = {path: _get(TestClient(app), path) for path in paths}
    assert html.pop(f"/jobs/{job.id}").count(shown) == 2
    assert "secret of" not in "".join(html.values())


def test_one_tenant(settings: Settings, data: PageData, client: Any) -> None:
    """With --tenant no other is to be seen: not in lists, by its job's id, or in a worker."""
    data.publish({**TEMPLATES, "evil": {"triage": 1}})
    data.report_workers()
    [job_id] = data.submit("globex/product-tagger")
    # Its own producers may write what they like into its indexes.
    [planted] = data.submit("evil/triage")
    client.zadd(keys.waiting("acme", "reply-draft"), {planted: 0})
    with page_app(settings, tenants=["acme"]) as app:
        page = TestClient(app)
        for place in PLACES:
            html = _get(page, place)
            assert "globex" not in html, place
            assert "evil" not in html, place
        assert "gpu-01" in _get(page, "/workers")
        _get(page, f"/jobs/{job_id}", 404)
        _get(page, "/templates/globex/product-tagger", 404)


def test_damage_is_passed_over(page: TestClient, data: PageData, client: Any) -> None:
    """What a tenant's users may write by hand hides nothing but itself."""
    data.publish()
    good, bad, worse = data.submit("acme/reply-draft", 3)
    client.hset(keys.job(bad), "attempt", "<script>")
    client.hset(keys.job(worse), "created_at", "9e99")
    for index in (keys.waiting("acme", "reply-draft"), keys.running("acme"), keys.dead("acme")):
        strange = ("<script>alert(1)</script>", "globex." + "0" * 32, "acme.0", b"\xff")
        client.zadd(index, dict.fromkeys(strange, 0))
    client.sadd(keys.templates("acme"), "<script>", b"\xff")
    client.set(keys.rollout("acme", "reply-draft"), "{")
    client.sadd(keys.rollouts("acme"), "reply-draft")
    client.delete(keys.limits("acme"))
    client.set(keys.limits("acme"), "x")
    client.hset(keys.limits("globex"), "rate", "soon")
    client.set(keys.worker("w1"), pack({"id": "<script>", "model": 1}))
    client.set(keys.worker("w2"), b"\xff")
    client.zadd(keys.WORKERS, {"w1": 9e9, "w2": 9e9})
    html = {place: _get(page, place) for place in PLACES}
    assert all(text.count("<script") == 1 for text in html.values())
    assert good in html["/jobs"]
    assert bad not in html["/jobs"]
    assert worse in html["/jobs"]
    assert "/jobs/globex." not in html["/jobs"]
    _get(page, f"/jobs/{worse}")
    assert "damaged" in _get(page, f"/jobs/{bad}", 500)
    _get(page, "/templates/acme/reply-draft")


def test_a_long_field_is_not_read(
    page: TestClient, producer_settings: Settings, data: PageData, client: Any
) -> None:
    """Whichever it is: its job is left out, and the others are shown."""
    data.publish()
    good, other_type, *bad = data.submit("acme/reply-draft", 2 + len(reader._FIELDS))
    client.delete(keys.job(other_type))
    client.set(keys.job(other_type), "x")
    for job_id, field in zip(bad, reader._FIELDS, strict=True):
        client.hset(keys.job(job_id), field, "x" * 201)
    with reader_of(producer_settings) as looking:
        replies = looking._records([good, other_type, *bad])
    assert replies[1:] == [None, *(field.encode() for field in reader._FIELDS)]
    listed = _get(page, "/jobs")
    assert good in listed
    assert not any(job_id in listed for job_id in (other_type, *bad))
    for job_id in bad:
        assert "too long to show" in _get(page, f"/jobs/{job_id}", 500)


@pytest.mark.parametrize("field", ["input", "result"])
def test_a_text_that_no_page_can_hold_is_not_read(
    settings: Settings, data: PageData, client: Any, field: str
) -> None:
    """A tenant's users may write it by hand; the page of its job says so."""
    data.publish()
    [job_id] = data.submit("acme/reply-draft")
    client.hset(keys.job(job_id), field, b"x" * (reader._LONGEST_TEXT + 1))
    with page_app(settings, show_text=True) as app:
        assert "too long to show" in _get(TestClient(app), f"/jobs/{job_id}", 500)


def test_a_rollout_of_any_length_is_not_read(
    page: TestClient, settings: Settings, data: PageData, client: Any
) -> None:
    """A tenant's admin may write it by hand: it is left out, and its own page says so."""
    data.publish()
    client.set(keys.rollout("acme", "reply-draft"), b"{" + b" " * 20_000_000)
    client.sadd(keys.rollouts("acme"), "reply-draft")
    with reader_of(settings) as looking:
        replies: list[Any] = []
        ask = looking._replies
        looking._replies = lambda commands: replies.extend(found := ask(commands)) or found  # type: ignore[func-returns-value,method-assign]
        looking.look()
        sights: list[Any] = []
        see = looking._registry.sight
        looking._registry.sight = lambda *a, **k: sights.append(found := see(*a, **k)) or found  # type: ignore[func-returns-value,method-assign]
        looking.template("acme", "reply-draft")
    assert max(len(reply) for reply in replies if isinstance(reply, bytes)) == MAX_TEXT_BYTES + 1
    _get(page, "/rollouts")
    [sight] = sights
    assert len(sight.rollout_text) == MAX_TEXT_BYTES + 1
    assert sight.damage is not None
    assert f"over {MAX_TEXT_BYTES} bytes" in _get(page, "/templates/acme/reply-draft")


def test_more_rollouts_than_a_page_holds(
    page: TestClient, settings: Settings, data: PageData, client: Any
) -> None:
    """Each tenant has its share, and what is left out is said."""
    data.publish()
    many, share = MAX_ROLLOUTS + 7, MAX_ROLLOUTS // 2
    client.sadd(keys.rollouts("acme"), *(f"made-up-{n}" for n in range(many)))
    client.sadd(keys.rollouts("globex"), "product-tagger")
    asked: list[Any] = []
    with reader_of(settings) as looking:
        read = looking._rollouts
        looking._rollouts = lambda names: asked.extend(names) or read(names)  # type: ignore[func-returns-value,method-assign]
        look = looking.look()
    assert look.left_out == (f"{many - share} rollouts",)
    assert len(asked) == share + 1
    assert ("globex", "product-tagger") in asked
    for path in ("/", "/rollouts"):
        assert f"Left out: {many - share} rollouts." in _get(page, path)


def test_a_journal_of_any_length_is_read_in_part(
    page: TestClient, settings: Settings, data: PageData, client: Any
) -> None:
    """The newest entries until they have some megabytes; those that can be read are shown."""
    data.publish()
    key = keys.journal("acme", "reply-draft")
    whole = RegistryReader(client, settings).history("acme", "reply-draft", 30)
    assert whole
    for _ in range(12):
        client.xadd(key, {"why": b"x" * 2_000_000})
    sent = []
    read = client.xrevrange
    client.xrevrange = lambda *a, **k: sent.extend(found := read(*a, **k)) or found
    reading = RegistryReader(client, settings)
    assert reading.history("acme", "reply-draft", 30, most_bytes=4_000_000) == []
    assert len(sent) == 5
    assert reading.history("acme", "reply-draft", 30, most_bytes=40_000_000) == whole
    _get(page, "/templates/acme/reply-draft")


def test_redis_away_and_back(tmp_path: Any) -> None:
    """It is said, with what was seen last; and it is over by itself."""
    with EmbeddedRedis() as server:
        settings = Settings(redis_url=server.url, cache_dir=tmp_path, redis_timeout_s=0.5)
        with connect(settings) as client, page_app(settings, interval_s=WAIT_S) as app:
            data, page = PageData(client, settings), TestClient(app)
            data.publish()
            assert "support-triage" in _get(page, "/queues")
            server.kill()
            away = until(lambda: _with(_get(page, "/queues"), "Redis does not answer"))
            assert "support-triage" in away
            assert server.url.rsplit("/", 1)[0].removeprefix("redis://") in away
            assert page.get("/jobs/acme." + "0" * 32).status_code == 503
            server.start()
            data.publish({"acme": {"after": 1}})
            back = until(lambda: _with(_get(page, "/queues"), "after"))
            assert "Redis does not answer" not in back

            def heard() -> bool:
                [job] = data.claim(data.submit("acme/after"))
                data.finish(job)
                return job.id in _get(page, "/jobs?state=ended")

            until(heard, what="notices come again")


def test_redis_away_from_the_start() -> None:
    """A page all the same."""
    settings = Settings(redis_url="redis://127.0.0.1:1/0", redis_timeout_s=0.2)
    with page_app(settings) as app:
        html = _get(TestClient(app), "/", 503)
    assert "Redis does not answer" in html
    assert 'href="/queues"' in html


@pytest.fixture(scope="module")
def tenants() -> Iterator[TwoTenants]:
    with two_tenants() as made:
        PageData(made.operator, made.settings).report_workers()
        yield made


@pytest.mark.parametrize(
    ("user", "sees"),
    [
        (WORKER, {"acme", "globex", "workers", "jobs"}),
        (ACME[Role.ADMIN], {"acme"}),
        (GLOBEX[Role.PRODUCER], {"globex", "jobs"}),
    ],
    ids=["worker", "admin", "producer"],
)
def test_restricted_users(tenants: TwoTenants, user: RedisUser, sees: set[str]) -> None:
    """Each sees what it may, and nothing is even tried that Redis would refuse it."""
    refusals(tenants.operator)
    with page_app(tenants.settings_of(user), show_text=True, interval_s=WAIT_S) as app:
        page = TestClient(app)
        html = "".join(_get(page, place) for place in PLACES)
        for tenant in ("acme", "globex"):
            mine = tenant in sees
            assert (f"/templates/{tenant}/triage" in html) is mine
            _get(page, f"/templates/{tenant}/triage", 200 if mine else 404)
            seen = mine and "jobs" in sees
            assert (f"/jobs/{tenants.jobs[tenant]}" in html) is seen
            job = _get(page, f"/jobs/{tenants.jobs[tenant]}", 200 if seen else 404)
            assert ("refund?" in job) is seen
        assert ("gpu-01" in html) is ("workers" in sees)
        assert ("may not read workers" in html) is ("workers" not in sees)
        assert ("may not read jobs" in html) is ("jobs" not in sees)
        assert "1 waiting in" in html
        # A running and an ended job, too.
        if "jobs" in sees:
            _hears(tenants, page, min(sees & {"acme", "globex"}))
    assert refusals(tenants.operator) == []


def _hears(tenants: TwoTenants, page: TestClient, tenant: str) -> None:
    data = PageData(tenants.operator, tenants.settings)
    data.registry.publish(make_spec(tenant, "heard"), COMPILED, MODEL)

    def heard() -> bool:
        [job] = data.claim(data.submit(f"{tenant}/heard"))
        data.finish(job)
        return job.id in _get(page, "/jobs?state=ended")

    until(heard, what="an ended job is listed")
