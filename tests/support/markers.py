"""Texts planted where users write, and looked for where they must not turn up."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from pathlib import Path

# The second is the sample of the templates that most tests publish.
_PLANTED = re.compile(r"planted-[a-z]+-[0-9a-f]{8}|The parcel came on Monday")


_LOG_BYTES = 2**24  # of one log; no test writes as much


def plant(what: str) -> str:
    """A text to be found again; `what` says where it was planted, in letters."""
    return f"planted-{what}-{secrets.token_hex(4)}"


def planted_in(text: str) -> list[str]:
    """All planted texts in a log, an error or an output, each once."""
    return sorted(set(_PLANTED.findall(text)))


def leaks(sections: Iterable[tuple[str, str, str]], folder: object) -> list[str]:
    """Planted texts in what pytest captured of a test, stdout aside, and in logs in its folder.

    `sections` are (when, name, text) as pytest keeps them.
    """
    texts = [text for _, name, text in sections if name != "stdout"]
    logs = sorted(folder.rglob("*.log")) if isinstance(folder, Path) else []
    texts += [
        path.read_bytes()[:_LOG_BYTES].decode("utf-8", "replace") for path in logs if path.is_file()
    ]
    return planted_in("\n".join(texts))
