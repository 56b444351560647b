"""Answers that are read while they are written, over real Redis and workers."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from typing import Any

import psutil
import pytest

from contract import keys
from contract.async_server import CONNECTIONS
from contract.model_folder import ModelFolder
from contract.pieces import joined
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import JobState
from local.workers import WorkerProcess
from producer.async_client import AsyncProducer
from producer.client import Producer
from templates.registry import Registry
from tests.support.command_line import CommandLine
from tests.support.fakes import StartFake
from tests.support.templates import make_spec, publish

ANSWER = "Zoë said: «naïve 😀 café», and 日本語 too. " * 3
NOTE = {"note": "work=1.5"}
LONG = {"note": "work=5"}  # still runs after its first piece, however busy the machine is


def test_pieces_come_while_the_job_runs_and_come_to_its_text(
    producer: Producer,
    client: Client,
    settings: Settings,
    worker_settings: Settings,
    start_fake: StartFake,
    publish_template: Any,
) -> None:
    """Characters of several bytes are whole in each piece; the stream expires with the result."""
    publish_template()
    start_fake("--answer", ANSWER, settings=worker_settings)
    job = producer.submit("acme/notes", LONG, stream=True)
    states, pieces = [], []
    for piece in job.stream(timeout=60):
        pieces.append(piece)
        states.append(job.status() if len(pieces) < 3 else None)
    assert states[0] is JobState.RUNNING
    texts = [piece.text for piece in pieces if piece.kind == "text"]
    assert len(texts) > 5
    assert "\ufffd" not in "".join(texts)
    assert joined(pieces) == job.result(timeout=5).text == ANSWER
    assert pieces[-1].status is JobState.SUCCEEDED
    left = client.pttl(keys.pieces(job.id))
    assert 0 < left <= settings.result_ttl_s * 1000
    again = list(job.stream(after=pieces[2].entry, timeout=10))
    assert joined([*pieces[:3], *again]) == ANSWER


def test_many_streams_share_connections(
    producer_settings: Settings, client: Client, start_fake: StartFake, publish_template: Any
) -> None:
    """As many as there are jobs, over the few that all calls of a loop have: only this process's
    connections are counted, since the worker makes new ones meanwhile.
    """
    publish_template()
    start_fake("--answer", ANSWER, "--batch", "8")

    async def scenario() -> None:
        before = {each["id"] for each in client.client_list()}
        async with AsyncProducer(producer_settings) as producer:
            jobs = await producer.submit_many("acme/notes", [NOTE] * 24, stream=True)
            most = 0

            async def read(job: Any) -> str:
                nonlocal most
                pieces = []
                async for piece in job.stream(timeout=60):
                    pieces.append(piece)
                    if len(pieces) == 3:
                        ours = {
                            f"{c.laddr.ip}:{c.laddr.port}"
                            for c in psutil.Process().net_connections("tcp")
                        }
                        opened = [each for each in client.client_list() if each["addr"] in ours]
                        most = max(most, len({each["id"] for each in opened} - before))
                return joined(pieces)

            assert set(await asyncio.gather(*map(read, jobs))) == {ANSWER}
            assert 0 < most <= CONNECTIONS + 1  # one listens for notices

    asyncio.run(scenario())


def test_another_attempt_restarts_the_stream(
    producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """The worker is killed in the midst of its answer: the reader is told and starts over."""
    publish_template()
    victim = start_fake("--answer", ANSWER)
    job = producer.submit("acme/notes", {"note": "work=3"}, stream=True)
    pieces = []
    for piece in job.stream(timeout=60):
        pieces.append(piece)
        if len(pieces) == 3:
            victim.kill()
            start_fake("--answer", ANSWER)
    [restart] = [piece for piece in pieces if piece.kind == "restart"]
    assert restart.attempt == 2
    begun = pieces.index(restart)
    assert {piece.attempt for piece in pieces[:begun]} == {1}
    assert ANSWER.startswith("".join(piece.text for piece in pieces[:begun]))
    assert "".join(piece.text for piece in pieces[begun:]) == ANSWER
    assert joined(pieces) == job.result().text == ANSWER


def test_a_stream_outlives_its_reader_and_cancels_nothing(
    producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Whoever comes later reads on, or all of it."""
    publish_template()
    start_fake("--answer", ANSWER)
    job = producer.submit("acme/notes", LONG, stream=True)
    stream = job.stream(timeout=30)
    first = next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert job.status() is JobState.RUNNING
    rest = list(job.stream(after=first.entry, timeout=30))
    assert joined([first, *rest]) == ANSWER
    assert joined(job.stream(timeout=30)) == ANSWER


