"""Template specs in one line."""

from __future__ import annotations

from typing import Any

from templates.placeholders import variables_in
from templates.spec import TemplateSpec, parse_spec


def make_spec(*turns: tuple[str, str], samples: list[dict[str, Any]] | None = None) -> TemplateSpec:
    """A spec of these (role, content) turns, whose variables may be anything."""
    names = dict.fromkeys(name for _, content in turns for name in variables_in(content))
    return parse_spec(
        {
            "tenant": "acme",
            "name": "made",
            "model": "made",
            "messages": [{"role": role, "content": content} for role, content in turns],
            "input": {
                "schema": {
                    "type": "object",
                    "properties": {name: {} for name in names},
                    "required": list(names),
                }
            },
            "samples": [{"input": sample} for sample in samples or []],
        }
    )
