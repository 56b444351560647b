"""Versions as YAML text, and back: what `export` writes and `import` reads.

The text is a function of the content alone: fields in the order of the spec, keys of schemas
and samples sorted, defaults left out. So equal versions export to equal bytes, and a bundle
that is exported, imported and exported again stays as it is. Comments of the author's file are
not part of a version.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from contract.errors import SpecInvalid
from contract.ids import check_name
from templates.spec import TemplateSpec, parse_spec

_RARE_BREAKS = re.compile("[\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Versions in order, and their template's labels by place in `specs`, from 0."""

    specs: tuple[TemplateSpec, ...]
    labels: Mapping[str, int] | None  # None: a plain template file, which says nothing of labels


class _Dumper(yaml.SafeDumper):
    """Long texts as blocks, lists indented below their key, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # Where a block cannot carry the text (trailing blanks, control codes), PyYAML quotes it. It
    # does not see that YAML 1.1 folds three rare line breaks in anything but double quotes.
    style = '"' if _RARE_BREAKS.search(value) else "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def spec_text(spec: TemplateSpec) -> str:
    """One version as a template file."""
    plain = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    plain["input"] = {"schema": _sorted(plain["input"]["schema"])}
    if "samples" in plain:
        plain["samples"] = [
            {**sample, "input": _sorted(sample["input"])} for sample in plain["samples"]
        ]
    return _dump(plain)


def bundle_text(versions: Sequence[TemplateSpec], labels: Mapping[str, int]) -> str:
    """All versions, oldest first, as one file; `labels` gives places in `versions`, from 0."""
    first = versions[0]
    header = {
        "bundle": f"{first.tenant}/{first.name}",
        "labels": {label: labels[label] + 1 for label in sorted(labels)},
    }
    return "---\n".join([_dump(header), *(spec_text(spec) for spec in versions)])


def parse_bundle(documents: Sequence[object], *, source: str) -> Bundle:
    """Read the documents of a bundle or of a plain template file. Raises SpecInvalid."""
    if not documents:
        raise SpecInvalid(f"{source} is empty", expected="a template or an exported bundle")
    header, *rest = documents
    if not isinstance(header, dict) or "bundle" not in header:
        specs = [
            parse_spec(item, source=f"{source}, document {n}")
            for n, item in enumerate(documents, 1)
        ]
        return Bundle(specs=tuple(specs), labels=None)
    specs = [parse_spec(item, source=f"{source}, version {n}") for n, item in enumerate(rest, 1)]
    if not specs:
        raise SpecInvalid(f"{source} is a bundle with no versions", expected="one or more")
    if strangers := [s for s in specs if f"{s.tenant}/{s.name}" != header["bundle"]]:
        raise SpecInvalid(
            f"{source} mixes templates",
            given=f"{strangers[0].tenant}/{strangers[0].name}",
            expected=f"only {header['bundle']}, as its first document says",
        )
    return Bundle(specs=tuple(specs), labels=_labels(header, len(specs), source))


def _labels(header: Mapping[str, Any], count: int, source: str) -> dict[str, int]:
    labels = header.get("labels") or {}
    places = isinstance(labels, dict) and all(
        type(place) is int and 1 <= place <= count for place in labels.values()
    )
    if not places:
        raise SpecInvalid(
            f"{source} has labels that point nowhere",
            given=repr(labels)[:120],
            expected=f"label: place, from 1 to {count}, the number of versions in the file",
        )
    return {check_name("label", label): place - 1 for label, place in labels.items()}


def _dump(plain: object) -> str:
    text: str = yaml.dump(
        plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=sys.maxsize, indent=2
    )
    return text


def _sorted(value: Any) -> Any:
    """The same data with the keys of every mapping in order."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
