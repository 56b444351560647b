"""What a reader must know before trusting the numbers, in sentences."""

from __future__ import annotations

from typing import Any

from report.tally import OTHERS
from report.totals import MAX_VERSIONS


def remarks(data: dict[str, Any]) -> list[str]:
    """Of a report's data; empty when all lines were good."""
    found: dict[str, Any] = data["input"]
    counted = {
        "unreadable": "speaks of a job and cannot be read; it was left out.",
        "too_long": "is longer than 64 KiB; it was left out.",
        "without_time": "has no time that can be read; it is in all numbers but those over time.",
    }
    said = [
        f"{_lines(found[field])}: each {words}" for field, words in counted.items() if found[field]
    ]
    if found["bad_values"]:
        said.append(
            f"{found['bad_values']:,} values in jobs' lines are no numbers that can be "
            "(NaN, negative, too large, of another type); they were left out."
        )
    said += [f"Reading ended early in {where}." for where in found["broken"]]
    said += [f"{name} was given twice and read once." for name in found["twice"]]
    if any(row["version"] == OTHERS for row in data["latency"]["versions"]):
        said.append(f"There are more than {MAX_VERSIONS} versions; the last to come are together.")
    return said


def _lines(count: int) -> str:
    return f"{count:,} line{'' if count == 1 else 's'}"
