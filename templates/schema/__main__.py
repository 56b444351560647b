"""Writes the shipped schema anew: `python -m templates.schema`."""

from __future__ import annotations

from templates.schema import SCHEMA_FILE, schema_text

if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), "utf-8")
