"""Is this a JSON Schema at all? Asked of `input.schema` and of `output.schema`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError


def check_metaschema(schema: Mapping[str, Any], field: str) -> None:
    """Raise ValueError unless it is one of draft 2020-12, with patterns that Python can read."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"{field} is no JSON Schema: {error.message:.200}") from error
    except (re.error, RecursionError, OverflowError) as error:
        # `a{99999999999}` and `((((...`: no errors of the pattern's, for Python.
        raise ValueError(f"{field} has a pattern that is too much: {error}") from error
