"""Jobs from the command line: submit, wait, read, cancel, and whole files."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract import keys
from contract.redis_client import connect
from tests.support.answering import Answering
from tests.support.command_line import CommandLine
from tests.support.terminal import on_terminal

Publish = Callable[..., None]


@pytest.fixture
def published(command_line: CommandLine, notes: Path, publish: Publish) -> CommandLine:
    """With the template acme/notes."""
    publish(notes)
    return command_line


def _submit(cli: CommandLine, note: str = "hello") -> str:
    ran = cli.run("submit", "acme/notes", "--var", f"note={note}", "--var", "count=2")
    assert ran.code == 0, ran.err
    return ran.out.strip()


def _queued(cli: CommandLine) -> int:
    with connect(cli.settings) as client:
        return int(client.zcard(keys.queued("acme")))  # type: ignore[arg-type]


def test_submitted_job_waits_until_it_is_answered(published: CommandLine) -> None:
    """Queued (exit status 6 for its result), then succeeded."""
    job_id = _submit(published)
    assert published.run("status", job_id).out == "queued\n"
    early = published.run("result", job_id, "--json")
    assert (early.code, early.json["error"]) == (6, "timed_out")
    assert published.run("result", job_id, "--wait", "--timeout", "0.2").code == 6
    with Answering(published.settings):
        assert published.run("result", job_id, "--wait").out == "echo: hello 2\n"
    assert published.run("status", job_id, "--json").json == {
        "job_id": job_id,
        "status": "succeeded",
        "template": "acme/notes",
        "version": 1,
        "rollout": None,
        "scores": {},
    }
    result = published.run("result", job_id, "--json").json
    assert result["usage"]["prompt_tokens_details"] == {"cached_tokens": 15}
    assert published.run("cancel", job_id).code == 7


def test_schema_types_the_variables(published: CommandLine) -> None:
    """`count` is an integer because the schema says so, `note` stays text."""
    with Answering(published.settings):
        ran = published.run(
            *("submit", "acme/notes", "--var", "note=7", "--var", "count=2", "--wait", "--json")
        )
    assert ran.json["text"] == "echo: 7 2"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--var", "note=x"), "count"),
        (("--var", "note=x", "--var", "count=-1"), "count"),
        (("--var", "note=x", "--var", "count=two"), "--var count"),
        (("--vars", '{"note": "x", "count": 1, "more": 1}'), "more"),
        (("--vars", '{"note": "x", "count": 36893488147419103232}'), "count"),
    ],
)
def test_bad_variables_are_named_and_not_enqueued(
    published: CommandLine, arguments: tuple[str, ...], part: str
) -> None:
    """Exit status 1 with the field and what it should hold (case Q10: never lost later)."""
    ran = published.run("submit", "acme/notes", *arguments, "--json")
    assert ran.code == 1
    assert ran.json["error"] == "invalid_input"
    assert part in json.dumps(ran.json)
    assert _queued(published) == 0


def test_failed_job_gives_8(published: CommandLine) -> None:
    """Also when waiting right after the submit."""
    with Answering(published.settings):
        ran = published.run(
            "submit",
            "acme/notes",
            "--wait",
            "--json",
            "--vars",
            "-",
            stdin='{"note": "break", "count": 0}',
        )
    assert (ran.code, ran.json["status"]) == (8, "failed")


def test_cancelled_job_never_runs(published: CommandLine) -> None:
    """Cancelled while queued; its result is exit status 8 (case Q15)."""
    job_id = _submit(published)
    assert published.run("cancel", job_id).out == "cancelled\n"
    assert published.run("result", job_id).code == 8
    with Answering(published.settings) as worker:
        other = _submit(published)
        published.run("result", other, "--wait")
    assert worker.answered == 1


def test_idempotency_key_finds_the_first_job(published: CommandLine) -> None:
    """The same input gives the same id, another input a conflict naming it (case Q17)."""
    words = ("submit", "acme/notes", "--idempotency-key", "k", "--vars")
    first = published.run(*words, '{"note": "a", "count": 1}').out.strip()
    assert published.run(*words, '{"count": 1, "note": "a"}').out.strip() == first
    other = published.run(*words, '{"note": "b", "count": 1}')
    assert other.code == 7
    assert first in other.err
    assert _queued(published) == 1


def _write_batch(cli: CommandLine, count: int) -> Path:
    path = cli.folder / "in.jsonl"
    lines = ({"id": f"n{n}", "variables": {"note": f"note {n}", "count": n}} for n in range(count))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_batch_answers_every_line(published: CommandLine) -> None:
    """Each line once, with its own answer; the summary counts tokens."""
    source, out = _write_batch(published, 30), published.folder / "out.jsonl"
    with Answering(published.settings):
        ran = published.run(
            *("batch", source, "-o", out, "--template", "acme/notes", "--window", "7", "--json")
        )
    assert ran.code == 0, ran.err
    assert ran.json["statuses"] == {"succeeded": 30}
    assert (ran.json["prompt_tokens"], ran.json["cached_tokens"]) == (600, 450)
    results = {line["index"]: line for line in _read(out)}
    assert len(results) == 30
    assert all(results[n]["text"] == f"echo: note {n} {n}" for n in range(30))
    assert all(results[n]["id"] == f"n{n}" for n in range(30))


def test_interrupted_batch_is_taken_up_again(published: CommandLine) -> None:
    """Ctrl-C leaves whole lines; the same command adds the rest and enqueues no job twice."""
    source, out = _write_batch(published, 24), published.folder / "out.jsonl"
    words = ("batch", source, "-o", out, "--template", "acme/notes", "--window", "8")
    process = subprocess.Popen(
        published.command(*words), stderr=subprocess.PIPE, env=published.environment
    )
    with process, Answering(published.settings, limit=5):
        deadline = time.monotonic() + 30
        while not (out.exists() and len(_read(out)) >= 5):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"5 of 24 results" in error
    assert b"Traceback" not in error
    with Answering(published.settings) as worker:
        assert published.run(*words).code == 0
    assert sorted(line["index"] for line in _read(out)) == list(range(24))
    assert worker.answered == 24 - 5


def test_batch_that_times_out_can_be_taken_up(published: CommandLine) -> None:
    """Exit status 6 when nobody answers; the jobs are found again by their keys."""
    source, out = _write_batch(published, 3), published.folder / "out.jsonl"
    words = ("batch", source, "-o", out, "--template", "acme/notes")
    ran = published.run(*words, "--timeout", "0.3", "--json")
    assert (ran.code, ran.json["error"]) == (6, "timed_out")
    assert _queued(published) == 3
    with Answering(published.settings):
        assert published.run(*words).code == 0
    assert len(_read(out)) == 3


def test_bad_lines_stop_a_batch_before_it_starts(published: CommandLine) -> None:
    """All of them are reported, checked against the template's schema; nothing is enqueued."""
    source, out = _write_batch(published, 2), published.folder / "out.jsonl"
    with source.open("a") as file:
        file.write('{"variables": {"note": "x", "count": "many"}}\n')
        file.write('{"template": "acme/other", "variables": {}}\n')
    ran = published.run("batch", source, "-o", out, "--template", "acme/notes", "--json")
    assert ran.code == 1
    assert [line["line"] for line in ran.json["lines"]] == [3, 4]
    assert [line["error"] for line in ran.json["lines"]] == ["invalid_input", "not_found"]
    assert _queued(published) == 0


