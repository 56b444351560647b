"""What users write: template files, batches, variables, arguments, names and settings."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any
from unittest.mock import patch

import yaml
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher

from contract.canonical import digest
from contract.codec import pack, unpack
from contract.console import json_line, read_json_argument
from contract.errors import InvalidInput
from contract.ids import TemplateAddress, check_name, parse_address, tenant_of
from contract.settings import Settings
from contract.types import JobState, Result
from producer.batch.formats import OWN, Format
from producer.batch.lines import BadLine, BatchLine, batch_name, lines_of, read_lines
from producer.batch.openai_lines import OPENAI
from producer.batch.results import Output
from producer.validate import VariablesChecker
from scale.simulate import Pool, simulate
from scale.trace import read_trace
from scale.workload import workload
from templates.finding import located
from templates.lint import lint_spec
from templates.lint_prefix import variables_last
from templates.output_schema import for_grammar, schema_text, without_costly
from templates.spec import TemplateSpec, parse_spec
from templates.transfer import bundle_text, parse_bundle, spec_text
from templates.yaml_source import content_places, parse_documents
from tests.fuzz.judge import Found, check_shown, judged
from tests.fuzz.mutations import BYTES, PLAIN, TEXTS, edited, edited_json, edited_plain
from tests.fuzz.targets import Target
from tests.support.job_lines import job_line
from tests.support.published import make_spec, make_version

_MAX_LINE = 4096

FILES = [
    file.read_text("utf-8")
    for file in sorted((resources.files("templates") / "examples").iterdir(), key=str)
    if file.name.endswith(".yaml")
]
SPECS = [yaml.safe_load(text) for text in FILES]
_YAML = (
    *TEXTS,
    *("&a ", "*a ", "<<: ", "!!int ", "!!bool x", "!!python/object:os.system ", "!x ", "? ", "- "),
    *(
        "---\n",
        "...\n",
        "%YAML 9.9\n",
        "%TAG ! x\n",
        "\t",
        "|-9\n",
        ">+\n",
        "#",
        "'",
        '"',
        "{",
        "]",
    ),
    *("2001-99-99", "0o9", "0b2", ".inf", ".nan", "12:30:45", "[" * 500, "- " * 500, "{a: " * 300),
)
_SCHEMA = {
    "type": "object",
    "properties": {
        "ticket": {"type": "string", "maxLength": 50, "pattern": "^[a-z ]+$"},
        "count": {"type": "integer", "multipleOf": 0.1, "minimum": 0},
        "lines": {"type": "array", "uniqueItems": True, "items": {"$ref": "#/$defs/line"}},
    },
    "required": ["ticket"],
    "additionalProperties": False,
    "$defs": {"line": {"type": "object", "required": ["sku"], "maxProperties": 3}},
}
_VARIABLES = [
    {"ticket": "a b", "count": 3, "lines": [{"sku": "x"}, {"sku": {"deep": [1]}}]},
    {"ticket": "a"},
]
_VERSION = make_version(make_spec(schema=_SCHEMA))
_CHECKER = VariablesChecker(100_000)
_BATCH = [
    {"variables": _VARIABLES[0], "template": "acme/triage", "id": "7"},
    {"variables": _VARIABLES[1], "id": 7},
    {"variables": _VARIABLES[1], "template": "acme/other@canary"},
]
_RESULT = Result(job_id="acme.1", ref=_VERSION.ref, status=JobState.SUCCEEDED, text="x")
_OPENAI = [
    {
        "custom_id": str(n),
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }
    for n, body in enumerate(
        (
            {"model": "acme/triage@canary", "prompt": {"variables": _VARIABLES[0]}, "user": "u"},
            {"prompt": {"id": "acme/triage", "version": 3, "variables": _VARIABLES[1]}},
            {"model": "acme/triage", "messages": [{"role": "user", "content": "a"}], "n": 1},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a b"}]}]},
        )
    )
]
_OPENAI_RESULTS = [
    OPENAI.result(_RESULT, batch="0" * 16, index=1, id_="x"),
    OPENAI.refused(InvalidInput("no"), batch="0" * 16, index=2, id_=None),
    {"id": f"batch_req_{'0' * 16}_3", "response": None, "error": {"code": "expired"}},
]
_OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "label": {"enum": ["a", 1, None]},
        "when": {"type": ["string", "null"], "format": "date"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "maxItems": 3},
        "money": {"anyOf": [{"type": "number", "multipleOf": 0.01}, {"const": "none"}]},
    },
    "required": ["label"],
    "$defs": {"line": {"type": "string", "pattern": "^[a-z]{1,9}$", "maxLength": 5}},
}
_OUTPUTS = [_OUTPUT, _OUTPUT["properties"]["lines"] | {"$defs": _OUTPUT["$defs"]}]
_RESULTS = [
    {"index": n, "id": None, "batch": "0" * 16, "status": "succeeded", "usage": usage}
    for n, usage in enumerate(
        (
            None,
            {
                "prompt_tokens": 1,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        )
    )
]


def _read_yaml(text: str) -> None:
    documents = parse_documents(text)
    bundle = parse_bundle(documents, source="made up")
    places = content_places(text)
    if len(places) != len(documents):
        raise Found("other documents when lines are looked for")
    for spec, of_messages in zip(bundle.specs, places[-len(bundle.specs) :], strict=True):
        _use_spec(spec)
        if len(of_messages) != len(spec.messages):
            raise Found("other messages when lines are looked for")
        for finding in located(lint_spec(spec), spec, of_messages):
            if finding.line is not None and not 0 < finding.line <= len(text.splitlines()) + 1:
                raise Found("a line that the file has not")


def _read_spec(data: Any) -> None:
    _use_spec(parse_spec(data))


def _read_output_schema(schema: Any) -> None:
    """One that was taken can be made into a grammar, or is refused by who makes it; at once."""
    changes = {"output": {"schema": schema}, "generation": {}, "samples": []}
    spec = parse_spec(SPECS[0] | changes)
    _use_spec(spec)
    taken = spec.output.json_schema
    if taken is None:
        return
    Draft202012Validator.check_schema(for_grammar(taken))
    Draft202012Validator(without_costly(taken)).is_valid({"label": "a"})
    grammar = LLMatcher.grammar_from_json_schema(schema_text(for_grammar(taken)))
    LLMatcher.validate_grammar(grammar)


def _use_spec(spec: TemplateSpec) -> None:
    """A spec that was taken must be good for all that is done with one."""
    list(lint_spec(spec))
    digest(spec.to_plain())
    moved = variables_last(spec)
    if moved is not None and set(parse_spec(moved.to_plain()).variables) != set(spec.variables):
        raise Found("a reorder with other variables")
    if parse_spec(spec.to_plain()) != spec:
        raise Found("a spec that reads back as another")
    [again] = parse_documents(spec_text(spec))
    if parse_spec(again) != spec:
        raise Found("a spec whose file is another's")
    parse_bundle(parse_documents(bundle_text([spec], {"production": 0})), source="its bundle")


def _check(address: str, variables: Any, _key: str | None) -> None:
    parse_address(address)
    _CHECKER.check(_VERSION, variables)


def _run_batch(content: bytes, format_: Format = OWN) -> str:
    """Bad lines are outcomes and no errors; what a line came to must be fit for a file."""
    ends = set()

    def read() -> None:
        lines = lines_of(io.BytesIO(content), max_bytes=_MAX_LINE)
        batch_name(io.BytesIO(content), template=None, use_cache=True, run="", format_=format_)
        file = io.BytesIO()
        output = Output(file, "0" * 16, format_)
        for line in read_lines(
            lines,
            template="acme/triage",
            check=_check,
            max_bytes=_MAX_LINE,
            format_=format_,
            only_variable=lambda _: "ticket",
        ):
            if isinstance(line, BadLine):
                check_shown(line.error)
                json_line(line.to_dict())
                ends.add(line.error.code)
                output.refuse(line)
            else:
                ends.add("ok")
                output.write(line, _RESULT)
        again = Output(io.BytesIO(file.getvalue()), "0" * 16, format_)
        if again.indexes.bits != output.indexes.bits:
            raise Found("a line that was written and is not found again")

    judged(read)
    return "+".join(sorted(ends)) or "empty"


def _run_openai(content: bytes) -> str:
    return _run_batch(content, OPENAI)


def _reopen(content: bytes, format_: Format = OWN) -> None:
    file = io.BytesIO(content)
    output = Output(file, "0" * 16, format_)
    output.write(BatchLine(index=10**6, id="x", template="acme/triage", variables={}), _RESULT)
    Output(io.BytesIO(file.getvalue()), "0" * 16, format_)  # what was accepted can be gone on with


def _reopen_openai(content: bytes) -> None:
    _reopen(content, OPENAI)


def _unpack(data: bytes) -> None:
    value = unpack(data)
    if unpack(pack(value)) != value:
        raise Found("a value that another comes back for")


def _pack(value: Any) -> None:
    try:
        data = pack(value)
    except InvalidInput as error:
        if "$" not in error.problem:
            raise Found("an error that names no field") from error
        raise
    if unpack(data) != _as_lists(value):
        raise Found("a value that another comes back for")


def _as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_lists(item) for key, item in value.items()}
    return [_as_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _names(text: str) -> str:
    def address() -> None:
        found = parse_address(text)
        if str(found) != text or not isinstance(found, TemplateAddress):
            raise Found("an address that is spelt otherwise")

    calls = (address, lambda: tenant_of(text), lambda: check_name("tenant", text))
    return "+".join(judged(call) for call in calls)


def _argument(text: str) -> None:
    read_json_argument(text.removeprefix("@"), what="--vars")


def _settings(values: dict[str, str]) -> None:
    with _environment({f"PREFILLQ_{name}": value for name, value in values.items()}):
        loaded = Settings.load()
    if loaded.redis_url in repr(loaded):
        raise Found("a URL, and its password, in a repr")


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    usable = {n: v for n, v in values.items() if "\0" not in v and v.isprintable()}
    with patch.dict(os.environ, usable):
        yield


_TRACE = [
    {"at": 1.5, "template": "acme/a", "version": 2, "service_s": 0.5, "batch_size": 2},
    {"at": 2, "template": "acme/a", "prefix_s": 1},
    json.loads(job_line()),
    json.loads(job_line(cache_reason="cold", prefill_s=0.1, batch_size=1)),
]


def _simulate(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        load = workload(read_trace([file.name]), seed=1)
    outcome = simulate(load, Pool(workers=2, concurrency=2, cold_starts_s=(1.0,)))
    json_line(outcome.to_dict())
    assert outcome.jobs == len(load.works)


def targets() -> tuple[Target, ...]:
    """See `tests.fuzz.targets`."""
    odd_values = st.recursive(
        st.one_of(
            st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
            st.dates(), st.sampled_from(PLAIN),
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.tuples(inner),
            st.dictionaries(st.one_of(st.text(), st.integers(), st.binary()), inner, max_size=4),
        ),
        max_leaves=12,
    )  # fmt: skip
    packed = [pack(spec) for spec in SPECS] + [pack(value) for value in _VARIABLES]
    lines = st.lists(edited_json(_BATCH), max_size=4).map(b"\n".join)
    marked = st.builds(lambda mark, text: mark + text, st.sampled_from((b"", *BYTES)), lines)
    return (
        Target(
            name="yaml",
            about="template files and bundles, as text",
            inputs=edited(FILES, _YAML),
            run=lambda text: judged(lambda: _read_yaml(text)),
            short=60,
        ),
        Target(
            name="spec",
            about="templates as data: each field with other values",
            inputs=edited_plain(SPECS),
            run=lambda data: judged(lambda: _read_spec(data)),
            short=100,
        ),
        Target(
            name="codec-read",
            about="msgpack from outside",
            inputs=st.one_of(edited(packed, BYTES), st.binary()),
            run=lambda data: judged(lambda: _unpack(data)),
            short=150,
        ),
        Target(
            name="codec-write",
            about="values of every kind, to be packed",
            inputs=odd_values,
            run=lambda value: judged(lambda: _pack(value)),
            short=150,
        ),
        Target(
            name="batch",
            about="files of jobs, as bytes",
            inputs=marked,
            run=_run_batch,
            short=150,
        ),
        Target(
            name="batch-output",
            about="files of results to go on with",
            inputs=st.lists(edited_json(_RESULTS), max_size=4).map(b"\n".join),
            run=lambda data: judged(lambda: _reopen(data)),
            short=150,
        ),
        Target(
            name="trace",
            about="traces to simulate, a worker's lines and one's own",
            inputs=st.lists(edited_json(_TRACE), max_size=5).map(b"\n".join),
            run=lambda data: judged(lambda: _simulate(data)),
            short=100,
        ),
        Target(
            name="batch-openai",
            about="files of jobs in the lines of OpenAI's Batch API",
            inputs=st.lists(edited_json(_OPENAI), max_size=4).map(b"\n".join),
            run=_run_openai,
            short=150,
        ),
        Target(
            name="batch-openai-output",
            about="such files of results to go on with",
            inputs=st.lists(edited_json(_OPENAI_RESULTS), max_size=4).map(b"\n".join),
            run=lambda data: judged(lambda: _reopen_openai(data)),
            short=150,
        ),
        Target(
            name="output-schema",
            about="templates whose output.schema has other values in each place",
            inputs=edited_plain([*_OUTPUTS]),
            run=lambda schema: judged(lambda: _read_output_schema(schema)),
            short=150,
        ),
        Target(
            name="variables",
            about="a job's variables against a JSON Schema",
            inputs=edited_plain(_VARIABLES),
            run=lambda value: judged(lambda: _CHECKER.check(_VERSION, value)),
            short=150,
        ),
        Target(
            name="arguments",
            about="--vars and --prompt",
            inputs=st.one_of(
                edited_json(_VARIABLES).map(lambda data: data.decode("utf-8", "surrogateescape")),
                st.text(),
            ),
            run=lambda text: judged(lambda: _argument(text)),
            short=150,
        ),
        Target(
            name="names",
            about="addresses, job ids and tenants",
            inputs=edited(
                ("acme/triage@3", "acme/triage@canary", "acme." + "0" * 32, "a_b-c"), TEXTS
            ),
            run=_names,
            short=200,
        ),
        Target(
            name="settings",
            about="PREFILLQ_ variables",
            inputs=st.dictionaries(
                st.sampled_from(sorted(name.upper() for name in Settings.model_fields)),
                st.one_of(
                    edited(("redis://:pw@h:1/0", "unix:///x.sock", "5", "1e3"), TEXTS), st.text()
                ),
                max_size=3,
            ),
            run=lambda values: judged(lambda: _settings(values)),
            short=100,
        ),
    )
