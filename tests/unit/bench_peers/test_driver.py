"""The bench's side of a peer: what it gets, and what it says when the peer fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.peers.driver import ROOT, Peer, PeerFailed
from bench.peers.protocol import Load, Work

FAKE = Path(__file__).with_name("fake_peer.py")
LOAD = Load(model="a-model", prefix_len=1, own_len=3, max_batch=2, eos_ids=(2, 5), threads=1)
WORK = Work(prompts=[[1, 2, 3], [1, 4]], prefix_len=1, max_new_tokens=2)


@contextmanager
def peer(way: str) -> Iterator[Peer]:
    with Peer(way, [sys.executable, str(FAKE), way]) as started:
        yield started


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_answers_come_back() -> None:
    """A peer gets the request's values and its answer arrives, whatever libraries print."""
    with peer("echo") as echo:
        assert echo.load(LOAD, timeout_s=30) == "fake of a-model, eos (2, 5)"
        answer = echo.run(WORK, timeout_s=30)
    assert answer.token_ids == [[3, 2, 1], [4, 1]]
    assert (answer.seconds, answer.prefill_s, answer.note) == (0.5, None, "")


def test_large_requests_and_answers_pass() -> None:
    """Lines longer than a pipe holds arrive whole."""
    prompts = [list(range(50_000, 58_000)) for _ in range(32)]
    with peer("echo") as echo:
        answer = echo.run(Work(prompts=prompts, prefix_len=1, max_new_tokens=2), timeout_s=30)
    assert answer.token_ids == [prompt[::-1] for prompt in prompts]


def test_a_refused_request_leaves_the_peer_running() -> None:
    """An exception in the peer names itself, and the next request is served."""
    with peer("echo") as echo:
        refused = Work(prompts=WORK.prompts, prefix_len=1, max_new_tokens=13)
        with pytest.raises(PeerFailed, match="ValueError: thirteen is refused"):
            echo.run(refused, timeout_s=30)
        assert echo.run(WORK, timeout_s=30).token_ids


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("crash", r"is gone.*exit status 7.*last words"),
        ("garbage", r"no JSON.*not an answer.*last words"),
        ("list", r"something else.*\[1, 2\].*last words"),
        ("half", r"something else.*seconds.*last words"),
    ],
)
def test_a_broken_peer_is_ended_and_quoted(way: str, message: str) -> None:
    """A crash or a wrong answer is an error with the peer's last words, and nothing stays."""
    with peer(way) as broken:
        with pytest.raises(PeerFailed, match=message):
            broken.run(WORK, timeout_s=30)
        assert not running(broken.pid)
        with pytest.raises(PeerFailed, match="closed"):
            broken.run(WORK, timeout_s=30)


def test_a_hanging_peer_is_ended_in_time() -> None:
    """No answer within the limit is an error that names it, and the process is gone."""
    with peer("hang") as hanging:
        started = time.monotonic()
        with pytest.raises(PeerFailed, match=r"in time.*1 s for run"):
            hanging.run(WORK, timeout_s=1)
        assert time.monotonic() - started < 20
        assert not running(hanging.pid)


def test_a_peer_killed_between_requests_is_noticed() -> None:
    """Writing to a dead peer is the same error as reading from one."""
    with peer("echo") as echo:
        os.kill(echo.pid, signal.SIGKILL)
        with pytest.raises(PeerFailed, match=r"is gone.*-9"):
            echo.run(WORK, timeout_s=30)


def test_closing_ends_the_process() -> None:
    """A peer that serves ends by itself; closing twice does nothing more."""
    echo = Peer("echo", [sys.executable, str(FAKE), "echo"])
    echo.run(WORK, timeout_s=30)
    echo.close()
    echo.close()
    assert not running(echo.pid)


def test_an_environment_not_made_is_a_clear_error() -> None:
    """A missing interpreter names the command that makes it."""
    with pytest.raises(PeerFailed, match=r"nobody does not start.*bench\.peers\.setup"):
        Peer("nobody", ["/no/such/python", "-m", "x"])


def test_the_driver_needs_only_the_standard_library() -> None:
    """It is imported in peers' environments, which have nothing of the project's."""
    code = "import bench.peers.driver, bench.peers.protocol"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
