"""Versions as text: equal content gives equal bytes, and every content comes back equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from contract.errors import InvalidInput, SpecInvalid
from templates.examples import example_paths
from templates.spec import TemplateSpec, load_spec, parse_spec
from templates.transfer import bundle_text, parse_bundle, spec_text
from templates.yaml_source import load_documents

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | TEXTS
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def _spec(content: str = "Hello {{ note }}", **changed: Any) -> TemplateSpec:
    return parse_spec(
        {
            "tenant": "acme",
            "name": "notes",
            "model": "some-model",
            "messages": [{"role": "user", "content": content}],
            "input": {
                "schema": {"type": "object", "properties": {"note": {}}, "required": ["note"]}
            },
            **changed,
        }
    )


def _read(text: str) -> TemplateSpec:
    return parse_spec(yaml.safe_load(text))


@settings(deadline=None)
@given(text=TEXTS, sample=st.dictionaries(TEXTS, JSON, max_size=3))
def test_any_content_comes_back_equal(text: str, sample: dict[str, Any]) -> None:
    """Line breaks, trailing blanks, control codes, emoji, words that YAML reads as booleans."""
    spec = _spec(text.replace("{{", "") + "{{ note }}", samples=[{"input": sample}])
    again = _read(spec_text(spec))
    assert again == spec
    assert spec_text(again) == spec_text(spec)


@pytest.mark.parametrize("path", example_paths(), ids=lambda path: path.name)
def test_examples_come_back_equal(path: Path) -> None:
    """What authors write, as opposed to what a generator makes up."""
    spec = load_spec(path)
    assert _read(spec_text(spec)) == spec


def test_texts_of_several_lines_stay_blocks() -> None:
    """So that an export reads like a file that somebody wrote."""
    assert "    content: |-\n      One\n\n      Two {{ note }}\n" in spec_text(
        _spec("One\n\nTwo {{ note }}")
    )


def test_equal_content_gives_equal_bytes() -> None:
    """The order of keys, and defaults written out, are no content."""
    one = _spec(samples=[{"input": {"a": 1, "b": {"c": 2, "d": 3}}}])
    plain = one.to_plain()
    other = parse_spec(
        {
            "samples": [{"input": {"b": {"d": 3, "c": 2}, "a": 1}, "expected": None}],
            "strict": False,
            **{name: plain[name] for name in reversed(plain) if name not in ("samples", "strict")},
        }
    )
    assert spec_text(other) == spec_text(one)


def test_bundle_comes_back(tmp_path: Path) -> None:
    """Versions in their order, labels on their versions, and the same bytes again."""
    specs = (_spec("One {{ note }}"), _spec("Two {{ note }}\n---\n"), _spec("Three {{ note }}"))
    labels = {"production": 2, "canary": 0}
    file = tmp_path / "bundle.yaml"
    file.write_text(bundle_text(specs, labels), "utf-8")
    bundle = parse_bundle(load_documents(file), source="bundle.yaml")
    assert bundle.specs == specs
    assert bundle.labels == labels
    assert bundle_text(bundle.specs, bundle.labels) == file.read_text("utf-8")


def test_plain_file_is_a_bundle_of_one() -> None:
    """It says nothing of labels."""
    bundle = parse_bundle([_spec().to_plain()], source="t.yaml")
    assert (bundle.specs, bundle.labels) == ((_spec(),), None)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ({"bundle": "acme/other"}, "mixes templates"),
        ({"bundle": "acme/notes", "labels": {"production": 2}}, "point nowhere"),
        ({"bundle": "acme/notes", "labels": {"production": 0}}, "point nowhere"),
        ({"bundle": "acme/notes", "labels": ["production"]}, "point nowhere"),
        ({"bundle": "acme/notes", "labels": {"production": True}}, "point nowhere"),
        ({"bundle": "acme/notes", "labels": {"no name": 1}}, "not a label name"),
    ],
)
def test_damaged_bundle_is_refused(header: dict[str, Any], problem: str) -> None:
    """Before anything of it is published."""
    with pytest.raises((SpecInvalid, InvalidInput), match=problem):
        parse_bundle([header, _spec().to_plain()], source="bundle.yaml")


def test_empty_file_is_refused() -> None:
    """With what was expected."""
    with pytest.raises(SpecInvalid, match="empty"):
        parse_bundle([], source="bundle.yaml")


def test_bundle_without_versions_is_refused() -> None:
    """A header alone restores nothing."""
    with pytest.raises(SpecInvalid, match="no versions"):
        parse_bundle([{"bundle": "acme/notes"}], source="bundle.yaml")
