"""The template files below a folder, and what is wrong with them before they are compiled."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from contract.errors import PrefillqError, SpecInvalid
from templates.finding import Finding, finding_of
from templates.transfer import Bundle, parse_bundle
from templates.yaml_source import ContentPlace, content_places, parse_documents, read_source

_ENDINGS = (".yaml", ".yml")
# A YAML file without any of these describes something else.
_OUR_KEYS = frozenset({"bundle", "tenant", "messages"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFile:
    """A template file or an exported bundle."""

    path: str  # below the folder
    bundle: Bundle
    places: tuple[Sequence[ContentPlace | None], ...]  # of each version's messages

    @property
    def template(self) -> str:
        first = self.bundle.specs[0]
        return f"{first.tenant}/{first.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A path that cannot be read as a template, though it should."""

    path: str  # below the folder
    finding: Finding
    template: str = ""  # if the file tells


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """All YAML files below a folder, each in one of three lists, by path."""

    files: tuple[TemplateFile, ...]
    broken: tuple[Broken, ...]
    others: tuple[str, ...]  # of something else


def read_folder(folder: Path) -> Folder:
    """Find and read all template files. What is wrong with one is in `broken`, never raised.

    Links are followed; names that begin with a dot are left out, as version control has them.
    """
    files: list[TemplateFile] = []
    broken: list[Broken] = []
    others: list[str] = []
    for found in _walk(folder, folder, ()):
        if isinstance(found, Broken):
            broken.append(found)
            continue
        path = os.path.relpath(found, folder)
        try:
            file = _read(found, path)
        except PrefillqError as error:
            broken.append(Broken(path=path, finding=finding_of(error)))
            continue
        if file is None:
            others.append(path)
        else:
            files.append(file)
    twice = list(_twice(files))
    refused = {one.path for one in twice}
    return Folder(
        files=tuple(file for file in files if file.path not in refused),
        broken=tuple(sorted((*broken, *twice), key=lambda one: one.path)),
        others=tuple(others),
    )


def _walk(folder: Path, root: Path, above: tuple[str, ...]) -> Iterator[Path | Broken]:
    path = os.path.relpath(folder, root)
    try:
        real = os.path.realpath(folder, strict=True)
        if real in above:
            yield _broken(
                path, "symlink_loop", f"{path} is a link that leads back to {real}, above it"
            )
            return
        with os.scandir(folder) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
    except OSError as error:
        yield _broken(path, "unreadable", f"{path} cannot be listed: {error.strerror}")
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if _is_folder(entry):
            yield from _walk(folder / entry.name, root, (*above, real))
        elif entry.name.lower().endswith(_ENDINGS):
            yield folder / entry.name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: reading it says so, if its name is a template's
        return False


def _read(path: Path, shown: str) -> TemplateFile | None:
    """Raises SpecInvalid; None for YAML of something else."""
    text = read_source(path)
    documents = parse_documents(text, source=shown)
    if not any(isinstance(one, dict) and _OUR_KEYS & one.keys() for one in documents):
        return None
    bundle = parse_bundle(documents, source=shown)
    places = content_places(text)
    if bundle.labels is not None:
        return TemplateFile(path=shown, bundle=bundle, places=tuple(places[1:]))
    if len(bundle.specs) != 1:
        raise SpecInvalid(
            f"{shown} is no template file",
            given=f"{len(bundle.specs)} YAML documents",
            expected="one, or a bundle as 'prefillq templates export --all' writes it",
        )
    return TemplateFile(path=shown, bundle=bundle, places=tuple(places))


def _twice(files: Sequence[TemplateFile]) -> Iterator[Broken]:
    """Files of one template: none of them can be told to be the newest."""
    by_template: dict[str, list[str]] = {}
    for file in files:
        by_template.setdefault(file.template, []).append(file.path)
    for template, paths in by_template.items():
        for path in paths if len(paths) > 1 else ():
            rest = ", ".join(other for other in paths if other != path)
            found = _broken(
                path, "two_files", f"{path} is of {template}, and so is {rest}", template=template
            )
            yield found


def _broken(path: str, code: str, message: str, *, template: str = "") -> Broken:
    remedy = {
        "symlink_loop": "Take the link away.",
        "unreadable": "Make it readable, or give its name a dot in front.",
        "two_files": "Keep one file for a template, or one bundle with all its versions.",
    }[code]
    finding = Finding(level="error", code=code, message=message, remedy=remedy)
    return Broken(path=path, finding=finding, template=template)
