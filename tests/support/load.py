"""A producer that goes on submitting while a test looks at something else."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from producer.client import Producer
from producer.handle import JobHandle


class Load:
    """Jobs of one template, `per_s` a second, in groups; `handles` in order of submit."""

    def __init__(self, producer: Producer, template: str, *, note: str, per_s: int) -> None:
        self.handles: list[JobHandle] = []
        self._producer = producer
        self._template = template
        self._note = note
        self._group = max(1, per_s // 5)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._failure: Exception | None = None

    def versions(self) -> Counter[int]:
        """How many jobs each version has got so far."""
        return Counter(handle.view().job.ref.version for handle in list(self.handles))

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.2):
                notes = [
                    {"note": f"{self._note} {len(self.handles) + i}"} for i in range(self._group)
                ]
                self.handles += self._producer.submit_many(self._template, notes)
        except Exception as error:  # noqa: BLE001 - raised where the block ends
            self._failure = error

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Raises what submitting raised."""
        self._stop.set()
        self._thread.join(30)
        if self._failure is not None:
            raise self._failure

    def wait_all(self, timeout: float = 30.0) -> None:
        """Until every job has ended."""
        ends = time.monotonic() + timeout
        for _ in self._producer.wait(self.handles, timeout=timeout):
            assert time.monotonic() < ends


@contextmanager
def under_load(
    producer: Producer, template: str = "acme/notes", *, note: str = "live", per_s: int = 50
) -> Iterator[Load]:
    """Submit for the time of the block."""
    load = Load(producer, template, note=note, per_s=per_s)
    load.start()
    try:
        yield load
    finally:
        load.stop()
