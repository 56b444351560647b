"""What a message may say of a value that is a prompt, or a part of one: its kind and its size.

Exceptions end in logs, and logs in places where prompts must not be. Names of fields are shown,
values are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for the one function that is given its errors
    from jsonschema.exceptions import ValidationError

_SHOWN_CHARS = 60
_PATH_CHARS = 120
_SHOWN_NAMES = 8


def describe(value: object) -> str:
    """`text of 27 characters`, `a list of 3`, `an object with the fields a, b`; never a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return f"text of {len(value)} characters"
        case list() | tuple():
            return f"a list of {len(value)}"
        case Mapping():
            return f"an object with {_fields(value)}"
        case _:
            return f"a value of type {type(value).__name__}"


def place_and_rule(error: ValidationError) -> tuple[str, str, str]:
    """(place, what is there, what should be) of a value that does not fit its JSON Schema.

    The words of `error.message` would hold the value.
    """
    # Untyped: what a jsonschema ValidationError holds depends on its keyword.
    rule: Any = error.validator_value
    instance: Any = error.instance
    path = cut(error.json_path, _PATH_CHARS)
    if error.validator == "required":
        missing = next(name for name in rule if name not in instance)
        place = f"{path}.{cut(missing)} is missing"
        return place, describe(instance), f"the fields {', '.join(map(cut, rule))}"
    if error.validator == "additionalProperties" and rule is False:
        schema: Any = error.schema
        known = set(schema.get("properties", {}))
        unknown = min(set(instance) - known, default="")
        place = f"{path}.{cut(unknown)} is not a field of this template"
        return place, describe(instance), f"the fields {', '.join(sorted(known))}"
    return (
        f"{path} does not fit the template",
        describe(instance),
        f"{error.validator}: {_short(rule)}",
    )


def cut(text: object, limit: int = _SHOWN_CHARS) -> str:
    """A name or path, no longer than a message bears."""
    whole = str(text)
    return whole if len(whole) <= limit else f"{whole[:limit]}..."


def _fields(value: Mapping[Any, Any]) -> str:
    if not value:
        return "no fields"
    names = sorted(map(cut, value))
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"the fields {', '.join(names[:_SHOWN_NAMES])}{more}"


def _short(rule: object) -> str:
    # The schema is the author's text; its repr alone may be megabytes.
    return cut(repr(rule[: _SHOWN_CHARS + 1]) if isinstance(rule, str | list) else repr(rule))
