"""Reading published templates from Redis: what an address means, versions, labels, the journal.

A version never changes once written, so it is kept in the process; everything else may move at any
time and is read anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from contract import keys
from contract.awaited import run_now
from contract.calls import BlockingServer, ask, command
from contract.errors import CodecError, NotFound, PrefillqError, RedisUnreachable
from contract.ids import TemplateAddress
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained, text
from contract.settings import Settings
from contract.types import VersionRef
from contract.users import user_of
from templates.lookup import VersionLookup, readable_labels
from templates.rollouts.journal import Entry, read_entry
from templates.rollouts.moves import TemplateState
from templates.rollouts.plain import parse_text
from templates.rollouts.rollout import Rollout
from templates.standing import StandingRead, Template, read_standings
from templates.stored import (
    read_names,
    read_numbers,
    read_refs,
    read_revision,
)
from templates.target import Target
from templates.version import PublishedVersion, VersionKind

log = get_logger(__name__)

_ENTRIES_AT_ONCE = 500
_FEW_ENTRIES = 5  # where each may be of any length


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
        self._server = BlockingServer(client, settings)
        self._lookup = VersionLookup(self._server)

    def target(self, address: TemplateAddress) -> Target:
        """The version or versions that new jobs of an address get, and which job gets which.

        Raises NotFound as `resolve` does, and CodecError when the rollout cannot be read.
        """
        return run_now(self._lookup.target(address))

    def resolve(self, address: TemplateAddress, *, with_retired: bool = False) -> VersionRef:
        """The version that an address names now; of a rollout's label, the stable one.

        Raises NotFound that lists the labels and versions, or the nearest names, there are; also
        for a version that is retired, unless `with_retired`.
        """
        return run_now(self._lookup.resolve(address, with_retired=with_retired))

    def get(self, ref: VersionRef) -> PublishedVersion:
        """A version, from this process if it was read before. Raises NotFound."""
        return run_now(self._lookup.get(ref))

    def kinds(self, refs: Sequence[VersionRef]) -> dict[VersionRef, VersionKind | PrefillqError]:
        """What each is, in few round trips, or why it cannot be read. Raises RedisUnreachable.

        All their texts are in memory at once: ask for a few hundred at a time.
        """
        return run_now(self._lookup.kinds(refs))

    def template_names(self, tenant: str | None = None) -> list[Template]:
        """Of a tenant, or of every tenant that this user may see: tenants and names, sorted.

        In few round trips. Of all tenants, one whose keys are damaged is logged and left out.
        """
        if tenant is None and self._user is not None:
            tenant = self._user.tenant
        if tenant is None:
            with errors_explained(self._settings):
                tenants = self._names(keys.TENANTS)
        else:
            tenants = [tenant]
        replies = run_now(
            self._server.ask_each([command("SMEMBERS", keys.templates(t)) for t in tenants])
        )
        refused = [reply for reply in replies if isinstance(reply, PrefillqError)]
        for error in refused:
            if len(refused) == len(replies) or isinstance(error, RedisUnreachable):
                raise error
        found = []
        for t, reply in zip(tenants, replies, strict=True):
            if isinstance(reply, PrefillqError):
                log.warning("tenant_not_read", tenant=t, error=str(reply)[:200])
            else:
                found += [(t, name) for name in read_names(reply)]
        return found

    def standings(self, templates: Sequence[Template]) -> list[StandingRead]:
        """As `templates.standing.read_standings`."""
        return run_now(read_standings(self._server, templates))

    def list_templates(self, tenant: str | None = None) -> list[TemplateSummary]:
        """All templates of a tenant, or of every tenant that this user may see, by name."""
        found = self.template_names(tenant)
        replies = run_now(
            ask(
                self._server,
                *(
                    call
                    for template in found
                    for call in (
                        command("HLEN", keys.versions(*template)),
                        command("HGETALL", keys.labels(*template)),
                    )
                ),
            )
        )
        return [
            TemplateSummary(
                tenant=t, name=name, latest=latest, labels=readable_labels(t, name, labels)
            )
            for (t, name), latest, labels in zip(found, replies[::2], replies[1::2], strict=True)
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
        return readable_labels(tenant, name, found)

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

    def history(
        self, tenant: str, name: str, limit: int, *, most_bytes: int | None = None
    ) -> list[Entry]:
        """The last `limit` moves of a template, newest first; as `journal`.

        With `most_bytes` no further ones are asked for once those that came have so many: an
        entry of any length may be written by hand.
        """
        key, before, size = keys.journal(tenant, name), "+", 0
        pages: list[tuple[bytes, dict[bytes, bytes]]] = []
        at_once = limit if most_bytes is None else min(limit, _FEW_ENTRIES)
        while len(pages) < limit:
            count = min(at_once, limit - len(pages))
            with errors_explained(self._settings):
                page = self._client.xrevrange(key, before, "-", count=count)
            pages += page
            size += sum(len(n) + len(v) for _, fields in page for n, v in fields.items())
            if len(page) < count:
                break
            if most_bytes is not None and size > most_bytes:
                log.warning("journal_too_large", template=f"{tenant}/{name}", bytes=size)
                break
            before = f"({text(page[-1][0])}"
        return _read_entries(tenant, name, pages)

    def sight(self, tenant: str, name: str, *, longest: int | None = None) -> Sight:
        """All that moves, of one moment.

        `longest`: bytes of the rollout's text that are read at most, for who moves nothing by it; a
        longer one is damaged.
        """
        address = TemplateAddress(tenant=tenant, name=name)
        while True:
            with errors_explained(self._settings):
                pipe = self._client.pipeline(transaction=False)
                pipe.get(keys.revision(tenant, name))
                pipe.hkeys(keys.versions(tenant, name))
                pipe.hgetall(keys.labels(tenant, name))
                pipe.hkeys(keys.retired(tenant, name))
                if longest is None:
                    pipe.get(keys.rollout(tenant, name))
                else:  # a byte more than it may have
                    pipe.getrange(keys.rollout(tenant, name), 0, longest)
                pipe.time()
                pipe.get(keys.revision(tenant, name))
                revision, versions, labels, retired, rollout_text, time, again = pipe.execute()
            if revision == again:
                break  # else somebody moved something in the midst of it
        if longest is not None and not rollout_text:  # GETRANGE has no other word for nothing
            rollout_text = None
        rollout = damage = None
        try:
            rollout = None if rollout_text is None else parse_text(rollout_text)
        except CodecError as error:
            damage = error
        state = TemplateState(
            name=f"{tenant}/{name}",
            revision=read_revision(revision, address),
            versions=frozenset(read_numbers(versions)),
            labels=readable_labels(tenant, name, labels),
            retired=frozenset(read_numbers(retired)),
            rollout=rollout,
        )
        return Sight(
            state=state,
            now=float(time[0]) + float(time[1]) / 1e6,
            rollout_text=rollout_text or b"",
            damage=damage,
        )

    def _count(self, tenant: str, name: str) -> int:
        return int(self._client.hlen(keys.versions(tenant, name)))

    def _server_time(self) -> float:
        seconds, micros = self._client.time()
        return float(seconds) + float(micros) / 1e6

    def _names(self, key: str) -> list[str]:
        return read_names(self._client.smembers(key))

    def _not_found(self, address: TemplateAddress) -> NotFound:
        return run_now(self._lookup.not_found(address))


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
