"""A job's variables, checked where they are made: nothing is enqueued that cannot run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import referencing
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing.exceptions import Unresolvable

from contract.codec import pack, unpack
from contract.described import cut, describe, place_and_rule
from contract.errors import InvalidInput, SpecInvalid
from templates.version import PublishedVersion

_KEPT_VALIDATORS = 2048  # a thousand templates in turn are not compiled anew each time


class VariablesChecker:
    """Checks variables against the JSON Schema of a version; compiles each schema once."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._compiled: dict[str, Any] = {}  # version digest -> validator

    def check(self, version: PublishedVersion, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The variables as a worker will see them. Raises as `plain` and `check_plain` do."""
        plain = self.plain(variables)
        self.check_plain(version, plain)
        return plain

    def plain(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The variables as they come back from msgpack. Raises InvalidInput that names the field,
        and of what it holds the kind and size: values are prompt text, and messages end in logs.
        """
        if not isinstance(variables, Mapping):
            raise InvalidInput(
                "variables are no object", given=describe(variables), expected="name: value pairs"
            )
        packed = pack(dict(variables))
        if len(packed) > self._max_bytes:
            raise _too_large(variables, len(packed), self._max_bytes)
        plain: dict[str, Any] = unpack(packed)
        return plain

    def check_plain(self, version: PublishedVersion, plain: Mapping[str, Any]) -> None:
        """Check what `plain` gave against the version's schema. Raises InvalidInput as it does,
        and SpecInvalid for a schema that cannot be applied.
        """
        try:
            error = best_match(self._validator(version).iter_errors(plain))
        except (Unresolvable, re.error, RecursionError) as problem:
            raise SpecInvalid(
                f"input.schema of {version.ref} cannot be applied",
                given=" ".join(str(problem).split())[:120],
                expected="valid patterns, and references to places inside the schema only",
                remedy="Mend the schema and publish a new version.",
            ) from problem
        if error is not None:
            raise _explained(error, version)

    def _validator(self, version: PublishedVersion) -> Any:
        validator = self._compiled.get(version.ref.digest)
        if validator is None:
            if len(self._compiled) >= _KEPT_VALIDATORS:
                self._compiled.clear()
            # An empty registry: a `$ref` to another host is an error, not a request to it.
            validator = Draft202012Validator(
                version.spec.input.json_schema, registry=referencing.Registry()
            )
            self._compiled[version.ref.digest] = validator
        return validator


def _too_large(variables: Mapping[str, Any], size: int, limit: int) -> InvalidInput:
    largest = max(variables, key=lambda name: len(pack(variables[name])))
    return InvalidInput(
        "the variables are too large",
        given=f"{size} bytes, of which $.{cut(largest)} has {len(pack(variables[largest]))}",
        expected=f"at most {limit} bytes as msgpack",
        remedy="Shorten the field, or raise PREFILLQ_MAX_VARIABLES_BYTES.",
    )


def _explained(error: Any, version: PublishedVersion) -> InvalidInput:
    place, given, expected = place_and_rule(error)
    return InvalidInput(
        place, given=given, expected=expected, remedy=f"See input.schema of {version.ref}."
    )