def _request(number: int, **changes: Any) -> str:
    variables = {"note": f"note {number}", "count": number} | changes
    body = {"model": "acme/notes", "prompt": {"variables": variables}}
    line = {"custom_id": f"n{number}", "method": "POST", "url": "/v1/chat/completions"}
    return json.dumps({**line, "body": body}) + "\n"


def test_a_batch_of_openai_lines_is_answered_in_kind(published: CommandLine) -> None:
    """Interrupted too: what a first run with other options began is a conflict, its own goes on."""
    source, out = published.folder / "in.jsonl", published.folder / "out.jsonl"
    source.write_text("".join(_request(number) for number in range(12)), "utf-8")
    words = ("batch", source, "-o", out, "--format", "openai")
    ran = published.run(*words, "--timeout", "0.3", "--json")
    assert (ran.code, ran.json["error"]) == (6, "timed_out")
    with Answering(published.settings) as worker:
        ran = published.run(*words, "--json")
        assert ran.code == 0, ran.err
        again = published.run(*words, "--json")
    assert worker.answered == 12
    assert ran.json["statuses"] == again.json["statuses"] == {"succeeded": 12}
    assert again.json["already_done"] == 12
    assert ran.json["jobs_per_s"] > 0
    lines = {line["custom_id"]: line for line in _read(out)}
    for number in range(12):
        body = lines[f"n{number}"]["response"]["body"]
        assert body["choices"][0]["message"]["content"] == f"echo: note {number} {number}"
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 15
    assert published.run("batch", source, "-o", out, "--json").code in (1, 7)


