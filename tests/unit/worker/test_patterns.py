"""Patterns of templates: what they name, and which are none."""

from __future__ import annotations

import pytest

from contract.errors import InvalidInput
from worker.patterns import Patterns, Pin, check_pattern, parse_pin


@pytest.mark.parametrize("pattern", ["acme/*", "*/*", "acme/triage", "a?me/tri*", "a-b/c_d"])
def test_good_patterns_stay_as_they_are(pattern: str) -> None:
    """`check_pattern` returns its argument."""
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "*", "acme", "/", "acme/", "/triage", "acme/a/b", "acme//b", "acme/triage/"),
        *("acme/triage@3", "acme/[ab]", "acme/tri age", "acme/\n", "acme/ä", f"acme/{'x' * 65}"),
    ],
)
def test_bad_patterns_are_refused(pattern: str) -> None:
    """The message shows what is right."""
    with pytest.raises(InvalidInput, match=r"acme/\*"):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("include", "exclude", "served"),
    [
        ((), (), ["a/one", "a/two", "b/one"]),
        ((), ("b/*",), ["a/one", "a/two"]),
        (("a/*",), ("a/two",), ["a/one"]),
        (("a/two",), ("a/two",), []),
        (("a/*", "b/*"), ("*/one",), ["a/two"]),
        (("*/*",), ("c/*", "a/t?o"), ["a/one", "b/one"]),
        (("a/*",), ("*/*",), []),
    ],
)
def test_exclude_wins(
    include: tuple[str, ...], exclude: tuple[str, ...], served: list[str]
) -> None:
    """Whatever names a template to be served, one that excludes it is obeyed."""
    patterns = Patterns(include=include, exclude=exclude)
    templates = [("a", "one"), ("a", "two"), ("b", "one")]
    assert [f"{t}/{name}" for t, name in templates if patterns.serve(t, name)] == served


@pytest.mark.parametrize(
    ("text", "pin"),
    [
        ("acme/triage", Pin(pattern="acme/triage")),
        ("acme/*@production", Pin(pattern="acme/*", label="production")),
        ("*/t?@my-label", Pin(pattern="*/t?", label="my-label")),
    ],
)
def test_pins_are_read(text: str, pin: Pin) -> None:
    """A pattern, and perhaps a label; written out they are what was given."""
    assert parse_pin(text) == pin
    assert str(pin) == text


@pytest.mark.parametrize(
    "text", ["acme", "acme/a@", "acme/a@3", "acme/a@*", "acme/a@b@c", "@production", "acme/[a]@b"]
)
def test_bad_pins_are_refused(text: str) -> None:
    """A number is no label: versions are pinned by what points to them."""
    with pytest.raises(InvalidInput, match="expected"):
        parse_pin(text)


def test_a_pin_wants_labels() -> None:
    """All of them, or the one it names."""
    every, one = Pin(pattern="acme/t*"), Pin(pattern="acme/t*", label="canary")
    assert every.wants("acme", "tagging", "anything")
    assert one.wants("acme", "tagging", "canary")
    assert not one.wants("acme", "tagging", "production")
    assert not every.wants("acme", "notes", "production")
    assert not one.wants("globex", "tagging", "canary")
