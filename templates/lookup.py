"""What an address means and what a version is: all that producers read, over either client."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from contract import keys
from contract.calls import Server, ask, command
from contract.codec import unpack
from contract.errors import CodecError, NotFound, PrefillqError, RedisRefused
from contract.ids import TemplateAddress
from contract.logs import get_logger
from contract.redis_client import text
from contract.types import VersionRef
from templates.rollouts.plain import parse_text
from templates.stored import labelled_number, read_names, read_revision, version_number
from templates.target import Target
from templates.version import PublishedVersion, VersionKind

log = get_logger(__name__)

# Versions kept in the process, least recently used out first: enough that a thousand templates in
# turn are not read anew each time. Bytes as they are in Redis; in memory each is several.
_KEPT_VERSIONS, _KEPT_BYTES = 4096, 32 * 2**20


class VersionLookup:
    """Reads over a `contract.calls.Server`; safe to share between threads if the server is."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._kept: OrderedDict[VersionRef, tuple[PublishedVersion, int]] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    async def target(self, address: TemplateAddress) -> Target:
        """See `templates.reading.RegistryReader.target`."""
        tenant, name = address.tenant, address.name
        if address.label is None:
            return Target(revision=None, stable=await self.resolve(address))
        # In this order: what is read after the revision is of that one, or moved since.
        revision, found, rollout_text = await ask(
            self._server,
            command("GET", keys.revision(tenant, name)),
            command("HGET", keys.labels(tenant, name), address.label),
            command("GET", keys.rollout(tenant, name)),
        )
        if found is None:
            raise await self.not_found(address)
        rollout = None if rollout_text is None else parse_text(rollout_text)
        if rollout is not None and rollout.plan.label != address.label:
            rollout = None
        numbers = [labelled_number(address, found)]
        if rollout is not None:
            numbers.append(rollout.plan.canary)
        # Neither is retired in this revision, and in another the submit will be refused.
        stable, *canary = await self._numbered(address, numbers, with_retired=True)
        return Target(
            revision=read_revision(revision, address),
            stable=stable,
            canary=canary[0] if canary else None,
            rollout=rollout,
        )

    async def resolve(self, address: TemplateAddress, *, with_retired: bool = False) -> VersionRef:
        """See `templates.reading.RegistryReader.resolve`."""
        number = address.version
        if address.label is not None:
            labels = keys.labels(address.tenant, address.name)
            [found] = await ask(self._server, command("HGET", labels, address.label))
            if found is None:
                raise await self.not_found(address)
            number = labelled_number(address, found)
        [ref] = await self._numbered(address, [number or 0], with_retired=with_retired)
        return ref

    async def get(self, ref: VersionRef) -> PublishedVersion:
        """See `templates.reading.RegistryReader.get`."""
        return self._found(ref) or await self._read(ref)

    async def _read(self, ref: VersionRef) -> PublishedVersion:
        [data] = await ask(
            self._server, command("GET", keys.version(ref.tenant, ref.template, ref.digest))
        )
        version = _read_version(ref, data)
        self._keep(version, len(data))
        return version

    async def kinds(
        self, refs: Sequence[VersionRef]
    ) -> dict[VersionRef, VersionKind | PrefillqError]:
        """See `templates.reading.RegistryReader.kinds`."""
        replies = await self._server.ask_each(
            [command("GET", keys.version(ref.tenant, ref.template, ref.digest)) for ref in refs]
        )
        found: dict[VersionRef, VersionKind | PrefillqError] = {}
        for ref, data in zip(refs, replies, strict=True):
            try:
                if isinstance(data, PrefillqError):
                    raise data
                found[ref] = VersionKind.read(ref, _present(ref, data))
            except (NotFound, CodecError, RedisRefused) as error:
                found[ref] = error
        return found

    async def not_found(self, address: TemplateAddress) -> NotFound:
        """The error for an address of nothing, which names what there is."""
        tenant, name = address.tenant, address.name
        names, latest = await ask(
            self._server,
            command("SMEMBERS", keys.templates(tenant)),
            command("HLEN", keys.versions(tenant, name)),
        )
        labels = "" if latest == 0 else await self._labels_text(tenant, name)
        return nothing_at(address, read_names(names), latest, labels)

    def _found(self, ref: VersionRef) -> PublishedVersion | None:
        with self._lock:
            if kept := self._kept.get(ref):
                self._kept.move_to_end(ref)
                return kept[0]
        return None

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

    async def _numbered(
        self, address: TemplateAddress, numbers: Sequence[int], *, with_retired: bool = False
    ) -> list[VersionRef]:
        """The versions with these numbers, in one round trip. Raises NotFound."""
        tenant, name = address.tenant, address.name
        replies = await ask(
            self._server,
            *(
                command("HGET", key, str(number))
                for number in numbers
                for key in (keys.versions(tenant, name), keys.retired(tenant, name))
            ),
        )
        refs = []
        for number, digest, retired in zip(numbers, replies[::2], replies[1::2], strict=True):
            if digest is None:
                raise await self.not_found(address)
            if retired is not None and not with_retired:
                raise retired_at(address, number, await self._labels_text(tenant, name))
            refs.append(
                VersionRef(tenant=tenant, template=name, version=number, digest=text(digest))
            )
        return refs

    async def _labels_text(self, tenant: str, name: str) -> str:
        [found] = await ask(self._server, command("HGETALL", keys.labels(tenant, name)))
        return labels_text(readable_labels(tenant, name, found))