def test_other_jobs_write_nothing(
    producer: Producer, client: Client, start_fake: StartFake, publish_template: Any
) -> None:
    """Streams are asked for job by job."""
    publish_template()
    start_fake("--answer", ANSWER)
    job = producer.submit("acme/notes", {"note": "x"})
    job.result(timeout=20)
    assert not client.exists(keys.pieces(job.id))


def test_an_outage_in_the_midst_loses_nothing(
    producer_settings: Settings, client: Client, start_fake: StartFake, publish_template: Any
) -> None:
    """Redis answers nobody for two seconds: job and reader go on, each character once."""
    publish_template()
    start_fake("--answer", ANSWER)
    with Producer(producer_settings, patience_s=20) as producer:
        job = producer.submit("acme/notes", {"note": "work=4"}, stream=True)
        pieces = []
        for piece in job.stream(timeout=60):
            pieces.append(piece)
            if len(pieces) == 3:
                client.execute_command("CLIENT", "PAUSE", 2500, "ALL")
        assert [piece.kind for piece in pieces].count("restart") == 0
        assert joined(pieces) == job.result().text == ANSWER


def test_the_command_prints_what_comes(
    producer: Producer, command_line: CommandLine, start_fake: StartFake, publish_template: Any
) -> None:
    """As text, as lines of JSON from an entry on, and with the exit status of the job."""
    publish_template()
    start_fake("--answer", ANSWER)
    job_id = command_line.run(
        "submit", "acme/notes", "--var", "note=work=1", "--stream"
    ).out.strip()
    ran = command_line.run("stream", job_id)
    assert (ran.code, ran.out) == (0, ANSWER + "\n")
    lines = [
        json.loads(line) for line in command_line.run("stream", job_id, "--json").out.splitlines()
    ]
    assert "".join(line.get("text", "") for line in lines) == ANSWER
    assert lines[-1] == {"event": "end", "attempt": 1, "status": "succeeded"}
    later = command_line.run("stream", job_id, "--json", "--from", lines[0]["entry"])
    assert [json.loads(line) for line in later.out.splitlines()] == lines[1:]
    cancelled = producer.submit("acme/notes", {"note": "work=30"}, stream=True)
    cancelled.cancel()
    ran = command_line.run("stream", cancelled.id)
    assert ran.code == 8
    assert "cancelled" in ran.err


def test_an_interrupted_command_cancels_nothing(
    producer: Producer, command_line: CommandLine, start_fake: StartFake, publish_template: Any
) -> None:
    """Ctrl-C ends the reading with 130; the job goes on."""
    publish_template()
    start_fake("--answer", ANSWER)
    job = producer.submit("acme/notes", {"note": "work=5"}, stream=True)
    reading = subprocess.Popen(
        command_line.command("stream", job.id),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=command_line.environment,
        cwd=command_line.folder,
    )
    assert reading.stdout is not None
    assert reading.stdout.read(1) == b"Z"
    reading.send_signal(signal.SIGINT)
    reading.communicate(timeout=20)
    assert reading.returncode == 130
    assert job.result(timeout=30).text == ANSWER


@pytest.mark.model
def test_the_real_model_streams_what_it_answers(
    producer: Producer,
    registry: Registry,
    worker_settings: Settings,
    smollm2: ModelFolder,
    tmp_path: Any,
) -> None:
    """Token by token, cut at its stop string, which no piece holds any part of."""
    spec = make_spec(
        rules="You count aloud.",
        generation={"max_new_tokens": 48, "stop": [" 9", "9"]},
        samples=[{"input": {"note": "Count from 1 to 20, separated by commas."}}],
    )
    publish(registry, spec, smollm2)
    note = {"note": "Count from 1 to 20, separated by commas."}
    options = ["--model", str(smollm2.path), "--threads", "1"]
    with WorkerProcess(worker_settings, log_path=tmp_path / "worker.log", options=options):
        job = producer.submit("acme/notes", note, stream=True)
        pieces = list(job.stream(timeout=120))
        result = job.result(timeout=5)
    assert joined(pieces) == result.text
    assert result.text
    assert all("9" not in piece.text for piece in pieces)
    assert len([piece for piece in pieces if piece.entry]) >= 2
