"""What workers say of themselves while they live, as whoever lists workers reads it.

Reports come out of Redis, from workers of other releases and from whoever may write there.
`worker.presence` writes them: numbers that always change in one key, and what is said of each
template in the fields of another, so that who asks for one template reads no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
REVISION = ""  # a field of `keys.worker_templates`, and no address
_MOST_BY_NAME = 256  # templates; of more it is cheaper to read all that a worker has

_EQUAL = ("identical", "within_tolerance")  # what the check of a prefix found; else it is not used

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


def is_warm(listed: object) -> bool:
    """True for an entry of a report's `versions` whose prefix jobs find in memory and may use."""
    return (
        isinstance(listed, Mapping)
        and listed.get("cached") is True
        and listed.get("parity") in _EQUAL
    )


def list_workers(
    client: Client, settings: Settings, *, templates: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Descriptions of all workers that reported within EXPIRES_S, by id.

    `templates`: addresses; of others nothing need be told.
    """
    with errors_explained(settings):
        ids = sorted(text(worker_id) for worker_id in client.zrange(keys.WORKERS, 0, -1))
        pipe = client.pipeline(transaction=True)
        ask_reports(pipe, ids, templates)
        replies = pipe.execute(raise_on_error=False)
    return read_reports(ids, replies, templates)


def ask_reports(pipe: Any, ids: Sequence[str], templates: Sequence[str] | None) -> None:
    """Put into the pipeline what `read_reports` wants the replies to: two for each."""
    for worker_id in ids:
        pipe.get(keys.worker(worker_id))
        if _by_name(templates):
            pipe.hmget(keys.worker_templates(worker_id), [REVISION, *(templates or ())])
        else:
            pipe.hgetall(keys.worker_templates(worker_id))


def read_reports(
    ids: Sequence[str],
    replies: Sequence[Any],
    templates: Sequence[str] | None,
    *,
    unpacked: Callable[[bytes], Any] = unpack,
) -> list[dict[str, Any]]:
    """What each worker reported; without those that expired or are no reports.

    `unpacked`: `unpack_unchecked`, for who checks the few values that it takes. Raises what a
    reply is, if it is an error and no matter of one worker's keys.
    """
    found = []
    for worker_id, body, fields in zip(ids, replies[::2], replies[1::2], strict=True):
        for reply in (body, fields):
            if isinstance(reply, Exception) and not str(reply).startswith("WRONGTYPE"):
                raise reply
        report = _read(worker_id, body, unpacked)
        if report is None:
            continue
        told = _by_field(fields, templates)
        found.append(_with_templates(worker_id, report, told, unpacked))
    return found


def _by_field(reply: object, templates: Sequence[str] | None) -> dict[str, Any]:
    """The reply to HMGET or HGETALL; nothing of what is neither."""
    if isinstance(reply, Mapping):
        return {text(name): value for name, value in reply.items()}
    if isinstance(reply, Sequence):
        return dict(zip([REVISION, *(templates or ())], reply, strict=True))
    return {}


def _by_name(templates: Sequence[str] | None) -> bool:
    return templates is not None and len(templates) <= _MOST_BY_NAME


def _with_templates(
    worker_id: str, report: dict[str, Any], told: dict[str, Any], unpacked: Callable[[bytes], Any]
) -> dict[str, Any]:
    """The report with `templates` and `versions`, by address.

    A worker of an older release has them in the report itself.
    """
    whole = {"templates": [], "versions": [], **report}
    if told.pop(REVISION, None) is None:
        return whole
    served, versions = [], []
    for address in sorted(told):
        part = _read(worker_id, told[address], unpacked)
        if part is None:
            continue
        if part.get("served") is True:
            served.append(address)
        if isinstance(of_it := part.get("versions"), list):
            versions += of_it
    return whole | {"templates": served, "versions": versions}


def _read(worker_id: str, body: object, unpacked: Callable[[bytes], Any]) -> dict[str, Any] | None:
    if not isinstance(body, bytes):
        return None
    try:
        data = unpacked(body)
    except CodecError as error:
        log.warning("report_unreadable", worker=worker_id, error=str(error))
        return None
    return data if isinstance(data, dict) else None
