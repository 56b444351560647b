"""A dry run's counts are those of the jobs: prompt, prefix and the most that may be answered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.errors import InvalidInput, ModelError
from contract.model_folder import ModelFolder
from contract.settings import Settings
from producer.batch.dry_run import DryRun
from templates.fill import fill
from templates.tokenizer import TemplateTokenizer
from templates.version import PublishedVersion
from tests.support.templates import make_spec, make_version


@pytest.fixture(scope="module")
def tokenizer(smollm2: ModelFolder) -> TemplateTokenizer:
    return TemplateTokenizer.load(smollm2.path)


@pytest.fixture
def version(
    smollm2: ModelFolder, tokenizer: TemplateTokenizer, monkeypatch: pytest.MonkeyPatch
) -> PublishedVersion:
    monkeypatch.setattr("producer.batch.dry_run.find_model", lambda _name, _settings: smollm2)
    return make_version(make_spec(generation={"max_new_tokens": 9}), smollm2, tokenizer)


def test_tokens_are_those_of_the_jobs(
    version: PublishedVersion, tokenizer: TemplateTokenizer
) -> None:
    """By version and in all; choices bound the answer by the longest of them."""
    choices = make_spec(output={"choices": ["yes", "no"]}, generation={"max_new_tokens": 9})
    other = replace(version, spec=choices, ref=replace(version.ref, version=2))
    counted = DryRun(Settings())
    notes = ["short", "a longer note about a parcel"]
    for note in notes:
        counted.add(version, {"note": note})
    counted.add(other, {"note": "short"})
    prompts = [len(fill(version.compiled, {"note": note}, tokenizer).ids) for note in notes]
    prefix = len(version.compiled.prefix_ids)
    assert prefix > 0
    assert counted.to_dict() == {
        "dry_run": True,
        "lines": 3,
        "prompt_tokens": sum(prompts) + prompts[0],
        "cached_prefix_tokens": 3 * prefix,
        "most_new_tokens": 2 * 9 + 2,
        "versions": {
            str(version.ref): {
                "lines": 2,
                "prompt_tokens": sum(prompts),
                "cached_prefix_tokens": 2 * prefix,
                "most_new_tokens": 18,
            },
            str(other.ref): {
                "lines": 1,
                "prompt_tokens": prompts[0],
                "cached_prefix_tokens": prefix,
                "most_new_tokens": 2,
            },
        },
    }
    assert len(list(counted.lines())) == 3


def test_a_line_over_the_models_positions_is_refused(version: PublishedVersion) -> None:
    """Before its job would fail."""
    with pytest.raises(InvalidInput):
        DryRun(Settings()).add(version, {"note": "word " * 9000})


def test_models_with_one_tokenizer_are_told_apart(
    version: PublishedVersion, smollm2: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line is measured by what its own model can read."""
    small = replace(smollm2, max_positions=60)
    monkeypatch.setattr(
        "producer.batch.dry_run.find_model",
        lambda name, _settings: small if name == "s" else smollm2,
    )
    other = replace(version, spec=version.spec.model_copy(update={"model": "s"}))
    counted, note = DryRun(Settings()), {"note": "word " * 100}
    counted.add(version, note)
    with pytest.raises(InvalidInput):
        counted.add(other, note)


def test_without_the_cache_no_prefix_is_counted(version: PublishedVersion) -> None:
    """As --no-cache computes it."""
    counted = DryRun(Settings(), use_cache=False)
    counted.add(version, {"note": "short"})
    assert counted.to_dict()["cached_prefix_tokens"] == 0
    assert counted.total.prompt > 0
    assert "0 of them (0%) cached prefix" in "".join(counted.lines())


def test_another_tokenizer_counts_nothing(version: PublishedVersion) -> None:
    """Its counts would be of other jobs."""
    with pytest.raises(ModelError, match="another tokenizer"):
        DryRun(Settings()).add(replace(version, tokenizer_digest="f" * 64), {"note": "x"})
