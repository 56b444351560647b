"""Which kinds of rotary position a model has."""

from __future__ import annotations

from typing import Any


def rotary_types(module: Any) -> set[str]:
    """The names under `transformers.modeling_rope_utils`, of all layers."""
    found: set[str] = set()
    for part in module.modules():
        given = getattr(part, "rope_type", None)
        if isinstance(given, dict):  # one for each kind of layer
            found.update(given.values())
        elif given is not None:
            found.add(given)
    return found
