"""Which templates are meant, and what is published of them: models and labelled versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contract.errors import CodecError, InvalidInput, NotFound, RedisRefused
from contract.ids import check_name, parse_address
from contract.load import MODEL_DIGITS, Asked
from contract.logs import get_logger
from templates.reading import RegistryReader

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A template, as published."""

    tenant: str
    template: str
    models: Mapping[str, str] = field(default_factory=dict)  # 12 hex digits -> the model's name
    # Model -> number of a version that a label names -> its digest, and whether it has a prefix.
    labelled: Mapping[str, Mapping[int, tuple[str, bool]]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{self.tenant}/{self.template}"

    @property
    def asked(self) -> Asked:
        return Asked(tenant=self.tenant, template=self.template, models=tuple(sorted(self.models)))


def named(registry: RegistryReader, targets: Sequence[str]) -> list[Named]:
    """What `TENANT` and `TENANT/TEMPLATE` name; without any, all that this user may see.

    Sorted. Raises InvalidInput for what is no name, NotFound for what is not there.
    """
    found: dict[str, tuple[str, str]] = {}
    for target in targets or ("",):
        for tenant, name in _addresses(registry, target):
            found[f"{tenant}/{name}"] = (tenant, name)
    all_named = []
    for _, (tenant, name) in sorted(found.items()):
        try:
            all_named.append(_named(registry, tenant, name))
        except (RedisRefused, CodecError, NotFound) as error:
            # A tenant's admin can write its keys: one that cannot be read hides no other.
            if targets:
                raise
            log.warning("template_not_read", template=f"{tenant}/{name}", error=str(error))
    return all_named


def _addresses(registry: RegistryReader, target: str) -> list[tuple[str, str]]:
    if "/" in target:
        address = parse_address(target)
        if address.selector is not None:
            raise InvalidInput(
                "a template is scaled as a whole", given=target[:120], expected="tenant/template"
            )
        return [(address.tenant, address.name)]
    if target:
        check_name("tenant", target)
    summaries = registry.list_templates(target or None)
    if target and not summaries:
        raise NotFound(
            "no templates of this tenant",
            given=target,
            remedy="See 'prefillq templates list'.",
        )
    return [(one.tenant, one.name) for one in summaries]


def _named(registry: RegistryReader, tenant: str, name: str) -> Named:
    models: dict[str, str] = {}
    labelled: dict[str, dict[int, tuple[str, bool]]] = {}
    for version in registry.versions(tenant, name):
        model = version.model_digest[:MODEL_DIGITS]
        if not version.retired:
            models[model] = version.model
        if version.labels:
            labelled.setdefault(model, {})[version.ref.version] = (
                version.ref.digest,
                version.prefix_tokens > 0,
            )
    return Named(tenant=tenant, template=name, models=models, labelled=labelled)
