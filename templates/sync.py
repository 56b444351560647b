"""Template files as the source: what publishing a folder comes to, and doing it.

`make_plan` looks at everything before anything is published. A version whose content is there
already is left alone, and is not compiled again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from contract.errors import PrefillqError, RedisRefused, RedisUnreachable
from contract.ids import DEFAULT_LABEL
from templates.finding import Finding, finding_of
from templates.folder import Folder, TemplateFile
from templates.prepare import Prepared, Preparer
from templates.reading import Sight, VersionSummary
from templates.registry import Registry
from templates.rollouts import moves
from templates.version import version_digest

Action = Literal["new_template", "new_version", "unchanged", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelMove:
    """A label that is to point elsewhere."""

    label: str
    before: int | None  # None: nowhere
    after: int

    def __str__(self) -> str:
        return f"{self.label}: {self.before or 'none'} -> {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One version of a file, or a file that is refused as a whole."""

    path: str  # below the folder
    template: str  # tenant/name, or "" when the file does not tell
    action: Action
    version: int | None = None  # the number it has, or gets unless others publish meanwhile
    prefix_tokens: int | None = None
    labels: tuple[LabelMove, ...] = ()  # those that come to point here
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
        sight = registry.sight(*_names(file))
        steps, prepared = _steps(file, sight, _there(registry, file, sight), preparer)
        if all(step.action != "refused" for step in steps):
            steps = _with_labels(file, sight, steps, label)
    except (RedisUnreachable, RedisRefused):
        raise
    except PrefillqError as error:
        steps, prepared = [_refused(file, error)], [None]
    return Source(file=file, steps=tuple(steps), prepared=tuple(prepared))


def _there(registry: Registry, file: TemplateFile, sight: Sight) -> dict[str, VersionSummary]:
    """The template's versions by digest. Raises NotFound when one is lost."""
    if not sight.state.versions:
        return {}
    return {version.ref.digest: version for version in registry.versions(*_names(file))}


def _steps(
    file: TemplateFile,
    sight: Sight,
    there: Mapping[str, VersionSummary],
    preparer: Preparer,
) -> tuple[list[Step], list[Prepared | None]]:
    new: dict[str, Step] = {}
    number = max(sight.state.versions, default=0)
    steps: list[Step] = []
    prepared: list[Prepared | None] = []
    for spec, places in zip(file.bundle.specs, file.places, strict=True):
        item = None
        try:
            digest = version_digest(spec, preparer.model(spec))
            if digest in there:
                step = _unchanged(file, there[digest])
            elif digest in new:  # twice in this file
                step = replace(new[digest], action="unchanged", findings=())
            else:
                item = preparer.prepare(spec, places=places)
                number += 1
                step = new[digest] = Step(
                    path=file.path,
                    template=file.template,
                    action="new_template" if number == 1 else "new_version",
                    version=number,
                    prefix_tokens=len(item.compiled.prefix_ids),
                    findings=item.warnings,
                )
        except PrefillqError as error:
            step = _refused(file, error)
        steps.append(step)
        prepared.append(item)
    return steps, prepared


def _unchanged(file: TemplateFile, there: VersionSummary) -> Step:
    address = f"{file.template}@{there.ref.version}"
    retired = Finding(
        level="warning",
        code="retired",
        message=f"{address} has this content, and is retired",
        remedy=f"'prefillq templates retire {address} --undo' brings it back.",
    )
    return Step(
        path=file.path,
        template=file.template,
        action="unchanged",
        version=there.ref.version,
        prefix_tokens=there.prefix_tokens,
        findings=(retired,) if there.retired else (),
    )


def _with_labels(
    file: TemplateFile, sight: Sight, steps: list[Step], label: str | None
) -> list[Step]:
    """The steps with the labels' moves, played on the template's state by the registry's rules.

    Raises what those raise where a label cannot be moved.
    """
    state, placed = sight.state, list(steps)
    for step in steps:
        if step.action != "unchanged":
            state = moves.publish(state).state
    for name, place in _wanted(file, label).items():
        move = moves.set_label(state, name, steps[place].version or 0)
        if move is not None and sight.damage is not None:
            raise sight.damage
        state = state if move is None else move.state
    if _loses_production(file, steps):
        state = moves.remove_label(state, DEFAULT_LABEL).state
    for name, now in sorted(state.labels.items()):
        before = sight.state.labels.get(name)
        if before != now:
            place = max(n for n, step in enumerate(steps) if step.version == now)
            moved = LabelMove(label=name, before=before, after=now)
            placed[place] = replace(placed[place], labels=(*placed[place].labels, moved))
    return placed


def _wanted(file: TemplateFile, label: str | None) -> Mapping[str, int]:
    """Label -> place of its version in the file."""
    if file.bundle.labels is not None:
        return file.bundle.labels
    return {} if label is None else {label: 0}


def _loses_production(file: TemplateFile, steps: Sequence[Step]) -> bool:
    """A template's first version gets that label; an exported one may have had it nowhere."""
    labels = file.bundle.labels
    new = steps[0].action == "new_template"
    return new and labels is not None and DEFAULT_LABEL not in labels


def _apply(source: Source, registry: Registry) -> list[Step]:
    file = source.file
    why = f"sync of {file.path}"[:200].encode("utf-8", "replace").decode("utf-8")
    steps: list[Step] = []
    for step, item in zip(source.steps, source.prepared, strict=True):
        number = step.version
        if item is not None:
            done = registry.publish(item.spec, item.compiled, item.model, why=why)
            number = done.version.ref.version
        labels = tuple(replace(move, after=number or move.after) for move in step.labels)
        steps.append(replace(step, version=number, labels=labels))
    new = source.steps[0].action == "new_template"
    for move in (move for step in steps for move in step.labels):
        # Publishing a template's first version has set this one.
        before = 1 if new and move.label == DEFAULT_LABEL else move.before
        registry.set_label(*_names(file), move.label, move.after, expect=before, why=why)
    if _loses_production(file, source.steps):
        registry.remove_label(*_names(file), DEFAULT_LABEL, expect=1, why=why)
    return steps


def _names(file: TemplateFile) -> tuple[str, str]:
    tenant, _, name = file.template.partition("/")
    return tenant, name


def _refused(file: TemplateFile, error: PrefillqError) -> Step:
    return Step(
        path=file.path, template=file.template, action="refused", findings=(finding_of(error),)
    )
