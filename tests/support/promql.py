"""Which metrics and labels a PromQL query names. A reader of names, no parser of the language."""

from __future__ import annotations

import re

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_RANGE = re.compile(r"\[[^\]]*\]")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)?\s*\{([^}]*)\}")
_NAME = re.compile(r"(?<![\w.$])([a-zA-Z_:][\w:]*)(?!\s*\(|\w)")
_WORDS = frozenset(("and", "or", "unless", "group_left", "group_right", "bool", "inf", "nan"))


def metric_names(query: str) -> set[str]:
    """Names of all metrics that a query selects."""
    text = _RANGE.sub("", _STRING.sub('""', query))
    text = _GROUPING.sub(" ", text)
    text = re.sub(r"\{[^}]*\}", "", text)
    text = re.sub(r"\boffset\s+\w+", "", text)
    return {name for name in _NAME.findall(text) if name not in _WORDS}


def matched_labels(query: str) -> dict[str, set[str]]:
    """For each metric the labels that a query matches it by; those without a name under ""."""
    found: dict[str, set[str]] = {}
    for name, matchers in _SELECTOR.findall(_STRING.sub('""', query)):
        labels = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)
        found.setdefault(name, set()).update(labels)
    return found


def grouped_labels(query: str) -> set[str]:
    """All labels by which a query groups or joins."""
    lists = _GROUPING.findall(_STRING.sub('""', query))
    return {label.strip() for labels in lists for label in labels.split(",") if label.strip()}
