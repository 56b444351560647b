"""What users write, and what opens Redis, is in no log, no error and no terminal by default.

Texts are planted where users write, and looked for in everything that a run leaves, over all the
ways to fail that a user or an enemy has.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
import redis
from click.testing import CliRunner
from kombu import Connection

from contract import keys
from contract.codec import pack
from contract.errors import PrefillqError
from contract.ids import new_job_id
from contract.model_folder import ModelFolder
from contract.redis_client import connect
from contract.settings import Settings
from local.redis_server import EmbeddedRedis
from local.workers import WorkerProcess
from producer.cli import main
from producer.client import Producer
from templates.registry import Registry
from tests.support.fakes import FakeWorker
from tests.support.markers import leaks, plant, planted_in
from tests.support.tcp import closed_port_url
from tests.support.templates import make_spec, publish

PASSWORD = plant("password")
ENDED = {"succeeded", "failed", "cancelled", "expired"}


@pytest.fixture(scope="module")
def locked_redis() -> Iterator[EmbeddedRedis]:
    """A Redis that wants a password."""
    try:
        server = EmbeddedRedis().start()
    except PrefillqError as error:
        pytest.skip(str(error))
    with redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", PASSWORD)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def settings(locked_redis: EmbeddedRedis, tmp_path: Path) -> Settings:
    """Its URL, with the password in it."""
    url = locked_redis.url.replace("redis://", f"redis://:{PASSWORD}@")
    chosen = Settings(redis_url=url, cache_dir=tmp_path / "cache", lease_s=6.0)
    with connect(chosen) as client:
        client.flushall()
    return chosen


def _error(call: Callable[[], object]) -> str:
    """All that the raised error says: itself, its plain form, and a traceback with its causes."""
    with pytest.raises(PrefillqError) as caught:
        call()
    error = caught.value
    trace = "".join(traceback.format_exception(error))
    return "\n".join((str(error), repr(error), json.dumps(error.to_dict()), trace))


def test_errors_of_a_producer(
    settings: Settings, registry: Registry, tiny_llama: ModelFolder
) -> None:
    """Every way in which a submit can be wrong."""
    publish(registry, make_spec("notes"), tiny_llama)
    text, key = plant("variable"), plant("key")
    errors: list[str] = []

    with Producer(settings) as producer:

        def refused(variables: Any, **options: Any) -> None:
            errors.append(_error(lambda: producer.submit("acme/notes", variables, **options)))

        refused({"note": [text]})
        refused({"note": {"deep": text}})
        refused({"note": text, "more": text})
        refused({"other": text})
        refused([text])
        refused({"note": text * 100_000})
        refused({"note": text + "\ud800"})
        refused({"note": text.encode()})
        refused({"note": text}, idempotency_key=key * 30)
        refused({"note": text}, idempotency_key=key + "\ud800")
        producer.submit("acme/notes", {"note": text}, idempotency_key=key)
        refused({"note": "other"}, idempotency_key=key)
        with connect(settings) as client:
            client.set(keys.labels("acme", "notes"), text)  # a key of another type
        refused({"note": text})
    assert len(errors) == 12
    assert [planted_in(error) for error in errors] == [[]] * 12


def test_errors_about_redis_itself(settings: Settings) -> None:
    """Away, or with another password: the address is named, the password is not."""
    wrong = settings.redis_url.replace(PASSWORD, plant("wrong"))
    away = closed_port_url().replace("redis://", f"redis://user:{PASSWORD}@")
    for url in (wrong, away, f"redis://:{PASSWORD}/x@h:1", f"http://:{PASSWORD}@h", f"x{PASSWORD}"):

        def submit(url: str = url) -> None:
            chosen = Settings.load(redis_url=url, redis_timeout_s=0.5)
            assert PASSWORD not in repr(chosen) + str(chosen)
            with Producer(chosen) as producer:
                producer.submit("acme/notes", {"note": "x"})

        assert planted_in(_error(submit)) == []
    # kombu's words, which Celery logs: it hides passwords itself.
    assert planted_in(str(Connection(settings.redis_url))) == []


@pytest.mark.usefixtures("logging_as_before")
def test_commands(
    settings: Settings,
    tmp_path: Path,
    registry: Registry,
    tiny_llama: ModelFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """stdout and stderr of commands that fail, with --json and without, and when debugging."""
    publish(registry, make_spec("notes"), tiny_llama)
    text = plant("variable")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFILLQ_REDIS_URL", settings.redis_url)
    monkeypatch.setenv("PREFILLQ_CACHE_DIR", str(settings.cache_dir))

    def run(words: list[str]) -> tuple[int, str]:
        ended = CliRunner().invoke(main, words)
        return ended.exit_code, ended.stdout + ended.stderr

    batch = tmp_path / "jobs.jsonl"
    batch.write_text(
        "\n".join(
            (
                json.dumps({"variables": {"note": [text]}, "template": "acme/notes"}),
                json.dumps({"variables": {"note": text}, "template": [text]}),
                json.dumps({"variables": text, "template": "acme/notes"}),
                json.dumps({"variables": {}, "id": [text]}),
                '{"variables": {"note": "' + text,
                text,
            )
        )
    )
    template = tmp_path / "template.yaml"
    template.write_text(f"messages: [{{role: user, content: [{text}]}}]\nsamples: {text}\n")
    (tmp_path / "other.txt").write_text(text)
    away = closed_port_url().replace("redis://", f"redis://:{PASSWORD}@")
    for arguments in (
        ("submit", "acme/notes", "--vars", f'{{"note": "{text}'),
        ("submit", "acme/notes", "--vars", f'"{text}"'),
        ("submit", "acme/notes", "--vars", f'{{"note": ["{text}"]}}'),
        ("submit", "acme/notes", "--var", text),
        ("submit", "acme/notes", "--var", f"note={text}", "--idempotency-key", text * 20),
        ("batch", "jobs.jsonl", "-o", "out.jsonl"),
        ("batch", "jobs.jsonl", "-o", "other.txt"),
        ("templates", "lint", "template.yaml"),
        ("templates", "publish", "template.yaml"),
        ("templates", "list", "--redis-url", away),
        ("status", new_job_id("acme"), "--redis-url", away),
        ("worker", "list", "--redis-url", away),
    ):
        words = list(arguments)
        root: list[str] = []
        if "--redis-url" in words:
            place = words.index("--redis-url")
            root = words[place:]
            words = words[:place]
        for more in ([], ["--json"]):
            code, said = run([*root, *words, *more])
            assert code not in (0, 2), (words, said)
            assert planted_in(said) == [], words
        assert planted_in(run(["--log-level", "debug", *root, *words])[1]) == [], words


def _push_rubbish(settings: Settings, queue: str, text: str) -> int:
    """What an enemy, or a stock Celery client, can put into a queue; returns how much."""
    from contract.celery_app import make_celery

    app = make_celery(settings)
    with connect(settings) as client, app.connection_for_write() as connection:
        key = keys.messages(queue)
        client.lpush(key, text)
        client.lpush(key, json.dumps({"body": text}))
        client.lpush(key, msgpack.packb({"body": text}))
        sent = 0
        for serializer, accepted in (("json", False), ("msgpack", True), ("yaml", False)):
            producer = connection.Producer(serializer=serializer)
            for body in (
                [[text], {}, {}],
                {"task": text},
                [[text], {"a": text}, {"b": text}],
                text,
            ):
                for task in ("prefillq.run" if not accepted else "stock.task", "stock.task"):
                    headers = {"id": text[:20], "task": task, "lang": "py", "argsrepr": text}
                    with suppress(Exception):  # yaml may not be installed
                        producer.publish(body, routing_key=queue, headers=headers, exchange="")
                        sent += 1
        client.lpush(key, b"\xff" + text.encode())
        return sent + 4


def _wait(check: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_logs_of_a_worker_whose_engine_breaks(
    settings: Settings, registry: Registry, tiny_llama: ModelFolder, tmp_path: Path
) -> None:
    """Crashes that quote the prompt, rubbish in the queue, damaged records, Redis gone for ever."""
    crash, scores, answer = plant("crash"), plant("scores"), plant("answer")
    publish(registry, make_spec("notes"), tiny_llama)
    worker = FakeWorker(
        settings,
        model=tiny_llama.path,
        log_path=tmp_path / "worker.log",
        options=[*("--fail-on", crash, "--nan-on", scores, "--answer", answer)],
    )
    with worker, Producer(settings) as producer, connect(settings) as client:
        good = producer.submit("acme/notes", {"note": plant("variable")})
        assert good.outcome(60).text == answer
        bad = [producer.submit("acme/notes", {"note": text}) for text in (crash, scores)]
        cancelled = producer.submit("acme/notes", {"note": f"work=30 {plant('variable')}"})
        late = producer.submit(
            "acme/notes", {"note": f"work=30 {plant('variable')}"}, deadline_s=1.0
        )
        damaged = producer.submit("acme/notes", {"note": f"work=0.1 {plant('variable')}"})
        client.hset(keys.job(damaged.id), mapping={"version": plant("record")})
        client.hset(keys.labels("acme", "notes"), mapping={"odd": plant("label")})
        _wait(lambda: cancelled.status() == "running", "never claimed")
        cancelled.cancel()
        queue = client.hget(keys.job(good.id), "queue").decode()
        _push_rubbish(settings, queue, plant("message"))
        for handle in (*bad, cancelled, late):
            result = handle.outcome(60)
            assert result.status in ENDED
            assert planted_in("" if result.error is None else str(result.error)) == []
        _wait(lambda: client.llen(keys.messages(queue)) == 0, "rubbish is never taken")
        assert producer.submit("acme/notes", {"note": "fine"}).outcome(60).text == answer
        client.config_set("requirepass", plant("changed"))
        client.client_kill_filter(_type="normal", skipme=True)  # this connection stays logged in
        time.sleep(3)
        client.config_set("requirepass", PASSWORD)
    log = worker.log_path.read_text("utf-8")
    assert "job_crashed" in log
    assert "RuntimeError" in log
    assert planted_in(log) == []


def test_logs_of_a_real_worker(
    settings: Settings,
    registry: Registry,
    tiny_llama: ModelFolder,
    start_worker: Callable[..., WorkerProcess],
) -> None:
    """The real engine on prompts it likes, and on one longer than it can read."""
    publish(registry, make_spec("notes"), tiny_llama)
    worker = start_worker("--warm", "all")
    with Producer(settings) as producer:
        handles = [
            producer.submit("acme/notes", {"note": note})
            for note in (plant("variable"), f"{plant('variable')} " * 20_000, "<|im_end|>" * 3)
        ]
        ends = [handle.outcome(120) for handle in handles]
        assert [end.status for end in ends] == ["succeeded", "failed", "succeeded"]
        assert ends[1].error is not None
        assert planted_in(str(ends[1].error)) == []
    worker.stop()
    log = worker.log_path.read_text("utf-8")
    assert log.count("job_finished") == 3
    assert planted_in(log) == []


def test_a_worker_that_cannot_reach_redis(
    tiny_llama: ModelFolder, tmp_path: Path, settings: Settings
) -> None:
    """It ends, or waits; either way without telling the password."""
    away = closed_port_url().replace("redis://", f"redis://:{PASSWORD}@")
    for url in (away, settings.redis_url.replace(PASSWORD, plant("wrong"))):
        chosen = Settings(redis_url=url, cache_dir=tmp_path / "cache", lease_s=6.0)
        log = tmp_path / f"worker-{len(url)}.log"
        worker = FakeWorker(chosen, model=tiny_llama.path, log_path=log).start()
        try:
            _wait(lambda log=log: "edis" in log.read_text("utf-8"), "it says nothing")
            time.sleep(2)
        finally:
            worker.stop(grace_s=5)
        text = log.read_text("utf-8")
        assert text.strip()
        assert planted_in(text) == []


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    """The checks here, and of the whole suite, would see a leak."""
    text = plant("variable")
    assert planted_in(f"it says '{text}'.") == [text]
    assert planted_in(pack({"a": text}).decode("latin-1")) == [text]
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "worker.log").write_text(text)
    assert leaks([("call", "stdout", text)], None) == []
    assert leaks([("call", "log", text)], None) == [text]
    assert leaks([], tmp_path / "deep") == [text]
    (tmp_path / "deep" / "worker.log").unlink()
