"""Which JSON Schemas an answer can be held to, and what they mean for its text.

The grammar that a worker makes of a schema could take more; this is the part of which every
keyword is enforced while tokens are chosen, in bounded time, so that nothing is left to luck. No
model is needed to tell. docs/templates.md has the list for authors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator

from contract.canonical import canonical_json
from templates.metaschema import check_metaschema

MAX_BYTES = 64 * 1024
MAX_PARTS = 2_000  # schemas within the schema, each $ref counted as a copy of what it names
MAX_VALUES = 1_000  # in one enum
MAX_COUNT = 4_096  # of minLength, maxLength, minItems, maxItems, and a pattern's {n,m}
MAX_PATTERN = 256
# RFC 8259, section 6: beyond it readers do not agree on a number.
MAX_NUMBER = 2**53 - 1
FORMATS = frozenset(
    "date date-time time duration email hostname ipv4 ipv6 uuid uri".split()  # noqa: SIM905
)

# What a validator in Python checks inexactly: a float is seldom a whole multiple of 0.01.
INEXACT = frozenset({"multipleOf"})
# And slowly too: a pattern may take `re` exponential time.
COSTLY = INEXACT | {"pattern"}
_WORDS = frozenset(
    "title description examples default deprecated readOnly writeOnly $comment".split()  # noqa: SIM905
)
_RANGE = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_OF_TYPE: Mapping[str, set[str]] = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": _RANGE,
    "number": _RANGE,
    "boolean": set(),
    "null": set(),
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
}
_PAIRS = (
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minimum", "maximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
    ("minimum", "exclusiveMaximum"),
    ("exclusiveMinimum", "maximum"),
)
_INSTEAD = {
    "oneOf": "anyOf",
    "allOf": "one schema with all of it",
    "prefixItems": "an object with a property for each place",
    "patternProperties": "an array of objects with a property for the key",
    "uniqueItems": "a check of the answer",
    "$id": "places inside it (#/$defs/...)",
    "definitions": "$defs",
}
_REF = re.compile(r"#/\$defs/([^/~%]+)")
# Groups that look around or back are no regular language; what follows a backslash may be that too.
_NOT_REGULAR = re.compile(r"\(\?(?!:)|\\[1-9bBAZzGkK]|\\p|\\P|[*+?}]\+")
_COUNTED = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def check_output_schema(schema: Mapping[str, Any]) -> None:
    """Raise ValueError that says what is wrong, and where, for a schema that cannot be enforced."""
    size = len(canonical_json(schema).encode("utf-8"))
    if size > MAX_BYTES:
        raise ValueError(f"output.schema has {size} bytes; at most {MAX_BYTES}")
    check_metaschema(schema, "output.schema")
    _Check(schema).all()


def for_grammar(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with what its silence means spelled out, for whoever makes a grammar of it.

    Objects have no other properties than those they name, and numbers stay where every reader of
    JSON understands them alike. Words for people are left out.
    """
    return {
        key: {name: for_grammar(part) for name, part in value.items()}
        if key in ("properties", "$defs")
        else for_grammar(value)
        if key == "items"
        else [for_grammar(part) for part in value]
        if key == "anyOf"
        else value
        for key, value in schema.items()
        if key not in _WORDS
    } | _unsaid(schema)


def without_costly(schema: Any, costly: frozenset[str] = COSTLY) -> Any:
    """The schema without these keywords, wherever in it."""
    if isinstance(schema, list):
        return [without_costly(part, costly) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: without_costly(part, costly) for name, part in value.items()}
        if key in ("properties", "$defs")
        else without_costly(value, costly)
        if key in ("items", "anyOf")
        else value
        for key, value in schema.items()
        if key not in costly
    }


