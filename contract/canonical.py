"""One spelling for each value, so that equal content has an equal digest."""

from __future__ import annotations

import hashlib
import json


def canonical_json(value: object) -> str:
    """JSON with sorted keys, no blanks and no NaN; the same text for equal plain data."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest(value: object) -> str:
    """sha256 (hex) of the canonical JSON of plain data."""
    return hashlib.sha256(canonical_json(value).encode("utf-8")).hexdigest()
