"""The table of `prefillq scale`."""

from __future__ import annotations

from contract.console import emit_table, note
from scale.rows import Row
from scale.watching import Seen

HEADERS = (
    *("template", "model", "waiting", "oldest s", "running", "in/s", "out/s", "service s"),
    *("workers", "slots", "warm", "desired", "because"),
)


def show(seen: Seen) -> None:
    """Rows on stdout; what does not agree, and what is assumed, on stderr."""
    if not seen.rows:
        note("prefillq: there are no templates")
        return
    totals = [row for row in seen.models if _several(seen, row)]
    emit_table(HEADERS, [_cells(row) for row in (*seen.rows, *totals)])
    for row in seen.rows:
        where = f"prefillq: {row.template} ({row.model_digest})"
        for why in row.why_not:
            note(f"{where}: {why}")
        if row.estimated:
            note(f"{where}: so many jobs wait that only the first tell which model they are for")
        if row.desired and not row.concurrency_known:
            note(
                f"{where}: no worker lives to say how many jobs it takes at once; 1 is assumed "
                "unless --concurrency says it"
            )
    for tenant, why in seen.unreadable.items():
        note(f"prefillq: {tenant} is left out, its keys cannot be read ({why})")


def _several(seen: Seen, model: Row) -> bool:
    return sum(row.model_digest == model.model_digest for row in seen.rows) > 1


def _cells(row: Row) -> tuple[object, ...]:
    warm = " ".join(f"@{version}:{count}" for version, count in row.warm.items())
    return (
        row.template or "(all)",
        row.model or row.model_digest,
        f"{'~' if row.estimated else ''}{row.waiting}",
        f"{row.oldest_s:.1f}",
        row.running,
        f"{row.arrivals_per_s:.2f}",
        f"{row.served_per_s:.2f}",
        "-" if row.service_s is None else f"{row.service_s:.3f}",
        f"{row.workers}{f' (+{row.draining} ending)' if row.draining else ''}",
        f"{row.concurrency:g}{'' if row.concurrency_known else '?'}",
        warm or "-",
        row.desired,
        f"{row.because}, retired" if row.retired else row.because,
    )
