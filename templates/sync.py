"""Template files as the source: what publishing a folder comes to, and doing it.

`make_plan` looks at everything before anything is published. A version whose content is there
already is left alone, and is not compiled again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from contract.errors import NotFound, PrefillqError, RedisRefused, RedisUnreachable
from contract.ids import DEFAULT_LABEL
from templates.finding import Finding, finding_of
from templates.folder import Folder, TemplateFile
from templates.prepare import Prepared, Preparer
from templates.registry import Registry, VersionSummary
from templates.version import version_digest

Action = Literal["new_template", "new_version", "unchanged", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelMove:
    """A label that is to point elsewhere; None: nowhere."""

    label: str
    before: int | None
    after: int | None

    def __str__(self) -> str:
        return f"{self.label}: {self.before or 'none'} -> {self.after or 'none'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One version of a file, or a file that is refused as a whole."""

    path: str  # below the folder
    template: str  # tenant/name, or "" when the file does not tell
    action: Action
    version: int | None = None  # the number it has, or gets unless others publish meanwhile
    prefix_tokens: int | None = None
    labels: tuple[LabelMove, ...] = ()  # those that come to point here, or go
    findings: tuple[Finding, ...] = ()  # warnings, or why it is refused

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.path,
            "template": self.template,
            "action": self.action,
            "version": self.version,
            "prefix_tokens": self.prefix_tokens,
            "labels": [
                {"label": move.label, "before": move.before, "after": move.after}
                for move in self.labels
            ],
            "findings": [finding.to_dict() for finding in self.findings],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file and its versions; a step without something prepared is there already."""

    file: TemplateFile
    steps: tuple[Step, ...]
    prepared: tuple[Prepared | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done with all files of a folder."""

    sources: tuple[Source, ...]
    broken: tuple[Step, ...]
    others: tuple[str, ...]  # YAML files of something else

    @property
    def steps(self) -> list[Step]:
        """By file; versions of a file in their order."""
        every = [*self.broken, *(step for source in self.sources for step in source.steps)]
        return sorted(every, key=lambda step: step.path)

    @property
    def refused(self) -> bool:
        return any(step.action == "refused" for step in self.steps)


def make_plan(
    folder: Folder, registry: Registry, preparer: Preparer, *, label: str | None = None
) -> Plan:
    """Compile what is new and say what is to be done. Nothing is written.

    `label` is to point to the version of each plain file; a bundle has labels of its own. Raises
    RedisUnreachable and RedisRefused; whatever else is wrong is in the plan.
    """
    return Plan(
        sources=tuple(_source(file, registry, preparer, label) for file in folder.files),
        broken=tuple(
            Step(
                path=one.path,
                template=one.template,
                action="refused",
                findings=(one.finding,),
            )
            for one in folder.broken
        ),
        others=folder.others,
    )


def apply_plan(plan: Plan, registry: Registry) -> list[Step]:
    """Publish what is new, then move labels; the steps with the numbers that versions got.

    Raises what the registry raises, Conflict among them when a label was moved since the plan was
    made. What was published until then stays, and doing it all again does only the rest.
    """
    done = [step for source in plan.sources for step in _apply(source, registry)]
    return sorted([*plan.broken, *done], key=lambda step: step.path)


def _source(
    file: TemplateFile, registry: Registry, preparer: Preparer, label: str | None
) -> Source:
    try:
        there = _versions(registry, file)
        steps, prepared = _steps(file, there, preparer)
        if all(step.action != "refused" for step in steps):
            steps = _with_labels(file, steps, there, label)
    except (RedisUnreachable, RedisRefused):
        raise
    except PrefillqError as error:
        steps, prepared = [_refused(file, finding_of(error))], [None]
    return Source(file=file, steps=tuple(steps), prepared=tuple(prepared))


def _versions(registry: Registry, file: TemplateFile) -> list[VersionSummary]:
    tenant, _, name = file.template.partition("/")
    try:
        return registry.versions(tenant, name)
    except NotFound:
        return []