class SharedLookup(VersionLookup):
    """The same for an event loop, whose callers at once share one read of a version: a thousand
    first submits would each read and unpack it.
    """

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._reads: dict[VersionRef, asyncio.Task[PublishedVersion]] = {}

    async def get(self, ref: VersionRef) -> PublishedVersion:
        """As `VersionLookup.get`; a caller that is cancelled leaves the others their read."""
        if found := self._found(ref):
            return found
        read = self._reads.get(ref)
        if read is None or read.done():
            read = self._reads[ref] = asyncio.create_task(self._read(ref))
            read.add_done_callback(lambda done: self._forget(ref, done))
        return await asyncio.shield(read)

    def _forget(self, ref: VersionRef, done: asyncio.Task[PublishedVersion]) -> None:
        if self._reads.get(ref) is done:
            del self._reads[ref]
        if not done.cancelled():
            done.exception()  # all who waited may be cancelled: then nobody else looks at it


def labels_text(labels: Mapping[str, int]) -> str:
    """Labels for a message."""
    return ", ".join(f"{label} ({n})" for label, n in labels.items()) or "none"


def nothing_at(
    address: TemplateAddress, names: Sequence[str], latest: int, labels: str
) -> NotFound:
    """The error for an address of nothing, where the tenant has templates of these names, and the
    template versions up to `latest` (0: it is not there).
    """
    tenant, name = address.tenant, address.name
    if latest == 0:
        near = get_close_matches(name, names, n=3) or names[:10]
        return NotFound(
            "no such template",
            given=address,
            expected=", ".join(f"{tenant}/{n}" for n in near) or f"no templates of {tenant}",
            remedy="See 'prefillq templates list'.",
        )
    return NotFound(
        "no such version or label",
        given=address,
        expected=f"versions 1 to {latest}, labels: {labels}",
        remedy=f"See 'prefillq templates show {tenant}/{name}'.",
    )


def retired_at(address: TemplateAddress, number: int, labels: str) -> NotFound:
    """The error for a version that is retired."""
    return NotFound(
        f"{address.tenant}/{address.name}@{number} is retired and takes no new jobs",
        given=address,
        expected=f"a label or another version; labels: {labels}",
        remedy="'prefillq templates retire --undo' brings it back.",
    )


def readable_labels(tenant: str, name: str, found: Mapping[bytes, bytes]) -> dict[str, int]:
    """Label -> version number, sorted. A label whose value is no number hides no other."""
    labels = {label: version_number(found[label.encode()]) for label in read_names(found)}
    for label in (label for label, number in labels.items() if number is None):
        log.warning("label_unreadable", template=f"{tenant}/{name}", label=label)
    return {label: number for label, number in labels.items() if number is not None}


def _present(ref: VersionRef, data: bytes | None) -> bytes:
    if data is None:
        raise NotFound(
            f"{ref} is not in this Redis",
            given=f"digest {ref.digest[:12]}",
            remedy="Publish the template again: the same content gives the same digest.",
        )
    return data


def _read_version(ref: VersionRef, data: bytes | None) -> PublishedVersion:
    version = PublishedVersion.from_plain(unpack(_present(ref, data)))
    if version.ref != ref:
        # A digest alone opens nothing: a reference must name the tenant it belongs to.
        raise NotFound(f"{ref} is not in this Redis", given=f"what is stored is {version.ref}")
    return version
