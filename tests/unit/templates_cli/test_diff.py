"""What differs between two versions."""

from __future__ import annotations

import pytest

from templates.diff import Made, Side, diff_sides
from templates.spec import TemplateSpec, parse_spec
from templates.transfer import spec_text


def _spec(content: str = "Hello {{ note }}", **changed: object) -> TemplateSpec:
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


def _side(spec: TemplateSpec, *ids: int, model: str = "m", tokenizer: str = "t") -> Side:
    made = Made(model_digest=model, tokenizer_digest=tokenizer, prefix_ids=ids)
    return Side(name="side", spec=spec, made=made)


def test_equal_sides_have_no_difference() -> None:
    """No lines, no settings, the same prefix."""
    side = _side(_spec(), 1, 2, 3)
    found = diff_sides(side, side)
    assert (found.text, found.generation, found.settings) == ((), {}, {})
    assert (found.weights, found.tokenizer, found.input_schema) == (False, False, False)
    assert found.prefix is not None
    assert found.prefix.same
    assert (found.prefix.kept, found.prefix.saved) == (1.0, 1.0)
    assert found.to_dict()["equal"] is True


def test_changed_text_is_a_unified_diff() -> None:
    """Of the canonical text, one line for one changed message."""
    before = Side(name="a@1", spec=_spec("Hello {{ note }}"))
    after = Side(name="a@2", spec=_spec("Good day {{ note }}"))
    text = diff_sides(before, after).text
    assert text[:2] == ("--- a@1", "+++ a@2")
    assert [line for line in text[2:] if line[0] in "+-"] == [
        "-    content: Hello {{ note }}",
        "+    content: Good day {{ note }}",
    ]
    assert "content: Hello {{ note }}" in spec_text(before.spec)


def test_changed_settings_are_named() -> None:
    """With the value before and after; defaults count as values."""
    before = Side(name="a", spec=_spec())
    after = Side(
        name="b",
        spec=_spec(
            generation={"max_new_tokens": 9, "stop": ["x"]},
            model="other",
            strict=True,
            output={"choices": ["yes", "no"]},
            limits={"max_queue": 5},
        ),
    )
    found = diff_sides(before, after)
    assert found.generation == {"max_new_tokens": (128, 9), "stop": ([], ["x"])}
    assert found.settings == {
        "model": ("some-model", "other"),
        "strict": (False, True),
        "output.choices": (None, ["yes", "no"]),
        "limits.max_queue": (None, 5),
    }
    assert found.to_dict()["settings"]["limits.max_queue"] == [None, 5]


def test_a_changed_schema_is_said() -> None:
    """The order of its keys is no change."""
    wide = {"type": "object", "properties": {"note": {"maxLength": 5}}, "required": ["note"]}
    turned = {"required": ["note"], "properties": {"note": {}}, "type": "object"}
    one = Side(name="a", spec=_spec())
    for schema, differs in ((wide, True), (turned, False)):
        other = Side(name="b", spec=_spec(input={"schema": schema}))
        assert diff_sides(one, other).input_schema is differs


def test_samples_are_told_apart_by_their_input() -> None:
    """Added, removed, and those that expect another answer."""

    def samples(*pairs: tuple[str, str | None]) -> Side:
        listed = [{"input": {"note": note}, "expected": expected} for note, expected in pairs]
        return Side(name="x", spec=_spec(samples=listed))

    before = samples(("a", "1"), ("b", "1"), ("b", "1"), ("c", None))
    after = samples(("d", None), ("a", "2"), ("b", "1"), ("e", None))
    found = diff_sides(before, after).samples
    assert (found.same, found.added, found.removed, found.other_answer) == (1, 2, 2, 1)


def test_prefixes_are_compared_from_the_start() -> None:
    """Only what both begin with is shared; equal ids further on are not."""
    change = diff_sides(_side(_spec(), 1, 2, 3, 4), _side(_spec(), 1, 2, 9, 4, 5)).prefix
    assert change is not None
    assert (change.shared, change.removed, change.added, change.same) == (2, 2, 3, False)
    assert (change.kept, change.saved) == (0.5, pytest.approx(0.4))


def test_other_weights_share_nothing() -> None:
    """The same ids have other keys and values there; another tokenizer's equal ids do not."""
    one = _side(_spec(), 1, 2)
    weights = diff_sides(one, _side(_spec(), 1, 2, model="n"))
    assert weights.prefix is not None
    assert (weights.weights, weights.prefix.shared, weights.to_dict()["equal"]) == (True, 0, False)
    tokenizer = diff_sides(one, _side(_spec(), 1, 2, tokenizer="u"))
    assert tokenizer.prefix is not None
    assert (tokenizer.tokenizer, tokenizer.prefix.shared) == (True, 2)
    assert tokenizer.to_dict()["equal"] is False


def test_empty_prefixes_have_no_share() -> None:
    """Nothing is divided by zero."""
    change = diff_sides(_side(_spec()), _side(_spec(), 1)).prefix
    assert change is not None
    assert (change.kept, change.saved) == (None, 0.0)


def test_uncompiled_side_has_no_prefix() -> None:
    """It is left out, not taken for empty."""
    found = diff_sides(_side(_spec(), 1), Side(name="b", spec=_spec()))
    assert (found.prefix, found.weights, found.tokenizer) == (None, None, None)
