"""What differs between two versions: text, settings, samples, weights, and the prefix in tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from contract.canonical import canonical_json
from templates.output_schema import schema_text
from templates.skeleton import common_length
from templates.spec import Sample, TemplateSpec
from templates.transfer import spec_text

Change = tuple[Any, Any]  # before, after


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a side was compiled for and to."""

    model_digest: str
    tokenizer_digest: str  # of the chat template too
    prefix_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two: a published version, or a file."""

    name: str
    spec: TemplateSpec
    made: Made | None = None  # None: not compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixChange:
    """Both prefixes in tokens. Only `shared` tokens have the same keys and values in both."""

    before: int
    after: int
    shared: int

    @property
    def same(self) -> bool:
        return self.before == self.after == self.shared

    @property
    def removed(self) -> int:
        return self.before - self.shared

    @property
    def added(self) -> int:
        return self.after - self.shared

    @property
    def kept(self) -> float | None:
        """The part of the old prefix that the new one begins with too, 0 to 1."""
        return self.shared / self.before if self.before else None

    @property
    def saved(self) -> float | None:
        """The part of the new prefix's prefill that the old one's has computed, 0 to 1."""
        return self.shared / self.after if self.after else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleChange:
    """Samples are told apart by their input."""

    same: int
    added: int
    removed: int
    other_answer: int  # the same input with another expected answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Fields that are None need a side that is not compiled."""

    text: tuple[str, ...]  # lines of a unified diff, without line ends
    generation: dict[str, Change]  # by field
    settings: dict[str, Change]  # model, strict, output and limits, by dotted name
    input_schema: bool  # True: it differs
    samples: SampleChange
    weights: bool | None  # True: the model's digests differ
    tokenizer: bool | None  # True: the tokenizer's or the chat template's differ
    prefix: PrefixChange | None

    def to_dict(self) -> dict[str, Any]:
        prefix, samples = self.prefix, self.samples
        return {
            "equal": not self.text and not self.weights and not self.tokenizer,
            "diff": "\n".join(self.text),
            "generation": {name: list(pair) for name, pair in self.generation.items()},
            "settings": {name: list(pair) for name, pair in self.settings.items()},
            "input_schema": self.input_schema,
            "samples": {
                "same": samples.same,
                "added": samples.added,
                "removed": samples.removed,
                "other_answer": samples.other_answer,
            },
            "weights": self.weights,
            "tokenizer": self.tokenizer,
            "prefix": None
            if prefix is None
            else {
                "same": prefix.same,
                "before": prefix.before,
                "after": prefix.after,
                "shared": prefix.shared,
                "removed": prefix.removed,
                "added": prefix.added,
                "kept": prefix.kept,
                "saved": prefix.saved,
            },
        }


def diff_sides(before: Side, after: Side) -> Difference:
    """Compare two sides. Comments never count as a difference, nor does the order of
    keys but in output.schema, where it is the order of the answer."""
    old, new = before.spec, after.spec
    text = tuple(
        unified_diff(
            spec_text(old).splitlines(),
            spec_text(new).splitlines(),
            fromfile=before.name,
            tofile=after.name,
            lineterm="",
        )
    )
    weights = tokenizer = prefix = None
    if before.made is not None and after.made is not None:
        weights = before.made.model_digest != after.made.model_digest
        tokenizer = before.made.tokenizer_digest != after.made.tokenizer_digest
        prefix = _prefix(before.made, after.made)
    return Difference(
        text=text,
        generation=_changes(_plain(old.generation), _plain(new.generation)),
        settings=_changes(_settings(old), _settings(new)),
        input_schema=canonical_json(old.input.json_schema) != canonical_json(new.input.json_schema),
        samples=_samples(old.samples, new.samples),
        weights=weights,
        tokenizer=tokenizer,
        prefix=prefix,
    )


def _plain(part: Any) -> dict[str, Any]:
    plain: dict[str, Any] = part.model_dump(mode="json")
    return plain


def _settings(spec: TemplateSpec) -> dict[str, Any]:
    choices, schema = spec.output.choices, spec.output.json_schema
    return {
        "model": spec.model,
        "strict": spec.strict,
        "output.choices": None if choices is None else list(choices),
        # As text: here the order of keys is a difference.
        "output.schema": None if schema is None else schema_text(schema),
        **{f"limits.{name}": value for name, value in _plain(spec.limits).items()},
    }


def _changes(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Change]:
    return {name: (old[name], new[name]) for name in old if old[name] != new[name]}


def _samples(old: Sequence[Sample], new: Sequence[Sample]) -> SampleChange:
    before, after = (Counter(_input(sample) for sample in side) for side in (old, new))
    both = sum((before & after).values())
    answers = [Counter((_input(s), s.expected) for s in side) for side in (old, new)]
    same = sum((answers[0] & answers[1]).values())
    return SampleChange(
        same=same,
        added=sum((after - before).values()),
        removed=sum((before - after).values()),
        other_answer=both - same,
    )


def _input(sample: Sample) -> str:
    return canonical_json(sample.input)


def _prefix(before: Made, after: Made) -> PrefixChange:
    old, new = before.prefix_ids, after.prefix_ids
    # Other weights give other keys and values for the same ids.
    shared = common_length(old, new) if before.model_digest == after.model_digest else 0
    return PrefixChange(before=len(old), after=len(new), shared=shared)
