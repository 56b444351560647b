"""Lint: what is wrong with a template, and what makes its prefix worth little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.errors import TemplateRefused
from contract.model_folder import ModelFolder
from contract.settings import Settings
from templates.compile import compile_template
from templates.examples import example_paths
from templates.lint import Finding, lint_prompt, lint_spec
from templates.prepare import Preparer
from templates.spec import load_spec, parse_spec
from templates.tokenizer import TemplateTokenizer

LONG = "Read the note with care. Names, numbers and dates are repeated as they are written. " * 4
SAMPLES = [{"input": {"note": "The parcel came on Monday."}}, {"input": {"note": "Nobody called."}}]


def _data(**changed: Any) -> dict[str, Any]:
    return {
        "tenant": "acme",
        "name": "notes",
        "model": "smollm2-135m-instruct",
        "messages": [
            {"role": "system", "content": LONG},
            {"role": "user", "content": "{{ note }}"},
        ],
        "input": {
            "schema": {
                "type": "object",
                "properties": {"note": {"type": "string"}},
                "required": ["note"],
            }
        },
        "samples": SAMPLES,
        **changed,
    }


def _schema(**properties: Any) -> dict[str, Any]:
    return {"schema": {"type": "object", "properties": properties, "required": list(properties)}}


def _of_spec(**changed: Any) -> list[Finding]:
    return list(lint_spec(parse_spec(_data(**changed))))


@pytest.fixture(scope="module")
def tokenizer(smollm2: ModelFolder) -> TemplateTokenizer:
    return TemplateTokenizer.load(smollm2.path)


def _in_tokens(
    model: ModelFolder, tokenizer: TemplateTokenizer, **changed: Any
) -> dict[str, Finding]:
    spec = parse_spec(_data(**changed))
    compiled = compile_template(spec, model, tokenizer)
    found = lint_prompt(spec, compiled, tokenizer, max_positions=model.max_positions)
    return {finding.code: finding for finding in found}


def test_sound_template_has_no_findings(smollm2: ModelFolder, tokenizer: TemplateTokenizer) -> None:
    """Fixed text first, the variable last, samples that fit."""
    assert _of_spec() == []
    assert _in_tokens(smollm2, tokenizer) == {}


@pytest.mark.parametrize(
    ("changed", "level", "code", "part"),
    [
        ({"input": _schema(note={}, mood={})}, "warning", "unused_variable", "mood"),
        ({"samples": []}, "warning", "no_samples", "no samples"),
        (
            {"messages": [{"role": "user", "content": "Hello"}], "input": _schema()},
            "warning",
            "no_variables",
            "no message holds a variable",
        ),
        ({"samples": [{"input": {"note": 3}}]}, "error", "sample_invalid", "sample 1"),
        ({"samples": [*SAMPLES, {"input": {}}]}, "error", "sample_invalid", "sample 3"),
        (
            {
                "output": {"choices": ["yes", "no"]},
                "samples": [{"input": {"note": "x"}, "expected": "maybe"}],
            },
            "error",
            "expected_impossible",
            "'maybe'",
        ),
        (
            {"input": _schema(note={"$ref": "#/$defs/nowhere"})},
            "error",
            "schema_unusable",
            "nowhere",
        ),
    ],
)
def test_file_alone_shows_it(changed: dict[str, Any], level: str, code: str, part: str) -> None:
    """Each with its level, the place and a remedy."""
    found = {finding.code: finding for finding in _of_spec(**changed)}
    assert found[code].level == level
    assert part in found[code].message
    assert found[code].remedy


def test_short_prefix_is_remarked(smollm2: ModelFolder, tokenizer: TemplateTokenizer) -> None:
    """Few fixed tokens, or a small share of the prompt, are not worth a cache."""
    few = _in_tokens(
        smollm2, tokenizer, messages=[{"role": "user", "content": "{{ note }}"}], samples=[]
    )
    # SmolLM2's chat template adds a system message of its own; the prefix is that.
    assert "short_prefix" not in few
    short = [{"role": "system", "content": "Hi."}, {"role": "user", "content": "{{ note }}"}]
    few = _in_tokens(smollm2, tokenizer, messages=short, samples=[])
    assert "tokens are the same for every job" in few["short_prefix"].message
    share = _in_tokens(smollm2, tokenizer, samples=[{"input": {"note": "many words " * 200}}])
    assert "% of a sample's prompt" in share["short_prefix"].message
    assert share["short_prefix"].level == "warning"


def test_text_behind_the_variable_is_counted(
    smollm2: ModelFolder, tokenizer: TemplateTokenizer
) -> None:
    """The tokens that a reorder saves are those that the prefix then gains, or nearly so."""
    before = [
        {"role": "system", "content": "Sort notes. Here is the note: {{ note }}\n\n" + LONG},
        {"role": "user", "content": "Go."},
    ]
    found = _in_tokens(smollm2, tokenizer, messages=before)["variable_before_text"]
    saved = int(found.message.split()[1])
    assert found.level == "warning"
    assert "{{ note }}" in found.message
    after = [
        {"role": "system", "content": "Sort notes.\n\n" + LONG},
        {"role": "user", "content": "Here is the note: {{ note }}"},
    ]
    lengths = [
        len(compile_template(parse_spec(_data(messages=messages)), smollm2, tokenizer).prefix_ids)
        for messages in (before, after)
    ]
    assert saved == pytest.approx(lengths[1] - lengths[0], abs=8)
    assert saved > 60


def test_prompt_over_the_models_positions_is_an_error(
    smollm2: ModelFolder, tokenizer: TemplateTokenizer
) -> None:
    """With the numbers; case P12: prompt and new tokens together must fit the model."""
    found = _in_tokens(smollm2, tokenizer, generation={"max_new_tokens": 32_000})
    assert found["over_model_limit"].level == "error"
    assert str(smollm2.max_positions) in found["over_model_limit"].message


@pytest.fixture(scope="module")
def preparer(smollm2: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> Preparer:
    """One for all tests here, so that the tokenizer is read once."""
    settings = Settings(cache_dir=tmp_path_factory.mktemp("cache"))
    settings.models_dir.mkdir()
    (settings.models_dir / smollm2.name).symlink_to(smollm2.path)
    return Preparer(settings)


def _lint_text(preparer: Preparer, folder: Path, text: str) -> list[Finding]:
    path = folder / "template.yaml"
    path.write_text(text, "utf-8")
    return preparer.lint(path)


@pytest.mark.parametrize("text", ["messages: [", "tenant: acme\n", "", "--- 1\n--- 2\n"])
def test_no_template_is_one_error(preparer: Preparer, tmp_path: Path, text: str) -> None:
    """A file that cannot be read as a template is a finding like others, not a crash."""
    (found,) = _lint_text(preparer, tmp_path, text)
    assert (found.level, found.code) == ("error", "spec_invalid")


def test_refusal_of_the_compiler_is_an_error(preparer: Preparer, tmp_path: Path) -> None:
    """Control tokens in the author's text; the compiler's own words and remedy."""
    messages = [{"role": "user", "content": "{{ note }}<|im_end|>"}]
    (found,) = _lint_text(preparer, tmp_path, yaml.safe_dump(_data(messages=messages)))
    assert (found.level, found.code) == ("error", "template_refused")
    assert "<|im_end|>" in found.message
    assert found.remedy


def test_lint_errors_keep_a_template_from_being_published(preparer: Preparer) -> None:
    """The first one is the reason given."""
    spec = parse_spec(_data(samples=[{"input": {"note": 3}}]))
    with pytest.raises(TemplateRefused, match=r"sample 1 does not fit.*\$\.note"):
        preparer.prepare(spec)


def test_missing_model_only_limits_lint(tmp_path: Path) -> None:
    """The file can still be checked; what was skipped is said."""
    found = _lint_text(
        Preparer(Settings(cache_dir=tmp_path)), tmp_path, yaml.safe_dump(_data(samples=[]))
    )
    assert [(f.level, f.code) for f in found] == [
        ("warning", "no_samples"),
        ("warning", "model_missing"),
    ]


@pytest.mark.parametrize("path", example_paths(), ids=lambda path: path.name)
def test_examples_are_clean(preparer: Preparer, path: Path) -> None:
    """What readers copy has no findings at all."""
    assert preparer.lint(path) == []


def test_triage_example_has_a_long_prefix(preparer: Preparer) -> None:
    """Measurements are made with it: policy and worked examples of more than 600 tokens."""
    (path,) = [path for path in example_paths() if path.name == "support-triage.yaml"]
    assert 600 <= len(preparer.prepare(load_spec(path)).compiled.prefix_ids) <= 720
