"""Dead jobs from the command line: list, show, retry, drop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.job_store import Claimed
from contract.records import RedisJobStore
from contract.redis_client import connect
from contract.types import JobError, JobState, Result
from tests.support.answering import Answering
from tests.support.command_line import CommandLine

Publish = Callable[..., None]


@pytest.fixture
def published(command_line: CommandLine, notes: Path, publish: Publish) -> CommandLine:
    publish(notes)
    return command_line


def _submit(cli: CommandLine, note: str = "hello") -> str:
    ran = cli.run("submit", "acme/notes", "--var", f"note={note}", "--var", "count=2")
    assert ran.code == 0, ran.err
    return ran.out.strip()


def _bury(cli: CommandLine, note: str = "hello") -> str:
    """A job whose one attempt ran out of memory."""
    job_id = _submit(cli, note)
    settings = cli.settings.model_copy(update={"max_attempts": 1})
    with connect(settings) as client:
        store = RedisJobStore(client, settings)
        claim = store.claim(job_id, "w1", 60.0)
        assert isinstance(claim, Claimed)
        result = Result(
            job_id=job_id,
            ref=claim.job.ref,
            status=JobState.FAILED,
            attempt=1,
            worker="w1",
            error=JobError(code="out_of_memory", message="no room", remedy="Take a smaller batch."),
        )
        assert store.retry(result, claim.job.fence, 0.0) is JobState.FAILED
    return job_id


def _listed(cli: CommandLine, *options: str) -> list[Any]:
    rows: list[Any] = cli.run("dead", "list", "acme", "--json", *options).json
    return [row["job_id"] for row in rows]


def test_dead_jobs_are_listed_with_their_reason(published: CommandLine) -> None:
    """Last first; by template; nothing of another tenant; a note when there is none."""
    assert "no dead jobs" in published.run("dead", "list", "acme").err
    one, two = _bury(published), _bury(published)
    assert _listed(published) == [two, one]
    assert _listed(published, "--limit", "1") == [two]
    assert _listed(published, "--template", "other") == []
    table = published.run("dead", "list", "acme").out
    assert "out_of_memory: no room" in table
    assert published.run("dead", "list", "globex", "--json").json == []
    assert published.run("result", one).code == 8
    assert published.run("dead", "list", "No Tenant").code == 1


def test_one_dead_job_is_shown_with_its_input(published: CommandLine) -> None:
    """What an operator needs to see whether it is the input's fault."""
    job_id = _bury(published, note="what was asked")
    shown = published.run("dead", "show", job_id, "--json").json
    assert shown["input"] == {"note": "what was asked", "count": 2}
    assert (shown["attempts"], shown["worker"], shown["error"]) == (1, "w1", "out_of_memory")
    assert "what was asked" in published.run("dead", "show", job_id).out
    assert published.run("dead", "show", _submit(published)).code == 7
    assert published.run("dead", "show", "acme." + "0" * 32).code == 4


def test_dead_jobs_are_tried_again(published: CommandLine) -> None:
    """They are rung for and answered as any other job."""
    jobs = [_bury(published), _bury(published)]
    assert published.run("dead", "retry", *jobs, "--deadline", "60").out == "".join(
        f"{job_id} queued\n" for job_id in jobs
    )
    assert _listed(published) == []
    with Answering(published.settings):
        for job_id in jobs:
            assert published.run("result", job_id, "--wait").out == "echo: hello 2\n"
    assert published.run("dead", "retry", jobs[0]).code == 7


def test_one_that_is_not_dead_keeps_the_others_dead(published: CommandLine) -> None:
    """Nothing half done: the list is checked before the first is touched."""
    dead, alive = _bury(published), _submit(published)
    for command in ("retry", "drop"):
        ran = published.run("dead", command, dead, alive, "--json")
        assert (ran.code, ran.json["error"]) == (7, "conflict")
    assert _listed(published) == [dead]


def test_dropped_job_is_not_found(published: CommandLine) -> None:
    """Record and input are gone."""
    job_id = _bury(published)
    assert published.run("dead", "drop", job_id, "--json").json == [
        {"job_id": job_id, "status": "dropped"}
    ]
    assert published.run("status", job_id).code == 4
    assert published.run("dead", "drop", job_id).code == 4
