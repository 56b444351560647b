"""Reports of logs in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from report.collect import collect
from report.summary import summarise
from report.totals import Wanted

Report = Callable[..., dict[str, Any]]


@pytest.fixture
def report_of(tmp_path: Path) -> Report:
    """The numbers of a log with these lines; keywords are those of `Wanted`, and the price."""

    def report(*lines: bytes, price: float | None = None, **wanted: Any) -> dict[str, Any]:
        path = tmp_path / "worker.txt"
        path.write_bytes(b"".join(lines))
        totals, reading = collect([str(path)], Wanted(**wanted))
        return summarise(totals, reading, price_per_hour=price)

    return report
