"""What differs between two versions."""

from __future__ import annotations

from templates.diff import Side, diff_sides
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


def test_equal_sides_have_no_difference() -> None:
    """No lines, no settings, the same prefix."""
    side = Side(name="a", spec=_spec(), prefix_ids=(1, 2, 3))
    found = diff_sides(side, side)
    assert (found.text, found.generation) == ((), {})
    assert found.prefix is not None
    assert found.prefix.same
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
    after = Side(name="b", spec=_spec(generation={"max_new_tokens": 9, "stop": ["x"]}))
    assert diff_sides(before, after).generation == {"max_new_tokens": (128, 9), "stop": ([], ["x"])}


def test_prefixes_are_compared_from_the_start() -> None:
    """Only what both begin with is shared; equal ids further on are not."""
    before = Side(name="a", spec=_spec(), prefix_ids=(1, 2, 3, 4))
    after = Side(name="b", spec=_spec(), prefix_ids=(1, 2, 9, 4, 5))
    change = diff_sides(before, after).prefix
    assert change is not None
    assert (change.shared, change.removed, change.added, change.same) == (2, 2, 3, False)


def test_uncompiled_side_has_no_prefix() -> None:
    """It is left out, not taken for empty."""
    before = Side(name="a", spec=_spec(), prefix_ids=(1,))
    assert diff_sides(before, Side(name="b", spec=_spec())).prefix is None
