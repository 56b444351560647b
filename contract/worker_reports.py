"""What workers say of themselves while they live, as whoever lists workers reads it.

Reports come out of Redis, from workers of other releases and from whoever may write there.
`worker.presence` writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from contract import keys
from contract.codec import unpack
from contract.errors import CodecError
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained, text
from contract.settings import Settings

log = get_logger(__name__)

EXPIRES_S = 10  # a killed worker is off the list after this

# More than any machine has, and few enough digits for every format.
Amount = Annotated[float, Field(ge=0, le=2**63, allow_inf_nan=False)]


class _Part(BaseModel):
    """Only what is shown; a newer worker may say more."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, hide_input_in_errors=True)


class CachePart(_Part):
    """The prefix cache in memory."""

    bytes: Amount
    max_bytes: Amount
    hits: Amount
    misses: Amount


class DiskPart(_Part):
    """The prefixes on disk."""

    bytes: Amount
    max_bytes: Amount


class RefusalPart(_Part):
    """A way to run the model that was not taken."""

    way: str
    reason: str


class AdmissionPart(_Part):
    """On what the engine was admitted."""

    seconds: Amount
    max_logit_error: float
    refused: list[RefusalPart]


class VersionPart(_Part):
    """One version that was warmed."""

    version: str
    prefix_tokens: Amount
    bytes: Amount
    cached: bool
    pinned: bool = False  # a worker of an older release does not say
    prefill_s: Amount
    parity: str
    parity_tokens: Amount


class WorkerReport(_Part):
    """The whole."""

    id: str
    model: str
    device: str
    dtype: str
    engine: str
    running: Amount
    templates: list[str]
    cache: CachePart
    disk: DiskPart | None = None
    admission: AdmissionPart | None = None  # a worker of an older release has none
    versions: list[VersionPart]


def check_report(data: Any) -> dict[str, Any]:
    """The report as it is, if all that is shown of one is in it. Raises CodecError."""
    try:
        WorkerReport.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise CodecError(
            "a worker's report cannot be read",
            given=f"{'.'.join(map(str, first['loc']))[:80]}: {first['msg'][:80]}",
            expected="what a worker of this release reports",
        ) from error
    report: dict[str, Any] = data
    return report


def list_workers(client: Client, settings: Settings) -> list[dict[str, Any]]:
    """Descriptions of all workers that reported within EXPIRES_S, by id."""
    with errors_explained(settings):
        ids = sorted(text(worker_id) for worker_id in client.zrange(keys.WORKERS, 0, -1))
        bodies = client.mget([keys.worker(worker_id) for worker_id in ids]) if ids else []
    reports = [read_report(worker_id, body) for worker_id, body in zip(ids, bodies, strict=True)]
    return [report for report in reports if report is not None]


def read_report(
    worker_id: str, body: bytes | str | None, *, unpacked: Callable[[bytes], Any] = unpack
) -> dict[str, Any] | None:
    """One worker's report; None when it expired or is no report, which hides that one only.

    `unpacked`: `unpack_unchecked`, for who checks the few values that it takes.
    """
    if not isinstance(body, bytes):
        return None
    try:
        report = unpacked(body)
    except CodecError as error:
        log.warning("report_unreadable", worker=worker_id, error=str(error))
        return None
    return report if isinstance(report, dict) else None
