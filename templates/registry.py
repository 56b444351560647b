"""Published templates in Redis: immutable versions, and labels that point to them.

Publishing and moving a label are each one Lua script. A version never changes once written,
so it is kept in the process; a label may move at any time, so it is read on every `resolve`.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any, Final, Literal

from contract import keys
from contract.codec import pack, unpack
from contract.errors import CodecError, Conflict, InvalidInput, NotFound, PrefillqError
from contract.ids import DEFAULT_LABEL, TemplateAddress, check_name, is_name
from contract.logs import get_logger
from contract.model_folder import ModelFolder
from contract.redis_client import Client, errors_explained, text
from contract.scripts import ScriptLibrary, Scripts
from contract.settings import Settings
from contract.types import VersionRef
from contract.users import user_of
from templates.compiled import CompiledTemplate
from templates.spec import TemplateSpec
from templates.version import PublishedVersion, version_digest

log = get_logger(__name__)

_KEPT_VERSIONS = 128  # in the process, least recently used out first
_PUBLISH_TRIES = 100
_NUMBER = re.compile(rb"[1-9][0-9]{0,8}")
_DIGEST = re.compile(rb"[0-9a-f]{64}")


class Anything(Enum):
    """The default of `expect`: the label may point anywhere."""

    ANYTHING = "*"


ANYTHING: Final = Anything.ANYTHING
Expected = int | None | Literal[Anything.ANYTHING]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What publishing came to. `created` is False when the same content was there already."""

    version: PublishedVersion
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSummary:
    """One template, for lists."""

    tenant: str
    name: str
    latest: int  # highest version number
    labels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSummary:
    """One version, for lists."""

    ref: VersionRef
    model: str
    model_digest: str
    prefix_tokens: int
    published_at: float  # Redis server time, seconds since the epoch
    labels: tuple[str, ...]  # those that point here, sorted
    retired: bool = False  # takes no new jobs


@cache
def script_source(name: str) -> str:
    """The text of one registry script."""
    return (resources.files("templates") / "lua" / f"{name}.lua").read_text("utf-8")


def registry_library() -> ScriptLibrary:
    """The registry's scripts, as `prefillq tenants` stores them in Redis."""
    return ScriptLibrary(
        name="registry",
        sources={name: script_source(name) for name in ("publish", "label", "retire")},
    )


