"""Is this a JSON Schema at all? Asked of `input.schema` and of `output.schema`.

Also by workers, of what any tenant's admin may have written to Redis: so it takes bounded time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

# Half a millisecond each.
MAX_SCHEMAS = 4_000  # objects, and true and false
MAX_VALUES = 50_000  # of any kind
_MAX_TYPES = 100  # at one place; JSON has 7, and data that looks like a schema may have more


def check_metaschema(schema: Mapping[str, Any], field: str) -> None:
    """Raise ValueError unless it is one of draft 2020-12, with patterns that Python can read."""
    _check_size(schema, field)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"{field} is no JSON Schema: {error.message:.200}") from error
    except (re.error, RecursionError, OverflowError) as error:
        # `a{99999999999}` and `((((...`: no errors of the pattern's, for Python.
        raise ValueError(f"{field} has a pattern that is too much: {error}") from error


def _check_size(schema: Mapping[str, Any], field: str) -> None:
    """Raise ValueError for what the validator would take minutes over."""
    schemas = values = 0
    left: list[object] = [schema]
    while left:
        part = left.pop()
        values += 1
        schemas += isinstance(part, dict | bool)
        if isinstance(part, dict):
            types = part.get("type")
            if isinstance(types, list) and len(types) > _MAX_TYPES:
                # It would compare each with each other one.
                raise ValueError(f"{field} has {len(types)} types at one place; JSON has 7")
            left += part.values()
        elif isinstance(part, list):
            left += part
        if schemas > MAX_SCHEMAS or values + len(left) > MAX_VALUES:
            raise ValueError(
                f"{field} is too large; at most {MAX_SCHEMAS} schemas and {MAX_VALUES} values"
                " within it"
            )
