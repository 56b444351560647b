"""A file of jobs as its owner meets it: odd lines, kills, full disks, limits, pipes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import keys
from contract.job_store import TenantLimits
from contract.records import RedisJobStore
from contract.redis_client import Client, connect
from contract.settings import Settings
from producer.client import Producer
from templates.registry import Registry
from tests.support.answering import Answering
from tests.support.command_line import CommandLine, Ran
from tests.support.published import COMPILED, MODEL, make_spec
from tests.support.waiting import until

URL = "/v1/chat/completions"


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    with connect(settings) as opened:
        yield opened


@pytest.fixture
def registry(client: Client, settings: Settings) -> Registry:
    return Registry(client, settings)


@pytest.fixture
def cli(registry: Registry, settings: Settings, tmp_path: Path) -> CommandLine:
    """With the template acme/triage, which takes a ticket."""
    registry.publish(make_spec("acme", "triage"), COMPILED, MODEL)
    settings = settings.model_copy(update={"cache_dir": tmp_path / "cache"})
    return CommandLine(settings=settings, folder=tmp_path)


def _line(name: str, ticket: str | None = None, **body: Any) -> str:
    body = {"model": "acme/triage", "prompt": {"variables": {"ticket": ticket or name}}, **body}
    return json.dumps({"custom_id": name, "method": "POST", "url": URL, "body": body})


def _names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def _write(cli: CommandLine, *names: str) -> Path:
    path = cli.folder / "in.jsonl"
    path.write_text("".join(_line(name) + "\n" for name in names), "utf-8")
    return path


def _words(source: Path | str, *more: str) -> tuple[str | Path, ...]:
    return ("batch", source, "-o", "out.jsonl", "--format", "openai", *more)


def _results(cli: CommandLine) -> dict[str, str]:
    """What came of each line, none of which may be there twice."""
    text = (cli.folder / "out.jsonl").read_text("utf-8")
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    found = {line["custom_id"]: _said(line) for line in lines}
    assert len(found) == len(lines)
    return found


def _said(line: dict[str, Any]) -> str:
    if line["error"]:
        return str(line["error"]["code"])
    body = line["response"]["body"]
    if "error" in body:
        return str(body["error"]["message"])
    return str(body["choices"][0]["message"]["content"])


def _lines_of(cli: CommandLine) -> int:
    path = cli.folder / "out.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _bounded_files(most: int) -> Callable[[], None]:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    return limit


def test_lines_as_editors_and_systems_write_them(cli: CommandLine) -> None:
    """A byte order mark, CRLF, blank lines, and no end of the last line; numbers are the file's."""
    source = cli.folder / "in.jsonl"
    parts = ["\ufeff", _line("a"), "\r\n\r\n   \n", _line("ä", "ü\u2028x"), "\r\n", _line("c")]
    source.write_bytes("".join(parts).encode())
    with Answering(cli.settings):
        ran = cli.run(*_words(source))
    assert ran.code == 0, ran.err
    assert _results(cli) == {"a": "echo: a", "ä": "echo: ü\u2028x", "c": "echo: c"}
    text = (cli.folder / "out.jsonl").read_text("utf-8")
    ids = [json.loads(line)["id"] for line in text.split("\n")[:-1]]
    assert sorted(int(id_.rpartition("_")[2]) for id_ in ids) == [0, 3, 4]


def test_bad_lines_in_the_middle_are_all_told_and_then_skipped(cli: CommandLine) -> None:
    """With their numbers, before anything is enqueued; a custom_id that is there twice too."""
    source = cli.folder / "in.jsonl"
    odd = ["{", _line("a", "again"), _line("d", temperature=0.5), "null"]
    source.write_text("\n".join([_line("a"), *odd, _line("z")]) + "\n", "utf-8")
    ran = cli.run(*_words(source))
    assert ran.code == 1
    for number, words in (
        (2, "not a line of JSON"),
        (3, "the id is there already; given: that of line 1"),
        (4, "temperature"),
        (5, "not a JSON object"),
    ):
        [told] = [line for line in ran.err.splitlines() if line.startswith(f"line {number}: ")]
        assert words in told
    assert _lines_of(cli) == 0
    with Answering(cli.settings) as worker:
        skipped = cli.run(*_words(source, "--skip-invalid"))
        again = cli.run(*_words(source, "--skip-invalid", "--json"))
    assert (skipped.code, again.code, worker.answered) == (8, 8, 2)
    assert again.json["statuses"] == {"invalid": 4, "succeeded": 2}
    assert again.json["already_done"] == 6


