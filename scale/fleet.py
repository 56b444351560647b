"""Which live workers serve a queue, from what they report of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract.load import MODEL_DIGITS
from contract.worker_reports import is_warm

_MOST_SLOTS = 2**20  # of a worker that can be one


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Of a worker's report what matters here."""

    model: str  # 12 hex digits
    concurrency: int
    draining: bool
    templates: frozenset[str]  # addresses
    holds: frozenset[str]  # digests of the versions whose prefix it has in memory and uses
    keeps_none: bool  # its engine works without prefixes


class Fleet:
    """All workers, by what they serve."""

    def __init__(self, reports: Iterable[Mapping[str, Any]]) -> None:
        self._of_model: dict[str, list[Worker]] = {}
        self._of_queue: dict[tuple[str, str], list[Worker]] = {}
        for report in reports:
            worker = _read(report)
            if worker is None:
                continue
            self._of_model.setdefault(worker.model, []).append(worker)
            for address in worker.templates:
                self._of_queue.setdefault((address, worker.model), []).append(worker)

    def of_model(self, model: str) -> Sequence[Worker]:
        """Those that run it, whatever they serve. `model`: 12 hex digits."""
        return self._of_model.get(model, ())

    def of_queue(self, address: str, model: str) -> Sequence[Worker]:
        """Those that serve a template's jobs for this model."""
        return self._of_queue.get((address, model), ())


def _read(report: Mapping[str, Any]) -> Worker | None:
    """What can be read of a report, which may be of another release; None if that is too little."""
    digest, rows = report.get("model_digest"), report.get("batch_size")
    if not isinstance(digest, str) or not isinstance(rows, int) or not 0 < rows < _MOST_SLOTS:
        return None
    return Worker(
        model=digest[:MODEL_DIGITS],
        concurrency=rows,
        draining=bool(report.get("draining")),
        templates=frozenset(t for t in _list(report.get("templates")) if isinstance(t, str)),
        holds=frozenset(str(v.get("digest")) for v in _list(report.get("versions")) if is_warm(v)),
        keeps_none=report.get("engine") == "uncached",
    )


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
