"""What the bench and a peer's process say to each other: one JSON object a line.

    {"op": "load", "model": ..., "prefix_len": P, "max_batch": B, ...} -> {"note": ...}
    {"op": "run", "prompts": [[ids], ...], "prefix_len": P, "max_new_tokens": n}
        -> {"seconds": s, "token_ids": [[ids], ...], "prefill_s": s or null, "note": ...}
    {"op": "quit"} -> {}

A request that fails is answered by {"error": "..."}, and the peer serves on. This module runs in
every peer's environment, so it imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn, Protocol, TextIO

Ids = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A model, and the largest work it will be given. A later one replaces it."""

    model: str  # path, in the peer's own format
    prefix_len: int  # tokens that all prompts share
    own_len: int  # tokens of one job beyond the prefix, new ones included
    max_batch: int
    eos_ids: tuple[int, ...]
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Jobs to run together: greedy, float32, every job exactly `max_new_tokens` long.

    End-of-sequence ids are never chosen, so that all peers do equal work. All prompts begin with
    the same `prefix_len` ids, which a peer that can keep them has ready before the clock starts.
    """

    prompts: Sequence[Ids]
    prefix_len: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`seconds` of the whole batch on the peer's monotonic clock; `prefill_s` of them, where the
    peer can tell, until every job had its first token."""

    seconds: float
    token_ids: Sequence[Ids]
    prefill_s: float | None = None
    note: str = ""


class Runner(Protocol):
    """What a peer's module implements."""

    def load(self, load: Load) -> str:
        """Get ready; the answer names versions and settings."""

    def run(self, work: Work) -> Answer:
        """Warm the prefix, then run all jobs and time that."""


def serve(runner: Runner) -> NoReturn:
    """Answer requests from standard input until `quit` or its end; then the process ends.

    Libraries print on standard output as they like; all of that goes to standard error. Threads
    that they leave running do not keep the process, which would outlive the bench.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "quit":
            _say(answers, {})
            break
        try:
            answer = _perform(runner, request)
        except Exception as error:  # noqa: BLE001 - all of it is the caller's to know
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        _say(answers, answer)
    sys.stderr.flush()
    os._exit(0)


def shared_prefix(work: Work) -> Ids:
    """The ids that all prompts begin with. Raises ValueError when they do not."""
    prefix = list(work.prompts[0][: work.prefix_len])
    for prompt in work.prompts:
        if list(prompt[: work.prefix_len]) != prefix or len(prompt) <= work.prefix_len:
            raise ValueError(f"not every prompt begins with the same {work.prefix_len} ids")
    return prefix


def _perform(runner: Runner, request: dict[str, Any]) -> dict[str, Any]:
    op = request.pop("op")
    if op == "load":
        request["eos_ids"] = tuple(request["eos_ids"])
        return {"note": runner.load(Load(**request))}
    if op == "run":
        return asdict(runner.run(Work(**request)))
    raise ValueError(f"no such op: {op!r}")


def _say(answers: TextIO, answer: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the bench is gone; standard input ends too
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
