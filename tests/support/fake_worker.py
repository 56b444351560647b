"""A whole worker process without a model: `python -m tests.support.fake_worker --help`.

Celery, the transport, leases, catalog, presence and janitor are the real ones, put together by
`WorkerService`; only the model is missing, and what computes is a `ScriptedEngine`. It serves the
templates of a model folder, whose tokenizer it reads, so that it can stand beside a real worker.
It imports no torch and is up in two seconds.

`tests.support.fakes.FakeWorker` starts, pauses and kills such processes.
"""

from __future__ import annotations

import argparse
import sys
import time


def main() -> int:
    options = _parser().parse_args()
    if options.clock_offset:
        _shift_clock(options.clock_offset)
    # Late: what has been imported has the clock that it found.
    from contract.errors import PrefillqError
    from tests.support.scripted_engine import run_fake_worker

    try:
        return run_fake_worker(options)
    except PrefillqError as error:  # as the command line has it
        print(error, file=sys.stderr)  # noqa: T201
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fake_worker", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--model", required=True, help="folder of the model to pretend to serve")
    add("--template", action="append", default=[], metavar="PATTERN")
    add("--exclude", action="append", default=[], metavar="PATTERN")
    add("--pin", action="append", default=[], metavar="TEMPLATE[@LABEL]")
    add("--warm", choices=("none", "used", "all"), default="none")
    add("--cache-bytes", type=int, default=2**30, help="a token of a prefix takes one byte")
    add("--batch", type=int, default=4, help="jobs at once")
    add("--answer", help="the text of every answer; default: a digest of the prompt")
    add("--answer-chars", type=int, help="the length of every answer")
    add("--tokens", type=int, default=4, help="tokens of every answer")
    add("--seconds-per-token", type=float, default=0.0)
    add("--prefill-s", type=float, default=0.0, help="seconds that a version's prefix takes")
    add("--die-on", metavar="TEXT", help="kill -9 oneself on a prompt with this text in it")
    add("--fail-on", metavar="TEXT", help="crash inside the job")
    add("--fail-match", metavar="REGEX", help="crash inside the job on a prompt that matches")
    add("--nan-on", metavar="TEXT", help="scores that are not finite")
    add("--hang-on", metavar="TEXT", help="never return, as a wedged device")
    add("--watchdog", type=float, default=300.0, metavar="S")
    add("--metrics-port", type=int)
    add("--metrics-tenant", action="store_true")
    add("--clock-offset", type=float, default=0.0, metavar="S", help="seconds this clock is ahead")
    add("--log-level", default="INFO")
    return parser


def _shift_clock(seconds: float) -> None:
    """Put this process's wall clock ahead; the monotonic one stays, as on a machine set wrong."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + round(seconds * 1e9)


if __name__ == "__main__":
    sys.exit(main())