def test_a_dry_run_enqueues_nothing(published: CommandLine) -> None:
    """Of good lines it tells the counts; no output file is made, though one is named."""
    source, out = published.folder / "in.jsonl", published.folder / "out.jsonl"
    source.write_text(_request(0) + _request(1), "utf-8")
    words = ("batch", source, "--format", "openai", "--dry-run")
    ran = published.run(*words, "-o", out, "--json")
    assert (ran.code, ran.json["dry_run"], ran.json["lines"], ran.json["invalid"]) == (
        0,
        True,
        2,
        0,
    )
    [(version, counted)] = ran.json["versions"].items()
    assert (version, counted["lines"]) == ("acme/notes@1", 2)
    assert ran.json["prompt_tokens"] > ran.json["cached_prefix_tokens"] > 0
    assert "2 lines" in published.run(*words).out
    assert _queued(published) == 0
    assert not out.exists()


def test_a_dry_run_tells_bad_lines(published: CommandLine) -> None:
    """With their numbers and exit status 1."""
    source = published.folder / "in.jsonl"
    source.write_text(_request(0) + _request(1, count="many") + "{\n", "utf-8")
    ran = published.run("batch", source, "--format", "openai", "--dry-run", "--json")
    assert ran.code == 1
    assert [line["line"] for line in ran.json["lines"]] == [2, 3]
    assert published.run("batch", source, "--format", "openai").code == 2  # for want of -o


def test_a_batch_shows_its_progress_on_a_terminal(published: CommandLine) -> None:
    """A bar with the count, the rate and the time to go; elsewhere nothing but the summary."""
    source, words = _write_batch(published, 4), ("--template", "acme/notes")
    with Answering(published.settings):
        code, shown = on_terminal(published, "batch", source, "-o", "shown.jsonl", *words)
        piped = published.run("batch", source, "-o", "piped.jsonl", *words, "--run", "again")
    assert (code, piped.code) == (0, 0)
    assert re.search(r"jobs .* 4/4 +\d+\.\d\d/s +\d:\d\d:\d\d", shown), shown
    assert "4/4" not in piped.err
    assert piped.err.count("\n") == 1
    assert len(_read(published.folder / "shown.jsonl")) == 4


def test_two_batches_never_write_one_file(published: CommandLine) -> None:
    """The second gives exit status 7 while the first waits."""
    source, out = _write_batch(published, 2), published.folder / "out.jsonl"
    words = ("batch", source, "-o", out, "--template", "acme/notes")
    with subprocess.Popen(
        published.command(*words), stderr=subprocess.DEVNULL, env=published.environment
    ) as process:
        deadline = time.monotonic() + 30
        while _queued(published) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        second = published.run(*words)
        process.send_signal(signal.SIGINT)
    assert second.code == 7
    assert "in use" in second.err
