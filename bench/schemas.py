"""Ten answers as teams ask for them: schemas whose every answer is whole within MAX_NEW_TOKENS."""

from __future__ import annotations

from typing import Any

MAX_NEW_TOKENS = 256


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _text(most: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": most}


_LABELS = ["payment", "error", "login", "feature", "spam"]

SCHEMAS: dict[str, dict[str, Any]] = {
    "label": _object(label={"enum": _LABELS}),
    "verdict": _object(
        reason=_text(40),
        allowed={"type": "boolean"},
        score={"type": "integer", "minimum": 0, "maximum": 100},
    ),
    "tags": _object(
        tags={"type": "array", "items": {"enum": _LABELS}, "minItems": 1, "maxItems": 4}
    ),
    "contact": {
        "type": "object",
        "properties": {
            "name": _text(24),
            "phone": {"type": "string", "pattern": r"^\+?[0-9]{6,12}$"},
            "country": {"type": "string", "pattern": "^[A-Z]{2}$"},
        },
        "required": ["name"],
    },
    "booking": _object(
        date={"type": "string", "format": "date"},
        nights={"type": "integer", "minimum": 1, "maximum": 30},
        breakfast={"type": "boolean"},
    ),
    "order": {
        "$defs": {
            "line": _object(item=_text(12), count={"type": "integer", "minimum": 1, "maximum": 99})
        },
        **_object(
            lines={"type": "array", "items": {"$ref": "#/$defs/line"}, "maxItems": 3},
            urgent={"type": "boolean"},
        ),
    },
    "money": _object(
        amount={"type": "number", "minimum": 0, "maximum": 10_000, "multipleOf": 0.01},
        currency={"enum": ["EUR", "USD", "GBP"]},
    ),
    "either": {
        "anyOf": [
            _object(kind={"const": "refund"}, order={"type": "integer", "minimum": 0}),
            _object(kind={"const": "question"}, topic=_text(20)),
        ]
    },
    "nullable": _object(
        owner={"type": ["string", "null"], "maxLength": 16},
        due={"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    ),
    "nested": _object(
        person=_object(name=_text(12), place=_object(city=_text(12), code={"type": "integer"})),
        moods={
            "type": "array",
            "items": {"type": "array", "items": {"enum": ["calm", "cross"]}, "maxItems": 2},
            "maxItems": 2,
        },
    ),
}
