"""Which templates a worker serves: those its patterns name, published for its model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ResponseError

from contract import keys
from contract.errors import PrefillqError, RedisRefused, RedisUnreachable
from contract.logs import get_logger
from contract.pinned import count_pinned
from contract.redis_client import Client, errors_explained
from contract.settings import Settings
from contract.types import VersionRef
from templates.registry import Registry
from templates.standing import Standing, Template
from templates.stored import read_names
from templates.version import PublishedVersion
from worker.patterns import Patterns, Pin, check_pattern, match
from worker.standings import Standings

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Served:
    """One template that this worker consumes."""

    tenant: str
    template: str
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """A template's versions that this worker's model can run, and where they stand."""

    standing: Standing
    refs: tuple[VersionRef, ...]
    whole: bool  # False: a version could not be read, and is tried again at the next look

    @property
    def open(self) -> bool:
        """True when one of them takes new jobs."""
        return any(ref.version not in self.standing.retired for ref in self.refs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What is once learned of a version, which never changes."""

    model_digest: str
    bare: bool  # it has no prefix that could be held


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledQueues:
    """Where the versions go that labels point to. Made anew by each look that found a change."""

    queue_of: Mapping[str, str] = field(default_factory=dict)  # version digest -> queue
    bare: frozenset[str] = frozenset()  # queues of versions without a prefix


