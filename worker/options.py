"""What `prefillq worker start` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from contract.settings import GIB

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of one worker process."""

    model: str = DEFAULT_MODEL
    templates: tuple[str, ...] = ()  # patterns such as "acme/*"; none means all
    device: str = "auto"
    dtype: str = "auto"
    cache_bytes: int = 2 * GIB
    warm: Literal["none", "all"] = "none"  # all: labelled versions are prefilled before jobs
    threads: int | None = None  # CPU threads for torch; None leaves torch's choice
    audit: bool = False  # recompute an entry's checksum after every job
