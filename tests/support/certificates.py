"""Certificates of our own making, by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl_is_there() -> bool:
    return shutil.which("openssl") is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates; `ca` is its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.ca, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        _openssl(
            *("req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", self._key, "-out", self.ca),
        )

    def issue(self, name: str, *, san: str) -> Issued:
        """A certificate for a host (`san` as `DNS:localhost` or `IP:127.0.0.1`) or a client."""
        paths = {kind: self._folder / f"{name}.{kind}" for kind in ("key", "csr", "crt", "ext")}
        _openssl(
            *("req", *_KEY, "-subj", f"/CN={name}"),
            *("-keyout", paths["key"], "-out", paths["csr"]),
        )
        paths["ext"].write_text(f"subjectAltName={san}\n", "ascii")
        _openssl(
            *("x509", "-req", "-in", paths["csr"], "-days", "2", "-extfile", paths["ext"]),
            *("-CA", self.ca, "-CAkey", self._key, "-CAcreateserial", "-out", paths["crt"]),
        )
        return Issued(cert=paths["crt"], key=paths["key"])


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=30)
