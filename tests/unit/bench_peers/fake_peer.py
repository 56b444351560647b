"""A peer's process for the tests of the driver: `python -m ...fake_peer WAY`."""

from __future__ import annotations

import os
import sys
import threading
import time

from bench.peers.protocol import Answer, Load, Work, serve

ANSWERS = {
    "garbage": b"not an answer\n",
    "list": b"[1, 2]\n",
    "half": b'{"seconds": 1.0}\n',
    "hang": b"",
}


class Echo:
    """Answers with the prompts' own ids, reversed. Prints, and leaves a thread running."""

    def load(self, load: Load) -> str:
        sys.stdout.write("a library's chatter on standard output\n")
        os.write(1, b"and below Python's own buffer\n")
        threading.Thread(target=time.sleep, args=(100,)).start()
        return f"fake of {load.model}, eos {load.eos_ids}"

    def run(self, work: Work) -> Answer:
        if work.max_new_tokens == 13:
            raise ValueError("thirteen is refused")
        return Answer(seconds=0.5, token_ids=[prompt[::-1] for prompt in work.prompts])


def _misbehave(way: str) -> None:
    sys.stdin.readline()
    os.write(2, b"last words\n")
    if way == "crash":
        os._exit(7)
    os.write(1, ANSWERS[way])
    time.sleep(60)


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        serve(Echo())
    else:
        _misbehave(sys.argv[1])