class Catalog:
    """Follows the registry; `refresh` is cheap enough to run every couple of seconds."""

    def __init__(
        self,
        *,
        client: Client,
        settings: Settings,
        registry: Registry,
        model_digest: str,
        patterns: Iterable[str] = (),
        exclude: Iterable[str] = (),
    ) -> None:
        self._client: Any = client  # redis-py types each reply as a value or an awaitable
        self._settings = settings
        self._registry = registry
        self._model_digest = model_digest
        self._patterns = Patterns(
            include=tuple(check_pattern(pattern) for pattern in patterns),
            exclude=tuple(check_pattern(pattern) for pattern in exclude),
        )
        self._standings = Standings(client, settings)
        self._names: dict[str, list[str]] = {}  # tenant -> templates, as last read
        self._kinds: dict[VersionRef, _Kind] = {}
        self._fits: Mapping[Template, _Fit] = {}  # replaced as a whole: other threads read it
        self._found: list[Served] = []
        self._done: set[Template] = set()  # wholly retired ones whose last job has ended
        self._skipped: set[VersionRef] = set()  # logged once, and tried again each time
        self.labelled_queues = LabelledQueues()

    def refresh(self) -> list[Served]:
        """All templates that match and have a version for this worker's model, sorted.

        One whose versions for it are all retired is served until their last job has ended. A
        tenant whose keys cannot be read (its admin can write them) is served as it was.
        """
        standings = self._standings.look(self._matching())
        fits = {
            template: fit
            for template, standing in standings.items()
            if (fit := self._fit(template, standing)).refs
        }
        self._done = self._drained([t for t, fit in fits.items() if not fit.open])
        self._fits = fits
        self._found = self._served(fits.keys() - self._done)
        self._follow_labels()
        return self._found

    def dropped(self) -> list[Served]:
        """Templates that match and are not served any more: all their versions are retired."""
        return self._served(self._done)

    def labelled(self, served: Served) -> list[PublishedVersion]:
        """Versions that a label of the template points to and this worker's model can run, as of
        the last `refresh`."""
        fit = self._fits.get((served.tenant, served.template))
        return [] if fit is None else self._chosen(fit, set(fit.standing.labels.values()))

    def labels(self, served: Served) -> dict[str, VersionRef]:
        """By label, those of them that have a prefix; without reading them again."""
        fit = self._fits.get((served.tenant, served.template))
        if fit is None:
            return {}
        refs = {ref.version: ref for ref in fit.refs if not self._kinds[ref].bare}
        return {label: refs[at] for label, at in fit.standing.labels.items() if at in refs}

    def read(self, ref: VersionRef) -> PublishedVersion | None:
        """A version that `labels` named; None if it is gone or spoilt since."""
        try:
            return self._registry.get(ref)
        except RedisUnreachable:
            raise
        except PrefillqError as error:
            log.warning("version_skipped", version=str(ref), error=str(error))
            return None

    def retired(self, served: Served) -> list[VersionRef]:
        """Versions that take no new jobs and that this worker's model can run."""
        fit = self._fits.get((served.tenant, served.template))
        return [] if fit is None else [r for r in fit.refs if r.version in fit.standing.retired]

    def version(self, tenant: str, template: str, number: int) -> PublishedVersion | None:
        """A version of a served template that takes jobs and this worker's model can run."""
        fit = self._fits.get((tenant, template))
        found = [] if fit is None else self._chosen(fit, {number} - fit.standing.retired)
        return found[0] if found else None

    def matches(self, tenant: str, template: str) -> bool:
        """True for a template that this worker may serve, if it has a version for its model."""
        return self._patterns.serve(tenant, template)

    def idle_patterns(self, pins: Iterable[Pin] = ()) -> list[tuple[str, str]]:
        """Options and their patterns that name no template so far, as of the last `refresh`."""
        served = {(one.tenant, one.template) for one in self._found}
        there = {(tenant, name) for tenant, names in self._names.items() for name in names}
        given = [("--template", p, p, served) for p in self._patterns.include]
        given += [("--exclude", p, p, there) for p in self._patterns.exclude]
        given += [("--pin", str(pin), pin.pattern, served) for pin in pins]
        return [
            (option, written)
            for option, written, pattern, templates in given
            if not any(match(pattern, *template) for template in templates)
        ]

    def _matching(self) -> list[Template]:
        with errors_explained(self._settings):
            tenants = read_names(self._client.smembers(keys.TENANTS))
            pipe = self._client.pipeline(transaction=False)
            for tenant in tenants:
                pipe.smembers(keys.templates(tenant))
            replies = pipe.execute(raise_on_error=False)
        before, self._names = self._names, {}
        for tenant, reply in zip(tenants, replies, strict=True):
            if isinstance(reply, ResponseError):
                log.warning("tenant_not_read", tenant=tenant, error=str(reply)[:200])
                self._names[tenant] = before.get(tenant, [])
            else:
                self._names[tenant] = read_names(reply)
        return [
            (tenant, name)
            for tenant, names in self._names.items()
            for name in names
            if self.matches(tenant, name)
        ]

    def _fit(self, template: Template, standing: Standing) -> _Fit:
        before = self._fits.get(template)
        if before is not None and before.whole and before.standing is standing:
            return before
        kinds = {ref: self._kind(ref) for ref in standing.refs}
        return _Fit(
            standing=standing,
            refs=tuple(
                ref
                for ref, kind in kinds.items()
                if kind is not None and kind.model_digest == self._model_digest
            ),
            whole=None not in kinds.values(),
        )

    def _kind(self, ref: VersionRef) -> _Kind | None:
        """None for a version that cannot be read, of a newer release perhaps: it must not keep the
        others from being served.
        """
        if ref not in self._kinds:
            try:
                version = self._registry.get(ref)
            except (RedisUnreachable, RedisRefused):
                raise
            except PrefillqError as error:
                if ref not in self._skipped:
                    self._skipped.add(ref)
                    log.warning("version_skipped", version=str(ref), error=str(error))
                return None
            self._kinds[ref] = _Kind(
                model_digest=version.model_digest, bare=not version.compiled.prefix_ids
            )
        return self._kinds[ref]

    def _chosen(self, fit: _Fit, numbers: Iterable[int]) -> list[PublishedVersion]:
        wanted = set(numbers)
        found = [self.read(ref) for ref in fit.refs if ref.version in wanted]
        return [version for version in found if version is not None]

    def _drained(self, templates: list[Template]) -> set[Template]:
        """Those of these wholly retired templates that have no unfinished job."""
        if not templates:
            return set()
        with errors_explained(self._settings):
            pipe = self._client.pipeline(transaction=False)
            for template in templates:
                pipe.zcount(keys.waiting(*template), "-inf", "+inf")
            replies = pipe.execute(raise_on_error=False)
        empty = [t for t, reply in zip(templates, replies, strict=True) if reply == 0]
        # One that was found without jobs takes no new ones; only a revived job, which waits then.
        return {t for t in empty if t in self._done or not self._has_jobs(t)}

    def _has_jobs(self, template: Template) -> bool:
        """Also running ones: should their worker die, they come back to the queue."""
        try:
            with errors_explained(self._settings):
                return any(count_pinned(self._client, *template).values())
        except RedisRefused as error:
            log.warning("jobs_not_counted", template="/".join(template), error=str(error))
            return True

    def _follow_labels(self) -> None:
        queue_of, bare = {}, set()
        for (tenant, name), fit in self._fits.items():
            numbers = set(fit.standing.labels.values())
            queue = self._queue(tenant, name)
            for ref in fit.refs:
                if ref.version in numbers:
                    queue_of[ref.digest] = queue
                    if self._kinds[ref].bare:
                        bare.add(queue)
        found = LabelledQueues(queue_of=queue_of, bare=frozenset(bare))
        if found != self.labelled_queues:
            self.labelled_queues = found

    def _served(self, templates: Iterable[Template]) -> list[Served]:
        return [
            Served(tenant=tenant, template=name, queue=self._queue(tenant, name))
            for tenant, name in sorted(templates)
        ]

    def _queue(self, tenant: str, template: str) -> str:
        return keys.queue(tenant, template, self._model_digest)
