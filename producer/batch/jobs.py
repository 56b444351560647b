"""Where a batch's jobs go, and what their templates take."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, Self

from contract.errors import InvalidInput
from contract.ids import parse_address
from contract.redis_client import connect
from contract.settings import Settings
from contract.types import VersionRef
from producer.batch.lines import BatchLine
from producer.client import Producer
from producer.handle import JobHandle
from producer.patience import Patience
from producer.validate import VariablesChecker
from templates.registry import Registry
from templates.target import Target
from templates.version import PublishedVersion


class Jobs:
    """`producer.batch.flight.Submitter` on a real `Producer`.

    Lines are checked against the versions that their template's address may mean at the start.
    """

    def __init__(self, settings: Settings, *, use_cache: bool, patience_s: float) -> None:
        self._producer = Producer(settings, patience_s=patience_s)
        self._patience = Patience(patience_s)
        self._client = connect(settings)
        self._registry = Registry(self._client, settings)
        self._checker = VariablesChecker(settings.max_variables_bytes)
        self._targets: dict[str, Target] = {}  # by address
        self._use_cache = use_cache

    def check(self, template: str, variables: Mapping[str, Any], sticky_key: str | None) -> None:
        for ref in self._target(template).refs_for(variables, sticky_key):
            self._checker.check(self._version(ref), variables)

    def only_variable(self, template: str) -> str:
        """`producer.batch.formats.OnlyVariable`."""
        version = self._version(self._target(template).stable)
        names = list(version.spec.input.json_schema.get("properties", {}))
        if len(names) != 1:
            raise InvalidInput(
                "body.messages can only stand for a template's one variable",
                given=f"{version.ref} with {', '.join(names)[:120] or 'none'}",
                remedy="Give the variables by name in body.prompt.variables.",
            )
        return str(names[0])

    def version_of(self, line: BatchLine) -> PublishedVersion:
        """The version that a line gets, or during a rollout may get."""
        refs = self._target(line.template).refs_for(line.variables, line.sticky_key)
        return self._version(refs[0])

    def _target(self, template: str) -> Target:
        if template not in self._targets:
            address = parse_address(template)
            self._targets[template] = self._patience.call(lambda: self._registry.target(address))
        return self._targets[template]

    def _version(self, ref: VersionRef) -> PublishedVersion:
        return self._patience.call(partial(self._registry.get, ref))

    def submit(self, line: BatchLine, idempotency_key: str) -> JobHandle:
        return self._producer.submit(
            line.template,
            line.variables,
            idempotency_key=idempotency_key,
            sticky_key=line.sticky_key,
            use_cache=self._use_cache,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()
        self._client.close()

    def ended(self, handles: Collection[JobHandle], timeout: float | None) -> Iterator[JobHandle]:
        return self._producer.as_completed(handles, timeout)
