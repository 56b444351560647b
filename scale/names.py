"""Which templates are meant, and what is published of them: models and labelled versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contract.calls import groups
from contract.errors import InvalidInput, NotFound, PrefillqError
from contract.ids import check_name, parse_address
from contract.load import MODEL_DIGITS, Asked
from contract.logs import get_logger
from contract.types import VersionRef
from templates.reading import RegistryReader
from templates.standing import Standing, Template
from templates.version import VersionKind

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A template, as published."""

    tenant: str
    template: str
    models: Mapping[str, str] = field(default_factory=dict)  # 12 hex digits -> the model's name
    # Of the models all of whose versions are retired; what they had may still wait and run.
    retired: Mapping[str, str] = field(default_factory=dict)
    # Model -> number of a version that a label names -> its digest, and whether it has a prefix.
    labelled: Mapping[str, Mapping[int, tuple[str, bool]]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{self.tenant}/{self.template}"

    @property
    def asked(self) -> Asked:
        models = (*sorted(self.models), *sorted(self.retired))
        return Asked(tenant=self.tenant, template=self.template, models=models)

    def model_name(self, digits: str) -> str:
        """Its name; "" of a model that the template never had."""
        return self.models.get(digits) or self.retired.get(digits, "")


class Names:
    """Looks names up, in few round trips however many there are. Safe to share between threads."""

    def __init__(self, registry: RegistryReader) -> None:
        self._registry = registry
        self._kinds: dict[VersionRef, VersionKind] = {}  # never changes; replaced as a whole

    def named(self, targets: Sequence[str]) -> list[Named]:
        """What `TENANT` and `TENANT/TEMPLATE` name; without any, all that this user may see.

        Sorted. Raises InvalidInput for what is no name, NotFound for what is not there.
        """
        wanted = {t for target in targets or ("",) for t in _addresses(self._registry, target)}
        templates = sorted(wanted)
        standings: dict[Template, Standing] = {}
        for template, read in zip(templates, self._registry.standings(templates), strict=True):
            # A tenant's admin can write its keys: one that cannot be read hides no other.
            if read.damage is not None:
                self._leave_out(template, read.damage, targets)
            elif read.standing is not None:
                standings[template] = read.standing
        kinds, failed = self._read_kinds([r for one in standings.values() for r in one.refs])
        found = []
        for template, standing in standings.items():
            wrong = next((failed[ref] for ref in _used(standing) if ref in failed), None)
            if wrong is not None:
                self._leave_out(template, wrong, targets)
                continue
            if targets and not standing.refs:
                self._registry.check_known(*template)
            found.append(_named(template, standing, kinds))
        if targets:
            kinds = self._kinds | kinds
        self._kinds = kinds
        return found

    def _read_kinds(
        self, refs: Sequence[VersionRef]
    ) -> tuple[dict[VersionRef, VersionKind], dict[VersionRef, PrefillqError]]:
        """Of each version what it is, or why that cannot be read."""
        known = self._kinds
        kinds = {ref: known[ref] for ref in refs if ref in known}
        failed: dict[VersionRef, PrefillqError] = {}
        for some in groups([ref for ref in refs if ref not in known]):
            for ref, kind in self._registry.kinds(some).items():
                if isinstance(kind, PrefillqError):
                    failed[ref] = kind
                else:
                    kinds[ref] = kind
        return kinds, failed

    def _leave_out(self, template: Template, error: PrefillqError, targets: Sequence[str]) -> None:
        """What was asked for by name is not left out: its error is raised."""
        if targets:
            raise error
        log.warning("template_not_read", template="/".join(template), error=str(error))


def _addresses(registry: RegistryReader, target: str) -> list[Template]:
    if "/" in target:
        address = parse_address(target)
        if address.selector is not None:
            raise InvalidInput(
                "a template is scaled as a whole", given=target[:120], expected="tenant/template"
            )
        return [(address.tenant, address.name)]
    if target:
        check_name("tenant", target)
    found = registry.template_names(target or None)
    if target and not found:
        raise NotFound(
            "no templates of this tenant",
            given=target,
            remedy="See 'prefillq templates list'.",
        )
    return found


def _used(standing: Standing) -> list[VersionRef]:
    """Versions that take jobs or that a label names: of the others one may be damaged."""
    labelled = set(standing.labels.values())
    return [
        ref
        for ref in standing.refs
        if ref.version not in standing.retired or ref.version in labelled
    ]


def _named(
    template: Template, standing: Standing, kinds: Mapping[VersionRef, VersionKind]
) -> Named:
    models: dict[str, str] = {}
    retired: dict[str, str] = {}
    labelled: dict[str, dict[int, tuple[str, bool]]] = {}
    numbers = set(standing.labels.values())
    for ref in standing.refs:
        kind = kinds.get(ref)
        if kind is None:
            continue
        digits = kind.model_digest[:MODEL_DIGITS]
        (retired if ref.version in standing.retired else models)[digits] = kind.model
        if ref.version in numbers:
            labelled.setdefault(digits, {})[ref.version] = (ref.digest, kind.has_prefix)
    tenant, name = template
    return Named(
        tenant=tenant,
        template=name,
        models=models,
        retired={digits: model for digits, model in retired.items() if digits not in models},
        labelled=labelled,
    )