class Registry:
    """Reads and writes published templates. Safe to share between threads."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client: Any = client  # redis-py types each reply as a value or an awaitable
        self._settings = settings
        self._scripts = Scripts(client, settings, registry_library())
        self._user = user_of(settings.redis_url)
        self._kept: OrderedDict[VersionRef, PublishedVersion] = OrderedDict()
        self._lock = threading.Lock()

    def publish(
        self, spec: TemplateSpec, compiled: CompiledTemplate, model: ModelFolder
    ) -> Published:
        """Store a version under the next number; the same content again gives the same version.

        A template's first version gets the label `production`; no later one gets any.
        """
        tenant, name = spec.tenant, spec.name
        digest = version_digest(spec, model)
        with errors_explained(self._settings):
            if self._user is None:
                # First, so that whatever is published is found by the workers. A tenant that has
                # users of its own was entered with them.
                self._client.sadd(keys.TENANTS, tenant)
            known = self._client.hget(keys.numbers(tenant, name), digest)
            for _ in range(_PUBLISH_TRIES):
                version = PublishedVersion(
                    ref=VersionRef(
                        tenant=tenant,
                        template=name,
                        version=self._count(tenant, name) + 1
                        if known is None
                        else _known_number(known, tenant, name),
                        digest=digest,
                    ),
                    spec=spec,
                    compiled=compiled,
                    model_digest=model.model_digest,
                    tokenizer_digest=model.tokenizer_digest,
                    published_at=self._server_time(),
                )
                match self._store(version):
                    case [b"created"]:
                        return Published(version=version, created=True)
                    case [b"known", number]:
                        ref = VersionRef(
                            tenant=tenant,
                            template=name,
                            version=_known_number(number, tenant, name),
                            digest=digest,
                        )
                        return Published(version=self.get(ref), created=False)
        raise Conflict(
            f"{tenant}/{name} is being published by others without a pause",
            remedy="Try again.",
        )

    def resolve(self, address: TemplateAddress, *, with_retired: bool = False) -> VersionRef:
        """The version that an address names now.

        Raises NotFound that lists the labels and versions, or the nearest names, there are; also
        for a version that is retired, unless `with_retired`.
        """
        tenant, name, number = address.tenant, address.name, address.version
        with errors_explained(self._settings):
            if address.label is not None:
                found = self._client.hget(keys.labels(tenant, name), address.label)
                number = None if found is None else _number_of(address, found)
            digest = retired = None
            if number is not None:
                pipe = self._client.pipeline(transaction=False)
                pipe.hget(keys.versions(tenant, name), str(number))
                pipe.hget(keys.retired(tenant, name), str(number))
                digest, retired = pipe.execute()
        if number is None or digest is None:
            raise self._not_found(address)
        if retired is not None and not with_retired:
            raise NotFound(
                f"{tenant}/{name}@{number} is retired and takes no new jobs",
                given=address,
                expected=f"a label or another version; labels: {self._labels_text(tenant, name)}",
                remedy="'prefillq templates retire --undo' brings it back.",
            )
        return VersionRef(tenant=tenant, template=name, version=number, digest=text(digest))

    def get(self, ref: VersionRef) -> PublishedVersion:
        """A version, from this process if it was read before. Raises NotFound."""
        with self._lock:
            if kept := self._kept.get(ref):
                self._kept.move_to_end(ref)
                return kept
        with errors_explained(self._settings):
            data = self._client.get(keys.version(ref.tenant, ref.template, ref.digest))
        if data is None:
            raise NotFound(
                f"{ref} is not in this Redis",
                given=f"digest {ref.digest[:12]}",
                remedy="Publish the template again: the same content gives the same digest.",
            )
        version = PublishedVersion.from_plain(unpack(data))
        if version.ref != ref:
            # A digest alone opens nothing: a reference must name the tenant it belongs to.
            raise NotFound(f"{ref} is not in this Redis", given=f"what is stored is {version.ref}")
        with self._lock:
            self._kept[ref] = version
            while len(self._kept) > _KEPT_VERSIONS:
                self._kept.popitem(last=False)
        return version

    def list_templates(self, tenant: str | None = None) -> list[TemplateSummary]:
        """All templates of a tenant, or of every tenant that this user may see, by name."""
        if tenant is None and self._user is not None:
            tenant = self._user.tenant
        with errors_explained(self._settings):
            tenants = [tenant] if tenant else self._names(keys.TENANTS)
            found = [(t, name) for t in tenants for name in self._names(keys.templates(t))]
            return [
                TemplateSummary(
                    tenant=t,
                    name=name,
                    latest=self._count(t, name),
                    labels=self.labels(t, name),
                )
                for t, name in found
            ]

    def versions(self, tenant: str, name: str) -> list[VersionSummary]:
        """All versions of a template, oldest first. Raises NotFound for an unknown template."""
        with errors_explained(self._settings):
            digests = self._client.hgetall(keys.versions(tenant, name))
        if not digests:
            raise self._not_found(TemplateAddress(tenant=tenant, name=name))
        labels, retired = self.labels(tenant, name), self.retired(tenant, name)
        return [
            replace(_summary(self.get(ref), labels), retired=ref.version in retired)
            for ref in read_refs(tenant, name, digests)
        ]

    def labels(self, tenant: str, name: str) -> dict[str, int]:
        """Label -> version number, sorted by label; empty for an unknown template.

        A label whose value is no number is left out, so that it hides no other.
        """
        with errors_explained(self._settings):
            found = self._client.hgetall(keys.labels(tenant, name))
        labels = {label: version_number(found[label.encode()]) for label in read_names(found)}
        for label in (label for label, number in labels.items() if number is None):
            log.warning("label_unreadable", template=f"{tenant}/{name}", label=label)
        return {label: number for label, number in labels.items() if number is not None}

    def set_label(
        self, tenant: str, name: str, label: str, version: int, *, expect: Expected = ANYTHING
    ) -> None:
        """Point a label to a version.

        `expect` is where it must point now (None: nowhere); Conflict if it points elsewhere.
        Raises NotFound when there is no such version.
        """
        _check_label(label)
        self._move(tenant, name, label, version, expect)

    def remove_label(
        self, tenant: str, name: str, label: str, *, expect: Expected = ANYTHING
    ) -> None:
        """Remove a label. Raises NotFound when there is none, Conflict as `set_label` does."""
        self._move(tenant, name, label, None, expect)

    def retire(self, tenant: str, name: str, version: int, *, undo: bool = False) -> None:
        """Take no new jobs for a version; those it has are finished. Idempotent.

        Raises NotFound when there is no such version, Conflict while a label points to it.
        """
        with errors_explained(self._settings):
            reply = self._scripts.run(
                "retire",
                keys=self._keys_of_labels(tenant, name),
                args=[version, "" if undo else f"{self._server_time():.6f}"],
            )
        match [text(part) for part in reply]:
            case ["ok"]:
                return
            case ["no_version"]:
                raise self._not_found(
                    TemplateAddress(tenant=tenant, name=name, selector=str(version))
                )
            case ["labelled", label]:
                raise Conflict(
                    f"the label {label} points to {tenant}/{name}@{version}",
                    expected="a version without labels",
                    remedy=f"Move it first: 'prefillq templates label {tenant}/{name}@N {label}'.",
                )
        raise PrefillqError("the script retire of another version answered", given=repr(reply)[:80])

    def retired(self, tenant: str, name: str) -> list[int]:
        """Numbers of the versions that take no new jobs, sorted."""
        with errors_explained(self._settings):
            found = self._client.hkeys(keys.retired(tenant, name))
        return sorted(int(number) for number in found if _NUMBER.fullmatch(number))

    def _keys_of_labels(self, tenant: str, name: str) -> list[str]:
        return [keys.labels(tenant, name), keys.versions(tenant, name), keys.retired(tenant, name)]

    def _labels_text(self, tenant: str, name: str) -> str:
        labels = self.labels(tenant, name)
        return ", ".join(f"{label} ({n})" for label, n in labels.items()) or "none"

    def _move(
        self, tenant: str, name: str, label: str, version: int | None, expect: Expected
    ) -> None:
        match expect:
            case Anything.ANYTHING:
                wanted = "*"
            case None:
                wanted = ""
            case _:
                wanted = str(expect)
        with errors_explained(self._settings):
            reply = self._scripts.run(
                "label",
                keys=self._keys_of_labels(tenant, name),
                args=[label, "" if version is None else version, wanted],
            )
        match [text(part) for part in reply]:
            case ["ok"]:
                return
            case ["no_version" | "no_label" as what]:
                selector = label if what == "no_label" else str(version)
                raise self._not_found(TemplateAddress(tenant=tenant, name=name, selector=selector))
            case ["retired"]:
                raise Conflict(
                    f"{tenant}/{name}@{version} is retired",
                    given=f"the label {label} for it",
                    expected="a version that takes jobs",
                )
            case ["differs", now]:
                raise Conflict(
                    f"the label {label} of {tenant}/{name} has moved",
                    given=f"it points to {now or 'nothing'}",
                    expected=f"{wanted or 'nothing'}",
                    remedy="Look at the labels again and decide anew.",
                )
        raise PrefillqError("the script label of another version answered", given=repr(reply)[:80])

    def _store(self, version: PublishedVersion) -> Any:
        tenant, name, digest = version.ref.tenant, version.ref.template, version.ref.digest
        return self._scripts.run(
            "publish",
            keys=[
                keys.numbers(tenant, name),
                keys.versions(tenant, name),
                keys.version(tenant, name, digest),
                keys.labels(tenant, name),
                keys.templates(tenant),
            ],
            args=[digest, version.ref.version, pack(version.to_plain()), name, DEFAULT_LABEL],
        )

    def _count(self, tenant: str, name: str) -> int:
        return int(self._client.hlen(keys.versions(tenant, name)))

    def _server_time(self) -> float:
        seconds, micros = self._client.time()
        return float(seconds) + float(micros) / 1e6

    def _names(self, key: str) -> list[str]:
        return read_names(self._client.smembers(key))

    def _not_found(self, address: TemplateAddress) -> NotFound:
        tenant, name = address.tenant, address.name
        with errors_explained(self._settings):
            names = self._names(keys.templates(tenant))
            latest = self._count(tenant, name)
        if latest == 0:
            near = get_close_matches(name, names, n=3) or names[:10]
            there = ", ".join(f"{tenant}/{n}" for n in near) or f"no templates of {tenant}"
            return NotFound(
                "no such template",
                given=address,
                expected=there,
                remedy="See 'prefillq templates list'.",
            )
        return NotFound(
            "no such version or label",
            given=address,
            expected=f"versions 1 to {latest}, labels: {self._labels_text(tenant, name)}",
            remedy=f"See 'prefillq templates show {tenant}/{name}'.",
        )


def read_names(found: Iterable[bytes]) -> list[str]:
    """Names read from Redis, sorted. What is no name was written by hand and is left out.

    A tenant's admin can write what it likes into its own keys; whoever reads all tenants' must not
    stumble over it.
    """
    return sorted(name for raw in found if is_name(name := raw.decode("utf-8", errors="replace")))


def read_refs(tenant: str, template: str, found: Mapping[bytes, bytes]) -> list[VersionRef]:
    """The versions in a hash `keys.versions`, oldest first; as `read_names`."""
    refs = [
        VersionRef(tenant=tenant, template=template, version=int(number), digest=digest.decode())
        for number, digest in found.items()
        if _NUMBER.fullmatch(number) and _DIGEST.fullmatch(digest)
    ]
    return sorted(refs, key=lambda ref: ref.version)


def version_number(value: bytes | str) -> int | None:
    """The version number that a field of Redis holds, or None for what is none."""
    digits = text(value)
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else None


def _known_number(value: bytes | str, tenant: str, name: str) -> int:
    number = version_number(value)
    if number is None:
        raise CodecError(
            f"a version of {tenant}/{name} has a number in Redis that is none",
            expected="1 or more",
            remedy="See the key in contract.keys.numbers.",
        )
    return number


def _number_of(address: TemplateAddress, value: bytes | str) -> int:
    number = version_number(value)
    if number is None:
        raise CodecError(
            f"the label {address.label} of {address.tenant}/{address.name} is damaged",
            given="a value that is no number",
            expected="the number of a version",
            remedy=f"Point it anew: prefillq templates label "
            f"{address.tenant}/{address.name}@VERSION {address.label}.",
        )
    return number


def _check_label(label: str) -> None:
    check_name("label", label)
    if label.isdecimal():
        raise InvalidInput(
            "a label cannot be a number",
            given=label,
            expected="a name, since tenant/template@3 means version 3",
        )


def _summary(version: PublishedVersion, labels: Mapping[str, int]) -> VersionSummary:
    return VersionSummary(
        ref=version.ref,
        model=version.spec.model,
        model_digest=version.model_digest,
        prefix_tokens=len(version.compiled.prefix_ids),
        published_at=version.published_at,
        labels=tuple(label for label, number in labels.items() if number == version.ref.version),
    )
