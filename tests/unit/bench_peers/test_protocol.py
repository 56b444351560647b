"""The peer's side: what `serve` reads and answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers.driver import ROOT
from bench.peers.protocol import Work, shared_prefix

FAKE = Path(__file__).with_name("fake_peer.py")


def converse(*lines: str) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, str(FAKE), "echo"],
        input="".join(line + "\n" for line in lines),
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_one_line_in_one_line_out() -> None:
    """Requests are answered in order, and nothing but answers is on standard output."""
    load = {
        "op": "load",
        "model": "m",
        "prefix_len": 1,
        "own_len": 2,
        "max_batch": 1,
        "eos_ids": [2],
        "threads": 1,
    }
    run = {"op": "run", "prompts": [[1, 2]], "prefix_len": 1, "max_new_tokens": 1}
    assert converse(json.dumps(load), json.dumps(run), '{"op": "quit"}', json.dumps(run)) == [
        {"note": "fake of m, eos (2,)"},
        {"seconds": 0.5, "token_ids": [[2, 1]], "prefill_s": None, "note": ""},
        {},
    ]


def test_the_end_of_input_ends_the_process() -> None:
    """A peer whose bench is gone ends, though a library of its own left a thread running."""
    load = dict.fromkeys(("prefix_len", "own_len", "max_batch", "threads"), 1)
    request = json.dumps({"op": "load", "model": "m", "eos_ids": [2], **load})
    assert converse(request) == [{"note": "fake of m, eos (2,)"}]  # within its limit of time


def test_an_unknown_request_is_answered_with_an_error() -> None:
    """A request that is not understood says so, and the peer serves on."""
    first, second = converse('{"op": "dance"}', '{"op": "run", "prompts": []}')
    assert "dance" in str(first["error"])
    assert "TypeError" in str(second["error"])


def test_the_shared_prefix_is_checked() -> None:
    """Prompts that differ within the prefix, or end with it, are refused."""
    assert shared_prefix(Work(prompts=[[1, 2, 3], [1, 2, 4]], prefix_len=2, max_new_tokens=1)) == [
        1,
        2,
    ]
    for prompts in ([[1, 2, 3], [1, 9, 3]], [[1, 2, 3], [1, 2]]):
        with pytest.raises(ValueError, match="same 2 ids"):
            shared_prefix(Work(prompts=prompts, prefix_len=2, max_new_tokens=1))
