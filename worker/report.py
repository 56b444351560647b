"""What a worker's report must hold for `prefillq worker list` to show it.

Reports come out of Redis, from workers of other releases and from whoever may write there.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from contract.errors import CodecError

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