def _steps(
    file: TemplateFile, there: Sequence[VersionSummary], preparer: Preparer
) -> tuple[list[Step], list[Prepared | None]]:
    known = {version.ref.digest: version.ref.version for version in there}
    prefixes = {version.ref.version: version.prefix_tokens for version in there}
    retired = {version.ref.version for version in there if version.retired}
    steps: list[Step] = []
    prepared: list[Prepared | None] = []
    for spec, places in zip(file.bundle.specs, file.places, strict=True):
        step = Step(path=file.path, template=file.template, action="unchanged")
        item = None
        try:
            digest = version_digest(spec, preparer.model(spec))
            if digest in known:
                number = known[digest]
                step = replace(step, version=number, prefix_tokens=prefixes[number])
                if number in retired:
                    step = replace(step, findings=(_retired(file, number),))
            else:
                item = preparer.prepare(spec, places=places)
                number = known[digest] = len(known) + 1
                prefixes[number] = len(item.compiled.prefix_ids)
                step = replace(
                    step,
                    action="new_version" if there or number > 1 else "new_template",
                    version=number,
                    prefix_tokens=prefixes[number],
                    findings=item.warnings,
                )
        except PrefillqError as error:
            step = _refused(file, finding_of(error))
        steps.append(step)
        prepared.append(item)
    return steps, prepared


def _with_labels(
    file: TemplateFile, steps: list[Step], there: Sequence[VersionSummary], label: str | None
) -> list[Step]:
    """The steps with the labels' moves, refused where a label cannot be moved."""
    now = {name: version.ref.version for version in there for name in version.labels}
    new_template = not there
    wanted = _wanted(file, steps, label)
    if new_template and DEFAULT_LABEL not in wanted and file.bundle.labels is None:
        wanted = {DEFAULT_LABEL: 0, **wanted}  # as publishing a template's first version does
    placed = list(steps)
    retired = {version.ref.version for version in there if version.retired}
    for name, place in wanted.items():
        step = placed[place]
        if now.get(name) == step.version:
            continue
        if step.version in retired:
            placed[place] = replace(
                step, action="refused", findings=(_on_retired(file, step, name),)
            )
            continue
        move = LabelMove(label=name, before=now.get(name), after=step.version)
        placed[place] = replace(step, labels=(*step.labels, move))
    return placed


def _wanted(file: TemplateFile, steps: Sequence[Step], label: str | None) -> Mapping[str, int]:
    """Label -> place of its version in the file."""
    if file.bundle.labels is not None:
        return file.bundle.labels
    return {} if label is None else {label: len(steps) - 1}


def _apply(source: Source, registry: Registry) -> Iterator[Step]:
    tenant, _, name = source.file.template.partition("/")
    steps: list[Step] = []
    for step, item in zip(source.steps, source.prepared, strict=True):
        if item is None:
            steps.append(step)
            continue
        done = registry.publish(item.spec, item.compiled, item.model).version
        moves = tuple(replace(move, after=done.ref.version) for move in step.labels)
        steps.append(replace(step, version=done.ref.version, labels=moves))
    first_of_all = source.steps[0].action == "new_template"
    for step in steps:
        for move in step.labels:
            set_already = first_of_all and move.label == DEFAULT_LABEL
            if move.after is not None and not (set_already and move.after == 1):
                expect = 1 if set_already else move.before
                registry.set_label(tenant, name, move.label, move.after, expect=expect)
    labels = source.file.bundle.labels
    if first_of_all and labels is not None and DEFAULT_LABEL not in labels:
        registry.remove_label(tenant, name, DEFAULT_LABEL)  # the exported template had none
    yield from steps


def _refused(file: TemplateFile, finding: Finding) -> Step:
    return Step(path=file.path, template=file.template, action="refused", findings=(finding,))


def _retired(file: TemplateFile, number: int) -> Finding:
    return Finding(
        level="warning",
        code="retired",
        message=f"{file.template}@{number} has this content, and is retired",
        remedy=f"'prefillq templates retire {file.template}@{number} --undo' brings it back.",
    )


def _on_retired(file: TemplateFile, step: Step, label: str) -> Finding:
    return Finding(
        level="error",
        code="label_on_retired",
        message=f"{label} is to point to {file.template}@{step.version}, which is retired",
        remedy=f"'prefillq templates retire {file.template}@{step.version} --undo' brings it back.",
    )
