"""Which prefixes a worker fills before jobs want them, and which it never evicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from contract.errors import RedisRefused, RedisUnreachable
from contract.ids import TemplateAddress
from contract.logs import get_logger
from contract.types import VersionRef
from templates.version import PublishedVersion
from worker.catalog import Served
from worker.options import Warm
from worker.patterns import Pin
from worker.prefix.entry import PrefixKey
from worker.prefixes import PrefixService
from worker.rollouts.warmth import Warmer

log = get_logger(__name__)


class Versions(Protocol):
    """The templates that are served, by label and number; `worker.catalog.Catalog` is one."""

    def labels(self, served: Served) -> Mapping[str, VersionRef]: ...

    def read(self, ref: VersionRef) -> PublishedVersion | None: ...

    def version(self, tenant: str, template: str, number: int) -> PublishedVersion | None: ...


class Warming:
    """Follows labels and pins. `start` and `keep_up` are not to be called at the same time."""

    def __init__(
        self,
        *,
        warm: Warm,
        pins: Sequence[Pin],
        versions: Versions,
        prefixes: PrefixService,
        warmer: Warmer,
        recent: Callable[[], list[TemplateAddress]],  # versions with jobs lately, newest first
    ) -> None:
        self._warm = warm
        self._pins = pins
        self._versions = versions
        self._prefixes = prefixes
        self._warmer = warmer
        self._recent = recent
        self._pinned: dict[PrefixKey, VersionRef] = {}
        self._refused: set[PrefixKey] = set()  # told once, until there is room
        self._full = False

    def start(self, serving: Iterable[Served]) -> None:
        """Before the first job: pins, then what `--warm` says."""
        serving = list(serving)
        self._follow_pins(serving)
        match self._warm:
            case "all":
                self._fill(v for served in serving for v in self._labelled(served))
            case "used":
                self._fill(self._used({(one.tenant, one.template) for one in serving}))
            case "none":
                pass

    def keep_up(self, serving: Iterable[Served]) -> None:
        """What was published, labelled or retired since."""
        serving = list(serving)
        self._follow_pins(serving)
        if self._warm == "all":
            self._fill(v for served in serving for v in self._labelled(served))

    def pinned(self) -> frozenset[str]:
        """Digests of the versions that are never evicted."""
        return frozenset(key.digest for key in list(self._pinned))

    def _labelled(self, served: Served) -> Iterable[PublishedVersion]:
        """What labels point to and was not tried yet: the others are not read again each time."""
        for ref in dict.fromkeys(self._versions.labels(served).values()):
            version = None if self._warmer.tried(ref) else self._versions.read(ref)
            if version is not None:
                yield version

    def _used(self, served: set[tuple[str, str]]) -> Iterable[PublishedVersion]:
        try:
            recent = self._recent()
        except (RedisRefused, RedisUnreachable) as error:
            # Users that were made by an older release may not read it; and a worker that cannot
            # know what to warm can do its jobs.
            log.warning("used_versions_not_read", error=str(error))
            return
        for address in recent:
            if (address.tenant, address.name) in served and address.version is not None:
                found = self._versions.version(address.tenant, address.name, address.version)
                if found is not None:
                    yield found

    def _fill(self, versions: Iterable[PublishedVersion]) -> None:
        """One after the other, until the next would push out one that was filled before."""
        for version in versions:
            if self._warmer.tried(version.ref) or not version.compiled.prefix_ids:
                continue
            if not self._prefixes.room_for(version):
                if not self._full:
                    self._full = True
                    log.info(
                        "warming_stopped",
                        next=str(version.ref),
                        reason="the prefix cache is full; raise --cache-bytes to warm more",
                    )
                return
            self._warmer.warm_once(version)
        self._full = False

    def _follow_pins(self, serving: Iterable[Served]) -> None:
        if not self._pins:
            return
        wanted = {
            self._prefixes.key_of(ref): ref
            for served in serving
            if any(pin.names(served.tenant, served.template) for pin in self._pins)
            for label, ref in self._versions.labels(served).items()
            if any(pin.wants(served.tenant, served.template, label) for pin in self._pins)
        }
        for key in self._pinned.keys() - wanted.keys():
            self._prefixes.cache.unpin(key)
            log.info("version_unpinned", version=str(self._pinned.pop(key)))
        self._refused &= wanted.keys()
        for key, ref in wanted.items():
            if self._may_change(key, ref) and (version := self._versions.read(ref)) is not None:
                self._keep(key, version)

    def _may_change(self, key: PrefixKey, ref: VersionRef) -> bool:
        """False for a pin that stays as it is, whose version need not be read each time."""
        if key in self._pinned:
            return self._warmer.due(ref)  # it may have been dropped as spoilt
        if key in self._refused:
            return self._prefixes.holds(ref) or self._warmer.due(ref)
        return True

    def _keep(self, key: PrefixKey, version: PublishedVersion) -> None:
        if key in self._pinned:
            self._warmer.keep_warm(version)
            return
        # Before it is filled: it must not be evicted between the two.
        self._prefixes.cache.pin(key)
        self._warmer.keep_warm(version)
        report = self._prefixes.report(version)
        held = self._prefixes.holds(version.ref)
        if version.spec.samples and not (held and report is not None and report.parity.ok):
            self._prefixes.cache.unpin(key)
            self._refuse(key, version)
            return
        self._refused.discard(key)
        self._pinned[key] = version.ref  # without samples: held from its first job on
        log.info("version_pinned", version=str(version.ref), nbytes=report.nbytes if report else 0)

    def _refuse(self, key: PrefixKey, version: PublishedVersion) -> None:
        if key in self._refused:
            return
        self._refused.add(key)
        nbytes, stats = self._prefixes.cache.refused_bytes(key), self._prefixes.cache.stats()
        if nbytes is None:
            given = "its prefix could not be filled; see the lines before this one"
        else:
            given = f"{nbytes} bytes beside {len(self._pinned)} other pinned versions"
        log.error(
            "pin_refused",
            version=str(version.ref),
            given=given,
            expected=f"{stats.max_bytes} bytes in all",
            remedy="Raise --cache-bytes or pin less; its jobs run as if it were not pinned.",
        )