def schema_text(schema: Mapping[str, Any]) -> str:
    """One spelling of a schema. The order of its keys counts: it is that of the answer."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def endless_places(schema: Mapping[str, Any]) -> list[str]:
    """Where an answer may grow until its tokens run out, as `$.lines[].note has no maxLength`."""
    found = _endless(schema, schema.get("$defs", {}), "$")
    return list(dict.fromkeys(found))


def _unsaid(schema: Mapping[str, Any]) -> dict[str, Any]:
    types = _types(schema)
    said: dict[str, Any] = {}
    if "enum" in schema or "const" in schema:
        return said
    if "object" in types:
        said["additionalProperties"] = False
    if types & {"integer", "number"}:
        if not schema.keys() & {"minimum", "exclusiveMinimum"}:
            said["minimum"] = -MAX_NUMBER
        if not schema.keys() & {"maximum", "exclusiveMaximum"}:
            said["maximum"] = MAX_NUMBER
    return said


def _types(schema: Mapping[str, Any]) -> set[str]:
    types = schema.get("type", [])
    return {types} if isinstance(types, str) else set(types)


def _endless(schema: Mapping[str, Any], defs: Mapping[str, Any], place: str) -> Iterator[str]:
    if "$ref" in schema:
        yield from _endless(defs[_name(schema["$ref"])], defs, place)
    for branch in schema.get("anyOf", ()):
        yield from _endless(branch, defs, place)
    if "enum" in schema or "const" in schema:
        return
    types = _types(schema)
    if "string" in types and not schema.keys() & {"maxLength", "pattern", "format"}:
        yield f"{place} has no maxLength"
    if "array" in types:
        if "maxItems" not in schema:
            yield f"{place} has no maxItems"
        yield from _endless(schema["items"], defs, f"{place}[]")
    for name, part in schema.get("properties", {}).items():
        yield from _endless(part, defs, f"{place}.{name}")


def _name(ref: str) -> str:
    found = _REF.fullmatch(ref)
    return "" if found is None else found[1]


class _Check:
    """One walk through a schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._defs: Mapping[str, Any] = schema.get("$defs", {})
        self._sizes: dict[str, int] = {}  # of what a $ref names
        self._open: list[str] = []  # names that are being looked at, outermost first

    def all(self) -> None:
        if self._size(self._schema, "output.schema", root=True) > MAX_PARTS:
            raise ValueError(
                f"output.schema has over {MAX_PARTS} parts, each $ref counted as what it names"
            )
        for name in self._defs:  # also those that nothing refers to
            self._named(name)

    def _size(self, schema: Any, place: str, *, root: bool = False) -> int:
        """How many parts it has. Raises ValueError."""
        if not isinstance(schema, dict):
            # A ValueError, which is what a model's validator may raise.
            raise ValueError(  # noqa: TRY004
                f"{place} is {schema!r:.20}, which lets anything pass; give it a type"
            )
        said = {key for key in schema if key not in _WORDS}
        if root:
            said -= {"$schema", "$defs"}
        if "$ref" in said:
            return self._ref(schema, said, place)
        if "anyOf" in said:
            self._only(said, {"anyOf"}, place)
            return 1 + sum(
                self._size(part, f"{place}.anyOf[{n}]") for n, part in enumerate(schema["anyOf"])
            )
        if said & {"enum", "const"}:
            return self._values(schema, said, place)
        if "type" not in said:
            self._only(said, {"type"}, place)
            raise ValueError(f"{place} has none of type, enum, const, anyOf and $ref")
        types = _types(schema)
        self._only(said, {"type"}.union(*(_OF_TYPE[name] for name in types)), place)
        self._counts(schema, place)
        size = 1
        if "array" in types:
            if "items" not in said:
                raise ValueError(f"{place} is an array without items, which lets anything pass")
            size += self._size(schema["items"], f"{place}.items")
        if "object" in types:
            size += self._object(schema, place)
        return size

    def _only(self, said: set[str], known: set[str], place: str) -> None:
        for key in sorted(said - known):
            if key in ("$schema", "$defs"):
                raise ValueError(f"{place} has {key}, which belongs to the whole schema")
            instead = f"; use {_INSTEAD[key]}" if key in _INSTEAD else ""
            beside = f" beside {', '.join(sorted(said & known))}" if said & known else ""
            raise ValueError(f"{place} has {key!r:.60}, which cannot be enforced{beside}{instead}")

    def _ref(self, schema: Mapping[str, Any], said: set[str], place: str) -> int:
        self._only(said, {"$ref"}, place)
        name = _name(schema["$ref"])
        if name not in self._defs:
            raise ValueError(
                f"{place} refers to {schema['$ref']!r:.80}; use a place inside it (#/$defs/NAME)"
            )
        return 1 + self._named(name)

    def _named(self, name: str) -> int:
        if name in self._open:
            path = " -> ".join([*self._open[self._open.index(name) :], name])
            raise ValueError(
                f"output.schema refers to itself ({path:.200}); an answer would have no end"
            )
        if name not in self._sizes:
            self._open.append(name)
            self._sizes[name] = self._size(self._defs[name], f"output.schema.$defs.{name:.40}")
            self._open.pop()
        return self._sizes[name]

    def _values(self, schema: Mapping[str, Any], said: set[str], place: str) -> int:
        self._only(said, {"enum", "const", "type"}, place)
        values = schema["enum"] if "enum" in said else [schema["const"]]
        if not 1 <= len(values) <= MAX_VALUES:
            raise ValueError(f"{place} has {len(values)} values; 1 to {MAX_VALUES}")
        if "type" in said:
            of_type = Draft202012Validator({"type": schema["type"]})
            if wrong := sum(not of_type.is_valid(value) for value in values):
                raise ValueError(f"{place} has {wrong} value(s) that are not of its type")
        if {"enum", "const"} <= said and schema["const"] not in values:
            raise ValueError(f"{place} has a const that is none of its enum")
        return 1

    def _object(self, schema: Mapping[str, Any], place: str) -> int:
        properties = schema.get("properties", {})
        if not properties:
            raise ValueError(f"{place} is an object without properties, which could only be {{}}")
        if schema.get("additionalProperties", False) is not False:
            raise ValueError(
                f"{place} has additionalProperties, which cannot be enforced; leave it out (objects"
                " have the properties they name), or use an array of objects with a key"
            )
        if unknown := sorted(set(schema.get("required", ())) - set(properties)):
            raise ValueError(f"{place} requires {unknown[0]!r:.60}, which it has no property for")
        return sum(self._size(part, f"{place}.{name:.40}") for name, part in properties.items())

    def _counts(self, schema: Mapping[str, Any], place: str) -> None:
        for key in ("minLength", "maxLength", "minItems", "maxItems"):
            if schema.get(key, 0) > MAX_COUNT:
                raise ValueError(f"{place} has {key} {schema[key]}; at most {MAX_COUNT}")
        for key in _RANGE & schema.keys():
            if abs(schema[key]) > MAX_NUMBER:
                raise ValueError(f"{place} has {key} beyond {MAX_NUMBER}, where readers differ")
        for low, high in _PAIRS:
            if low in schema and high in schema and schema[low] > schema[high]:
                raise ValueError(f"{place} has {low} above {high}, which no answer can meet")
        if schema.get("format") not in (None, *FORMATS):
            known = ", ".join(sorted(FORMATS))
            raise ValueError(f"{place} has the format {schema['format']!r:.40}; known: {known}")
        if "pattern" in schema:
            self._pattern(schema["pattern"], place)

    def _pattern(self, pattern: str, place: str) -> None:
        if len(pattern) > MAX_PATTERN:
            raise ValueError(
                f"{place} has a pattern of {len(pattern)} characters; at most {MAX_PATTERN}"
            )
        if found := _NOT_REGULAR.search(pattern.replace("\\\\", "")):
            raise ValueError(
                f"{place} has {found[0]!r} in its pattern; use literals, classes, groups, | and"
                " repetition, which need not look around or back"
            )
        for low, high in _COUNTED.findall(pattern):
            if int(high or low) > MAX_COUNT:
                raise ValueError(f"{place} repeats over {MAX_COUNT} times in its pattern")