def test_killed_at_any_point_and_taken_up_again(cli: CommandLine) -> None:
    """kill -9, many times, also in the middle of a line: each job runs once and is told once."""
    names = _names(120)
    words = _words(_write(cli, *names), "--window", "16")
    out = cli.folder / "out.jsonl"
    with Answering(cli.settings) as worker:
        for round_ in range(5):
            done = _lines_of(cli)
            process = subprocess.Popen(
                cli.command(*words), stderr=subprocess.PIPE, cwd=cli.folder, env=cli.environment
            )
            with process:
                wanted = 7 * round_ + done
                until(lambda: _lines_of(cli) >= wanted, what="some results")  # noqa: B023
                process.kill()
            assert process.returncode == -signal.SIGKILL
            if round_ % 2 and out.stat().st_size > 20:  # and what a kill within a write leaves
                os.truncate(out, out.stat().st_size - 11)
        ran = cli.run(*words, "--json")
    assert ran.code == 0, ran.err
    assert _results(cli) == {name: f"echo: {name}" for name in names}
    assert worker.answered == len(names)
    assert ran.json["statuses"] == {"succeeded": len(names)}


def test_a_full_disk_is_said_and_gone_on_from(cli: CommandLine) -> None:
    """What was written stays; nothing is enqueued twice when there is room again."""
    words = _words(_write(cli, *_names(12)))
    with Answering(cli.settings) as worker:
        done = subprocess.run(
            cli.command(*words, "--json"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=cli.folder,
            env=cli.environment,
            preexec_fn=_bounded_files(2000),
        )
        assert (done.returncode, json.loads(done.stdout)["problem"]) == (
            1,
            "the output cannot be written",
        )
        assert "of 12 results in out.jsonl; run the same again to go on" in done.stderr
        assert "Traceback" not in done.stderr
        before = _lines_of(cli)
        assert 0 < before < 12
        assert (cli.folder / "out.jsonl").stat().st_size == 2000  # a torn line among it
        ran = cli.run(*words, "--json")
    assert (ran.code, ran.json["already_done"], worker.answered) == (0, before, 12)
    assert len(_results(cli)) == 12


def test_interrupted_with_ctrl_c(cli: CommandLine) -> None:
    """While it waits for jobs that nobody does: 130, at once, with what there is."""
    process = subprocess.Popen(
        cli.command(*_words(_write(cli, "a", "b"))),
        stderr=subprocess.PIPE,
        cwd=cli.folder,
        env=cli.environment,
    )
    with process, connect(cli.settings) as client:
        until(lambda: client.zcard(keys.queued("acme")) == 2, what="both are queued")
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"0 of 2 results in out.jsonl; run the same again to go on" in error
    assert b"Traceback" not in error


def test_a_rate_limit_slows_a_batch_down(cli: CommandLine, client: Client) -> None:
    """And ends nothing."""
    RedisJobStore(client, cli.settings).set_limits("acme", TenantLimits(rate_per_s=10))
    source = _write(cli, *_names(25))
    started = time.monotonic()
    with Answering(cli.settings):
        ran = cli.run(*_words(source, "--json"))
    assert (ran.code, ran.json["statuses"]) == (0, {"succeeded": 25})
    assert time.monotonic() - started > 1.5  # ten at once, and fifteen at ten a second


@pytest.mark.parametrize("whose", ["template", "tenant"])
def test_a_queue_full_of_others_jobs_is_waited_for(
    cli: CommandLine, client: Client, registry: Registry, whose: str
) -> None:
    """It is said once what it waits for; with --timeout it gives up, and goes on another time."""
    if whose == "template":
        spec = make_spec("acme", "triage", limits={"max_queue": 3})
        registry.publish(spec, COMPILED, MODEL)
        registry.set_label("acme", "triage", "production", 2)
    else:
        RedisJobStore(client, cli.settings).set_limits("acme", TenantLimits(max_queued=3))
    with Producer(cli.settings) as producer:
        for number in range(3):
            producer.submit("acme/triage", {"ticket": f"other {number}"})
    words = _words(_write(cli, *_names(8)))
    ran = cli.run(*words, "--timeout", "1.5")
    assert ran.code == 6
    assert ran.err.count("waiting for room: ") == 1
    assert "run the same again to go on" in ran.err
    with Answering(cli.settings):
        assert cli.run(*words).code == 0
    assert len(_results(cli)) == 8


def test_jobs_whose_time_is_up_are_told_as_expired(cli: CommandLine, registry: Registry) -> None:
    """Nobody does them; the batch ends all the same, with exit status 8."""
    registry.publish(make_spec("acme", "hasty", limits={"deadline_s": 1}), COMPILED, MODEL)
    source = cli.folder / "in.jsonl"
    source.write_text("".join(_line(name, model="acme/hasty") + "\n" for name in "ab"))
    ran = cli.run(*_words(source, "--json"))
    assert (ran.code, ran.json["statuses"]) == (8, {"expired": 2})
    assert _results(cli) == {"a": "expired", "b": "expired"}


@pytest.mark.parametrize("change", ["changed", "longer", "options"])
def test_another_input_or_other_options_are_another_batch(cli: CommandLine, change: str) -> None:
    """Exit status 7, and the results of the first stay as they are."""
    source = _write(cli, "a", "b")
    with Answering(cli.settings):
        assert cli.run(*_words(source)).code == 0
        before = (cli.folder / "out.jsonl").read_bytes()
        names = {"changed": ["a", "c"], "longer": ["a", "b", "c"], "options": ["a", "b"]}[change]
        _write(cli, *names)
        more = ["--no-cache"] if change == "options" else []
        ran = cli.run(*_words(source, *more, "--json"))
    assert (ran.code, ran.json["error"]) == (7, "conflict")
    assert "another batch" in ran.json["problem"]
    assert (cli.folder / "out.jsonl").read_bytes() == before


def test_an_input_that_changes_under_way_stops_the_batch(cli: CommandLine) -> None:
    """Or results would be told of lines that are not what was asked."""
    source = _write(cli, *_names(6))
    process = subprocess.Popen(
        cli.command(*_words(source, "--window", "2")),
        stderr=subprocess.PIPE,
        cwd=cli.folder,
        env=cli.environment,
    )
    with process, connect(cli.settings) as client:
        until(lambda: client.zcard(keys.queued("acme")) == 2, what="two are queued")
        with source.open("a") as file:
            file.write(_line("late") + "\n")
        with Answering(cli.settings):
            _, error = process.communicate(timeout=30)
    assert process.returncode == 7
    assert b"the batch file was changed while it was read; given: in.jsonl" in error.replace(
        str(cli.folder).encode() + b"/", b""
    )
    assert b"to go on" not in error  # the same again would be another batch
    assert "late" not in _results(cli)


def test_a_batch_in_a_pipe(cli: CommandLine) -> None:
    """stdin to stdout, and talk on stderr. Again, it costs no job: those of the batch are found."""
    text = _write(cli, "a", "b").read_text()
    words = ("batch", "-", "-o", "-", "--format", "openai")
    with Answering(cli.settings) as worker:
        first, again = (cli.run(*words, stdin=text) for _ in range(2))
    for ran in (first, again):
        assert ran.code == 0, ran.err
        lines = [json.loads(line) for line in ran.out.splitlines()]
        assert {line["custom_id"]: _said(line) for line in lines} == {
            "a": "echo: a",
            "b": "echo: b",
        }
        assert "2 succeeded" in ran.err
        assert "results on stdout" in ran.err
    assert worker.answered == 2
    assert not (cli.folder / "-").exists()
    refused: Ran = cli.run(*words, "--json", stdin=text)
    assert (refused.code, refused.json["error"]) == (2, "usage")


def test_a_reader_that_has_enough_ends_a_batch_quietly(cli: CommandLine) -> None:
    """As `| head -1` does."""
    source = _write(cli, *_names(50))
    words = cli.command("batch", source, "-o", "-", "--format", "openai", "--window", "1")
    with Answering(cli.settings):
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cli.folder,
            env=cli.environment,
        )
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert b"custom_id" in process.stdout.readline()
            process.stdout.close()
            error = process.stderr.read()
            process.wait(30)
    assert process.returncode == 141
    assert b"Traceback" not in error


def test_an_empty_batch_is_done(cli: CommandLine) -> None:
    """Without a line there is nothing to do, and that is said."""
    source = cli.folder / "in.jsonl"
    source.write_text("\n\n")
    ran = cli.run(*_words(source))
    assert (ran.code, "no lines" in ran.err) == (0, True)
