"""What workers say of themselves, read by others. `worker.presence` writes it."""

from __future__ import annotations

from typing import Any

from contract import keys
from contract.codec import unpack
from contract.errors import CodecError
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained, text
from contract.settings import Settings

log = get_logger(__name__)


def list_workers(client: Client, settings: Settings) -> list[dict[str, Any]]:
    """Descriptions of all workers that have reported and not expired, by id."""
    with errors_explained(settings):
        ids = sorted(text(worker_id) for worker_id in client.zrange(keys.WORKERS, 0, -1))
        bodies = client.mget([keys.worker(worker_id) for worker_id in ids]) if ids else []
    reports = [read_report(worker_id, body) for worker_id, body in zip(ids, bodies, strict=True)]
    return [report for report in reports if report is not None]


def read_report(worker_id: str, body: bytes | str | None) -> dict[str, Any] | None:
    """One worker's report; None when it expired or is no report, which hides that one only."""
    if not isinstance(body, bytes):
        return None
    try:
        report = unpack(body)
    except CodecError as error:
        log.warning("report_unreadable", worker=worker_id, error=str(error))
        return None
    return report if isinstance(report, dict) else None
