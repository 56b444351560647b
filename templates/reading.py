"""Reading published templates from Redis: what an address means, versions, labels, the journal.

A version never changes once written, so it is kept in the process; everything else may move at any
time and is read anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from contract import keys
from contract.codec import unpack
from contract.errors import CodecError, NotFound
from contract.ids import TemplateAddress
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained, text
from contract.settings import Settings
from contract.types import VersionRef
from contract.users import user_of
from templates.rollouts.journal import Entry, read_entry
from templates.rollouts.moves import TemplateState
from templates.rollouts.plain import parse_text
from templates.rollouts.rollout import Rollout
from templates.stored import (
    labelled_number,
    read_names,
    read_numbers,
    read_refs,
    read_revision,
    version_number,
)
from templates.target import Target
from templates.version import PublishedVersion

log = get_logger(__name__)

# Versions kept in the process, least recently used out first: enough that a thousand templates in
# turn are not read anew each time. Bytes as they are in Redis; in memory each is several.
_KEPT_VERSIONS, _KEPT_BYTES = 4096, 32 * 2**20
_ENTRIES_AT_ONCE = 500


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """All of a template that moves, read at once, to decide on."""

    state: TemplateState
    now: float  # Redis server time
    rollout_text: bytes  # as Redis has it; empty without a rollout
    damage: CodecError | None = None  # why `state.rollout` is None all the same


class RegistryReader:
    """What everybody may do with published templates. Safe to share between threads."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client: Any = client  # redis-py types each reply as a value or an awaitable
        self._settings = settings
        self._user = user_of(settings.redis_url)
        self._kept: OrderedDict[VersionRef, tuple[PublishedVersion, int]] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def target(self, address: TemplateAddress) -> Target:
        """The version or versions that new jobs of an address get, and which job gets which.

        Raises NotFound as `resolve` does, and CodecError when the rollout cannot be read.
        """
        tenant, name = address.tenant, address.name
        if address.label is None:
            return Target(revision=None, stable=self.resolve(address))
        with errors_explained(self._settings):
            # In this order: what is read after the revision is of that one, or moved since.
            pipe = self._client.pipeline(transaction=False)
            pipe.get(keys.revision(tenant, name))
            pipe.hget(keys.labels(tenant, name), address.label)
            pipe.get(keys.rollout(tenant, name))
            revision, found, rollout_text = pipe.execute()
        if found is None:
            raise self._not_found(address)
        rollout = None if rollout_text is None else parse_text(rollout_text)
        if rollout is not None and rollout.plan.label != address.label:
            rollout = None
        numbers = [labelled_number(address, found)]
        if rollout is not None:
            numbers.append(rollout.plan.canary)
        # Neither is retired in this revision, and in another the submit will be refused.
        stable, *canary = self._numbered(address, numbers, with_retired=True)
        return Target(
            revision=read_revision(revision, address),
            stable=stable,
            canary=canary[0] if canary else None,
            rollout=rollout,
        )

    def resolve(self, address: TemplateAddress, *, with_retired: bool = False) -> VersionRef:
        """The version that an address names now; of a rollout's label, the stable one.

        Raises NotFound that lists the labels and versions, or the nearest names, there are; also
        for a version that is retired, unless `with_retired`.
        """
        number = address.version
        if address.label is not None:
            with errors_explained(self._settings):
                labels = keys.labels(address.tenant, address.name)
                found = self._client.hget(labels, address.label)
            if found is None:
                raise self._not_found(address)
            number = labelled_number(address, found)
        [ref] = self._numbered(address, [number or 0], with_retired=with_retired)
        return ref

    def _numbered(
        self, address: TemplateAddress, numbers: list[int], *, with_retired: bool = False
    ) -> list[VersionRef]:
        """The versions with these numbers, in one round trip. Raises NotFound."""
        tenant, name = address.tenant, address.name
        with errors_explained(self._settings):
            pipe = self._client.pipeline(transaction=False)
            for number in numbers:
                pipe.hget(keys.versions(tenant, name), str(number))
                pipe.hget(keys.retired(tenant, name), str(number))
            replies = pipe.execute()
        refs = []
        for number, digest, retired in zip(numbers, replies[::2], replies[1::2], strict=True):
            if digest is None:
                raise self._not_found(address)
            if retired is not None and not with_retired:
                raise NotFound(
                    f"{tenant}/{name}@{number} is retired and takes no new jobs",
                    given=address,
                    expected="a label or another version; labels: "
                    f"{self._labels_text(tenant, name)}",
                    remedy="'prefillq templates retire --undo' brings it back.",
                )
            refs.append(
                VersionRef(tenant=tenant, template=name, version=number, digest=text(digest))
            )
        return refs

    def get(self, ref: VersionRef) -> PublishedVersion:
        """A version, from this process if it was read before. Raises NotFound."""
        with self._lock:
            if kept := self._kept.get(ref):
                self._kept.move_to_end(ref)
                return kept[0]
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
        self._keep(version, len(data))
        return version

    def _keep(self, version: PublishedVersion, size: int) -> None:
        with self._lock:
            if version.ref in self._kept:
                return
            self._kept[version.ref] = (version, size)
            self._kept_bytes += size
            # One is always kept, however large.
            while len(self._kept) > 1 and (
                len(self._kept) > _KEPT_VERSIONS or self._kept_bytes > _KEPT_BYTES
            ):
                self._kept_bytes -= self._kept.popitem(last=False)[1][1]

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

    def check_known(self, tenant: str, name: str) -> None:
        """Raise NotFound for an unknown template."""
        with errors_explained(self._settings):
            count = self._count(tenant, name)
        if count == 0:
            raise self._not_found(TemplateAddress(tenant=tenant, name=name))

    def labels(self, tenant: str, name: str) -> dict[str, int]:
        """Label -> version number, sorted by label; empty for an unknown template.

        A label whose value is no number is left out, so that it hides no other.
        """
        with errors_explained(self._settings):
            found = self._client.hgetall(keys.labels(tenant, name))
        return self._labels(tenant, name, found)

    def _labels(self, tenant: str, name: str, found: Mapping[bytes, bytes]) -> dict[str, int]:
        labels = {label: version_number(found[label.encode()]) for label in read_names(found)}
        for label in (label for label, number in labels.items() if number is None):
            log.warning("label_unreadable", template=f"{tenant}/{name}", label=label)
        return {label: number for label, number in labels.items() if number is not None}

    def retired(self, tenant: str, name: str) -> list[int]:
        """Numbers of the versions that take no new jobs, sorted."""
        with errors_explained(self._settings):
            return read_numbers(self._client.hkeys(keys.retired(tenant, name)))

    def rollout(self, tenant: str, name: str) -> Rollout | None:
        """The template's active rollout. Raises CodecError when it cannot be read."""
        with errors_explained(self._settings):
            found = self._client.get(keys.rollout(tenant, name))
        return None if found is None else parse_text(found)

    def rollouts(self, tenant: str) -> dict[str, Rollout]:
        """A tenant's active rollouts by template; what cannot be read is logged and left out."""
        with errors_explained(self._settings):
            names = self._names(keys.rollouts(tenant))
            texts = (
                self._client.mget([keys.rollout(tenant, name) for name in names]) if names else []
            )
        found = {}
        for name, rollout_text in zip(names, texts, strict=True):
            try:
                if rollout_text is not None:
                    found[name] = parse_text(rollout_text)
            except CodecError as error:
                log.warning("rollout_unreadable", template=f"{tenant}/{name}", error=str(error))
        return found

    def journal(self, tenant: str, name: str) -> list[Entry]:
        """All moves of a template, oldest first; what cannot be read is logged and left out."""
        key, after = keys.journal(tenant, name), "-"
        entries: list[Entry] = []
        while True:
            with errors_explained(self._settings):
                page = self._client.xrange(key, after, "+", count=_ENTRIES_AT_ONCE)
            if not page:
                return entries
            entries += _read_entries(tenant, name, page)
            after = f"({text(page[-1][0])}"

    def history(self, tenant: str, name: str, limit: int) -> list[Entry]:
        """The last `limit` moves of a template, newest first; as `journal`."""
        with errors_explained(self._settings):
            page = self._client.xrevrange(keys.journal(tenant, name), "+", "-", count=limit)
        return _read_entries(tenant, name, page)

    def sight(self, tenant: str, name: str) -> Sight:
        """All that moves, of one moment."""
        address = TemplateAddress(tenant=tenant, name=name)
        while True:
            with errors_explained(self._settings):
                pipe = self._client.pipeline(transaction=False)
                pipe.get(keys.revision(tenant, name))
                pipe.hkeys(keys.versions(tenant, name))
                pipe.hgetall(keys.labels(tenant, name))
                pipe.hkeys(keys.retired(tenant, name))
                pipe.get(keys.rollout(tenant, name))
                pipe.time()
                pipe.get(keys.revision(tenant, name))
                revision, versions, labels, retired, rollout_text, time, again = pipe.execute()
            if revision == again:
                break  # else somebody moved something in the midst of it
        rollout = damage = None
        try:
            rollout = None if rollout_text is None else parse_text(rollout_text)
        except CodecError as error:
            damage = error
        state = TemplateState(
            name=f"{tenant}/{name}",
            revision=read_revision(revision, address),
            versions=frozenset(read_numbers(versions)),
            labels=self._labels(tenant, name, labels),
            retired=frozenset(read_numbers(retired)),
            rollout=rollout,
        )
        return Sight(
            state=state,
            now=float(time[0]) + float(time[1]) / 1e6,
            rollout_text=rollout_text or b"",
            damage=damage,
        )

    def _labels_text(self, tenant: str, name: str) -> str:
        labels = self.labels(tenant, name)
        return ", ".join(f"{label} ({n})" for label, n in labels.items()) or "none"

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


def _summary(version: PublishedVersion, labels: Mapping[str, int]) -> VersionSummary:
    return VersionSummary(
        ref=version.ref,
        model=version.spec.model,
        model_digest=version.model_digest,
        prefix_tokens=len(version.compiled.prefix_ids),
        published_at=version.published_at,
        labels=tuple(label for label, number in labels.items() if number == version.ref.version),
    )


def _read_entries(
    tenant: str, name: str, page: list[tuple[bytes, dict[bytes, bytes]]]
) -> list[Entry]:
    entries = []
    for entry_id, fields in page:
        try:
            entries.append(read_entry(entry_id, fields))
        except CodecError as error:
            log.warning("journal_entry_unreadable", template=f"{tenant}/{name}", error=str(error))
    return entries
