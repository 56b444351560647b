"""The jobs of one call as their caller wants them, checked before anything is asked of Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract.errors import InvalidInput
from contract.ids import TemplateAddress, new_job_id, parse_address
from producer.patience import Pace
from producer.validate import VariablesChecker
from templates.rollouts.plain import check_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A job as its caller wants it, before its version is known."""

    job_id: str
    variables: Mapping[str, Any]  # as a worker will see them
    idempotency_key: str | None
    sticky_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds for all jobs of a call."""

    address: TemplateAddress
    deadline_s: float | None  # None: the version's
    use_cache: bool
    stream: bool = False  # the answer is also wanted piece by piece


def terms_of(template: str, deadline_s: float | None, *, use_cache: bool, stream: bool) -> Terms:
    """The terms of a call. Raises InvalidInput for what is no address."""
    address = parse_address(template)
    return Terms(address=address, deadline_s=deadline_s, use_cache=use_cache, stream=stream)


async def wishes_of(
    checker: VariablesChecker,
    terms: Terms,
    inputs: Sequence[Mapping[str, Any]],
    keys: Sequence[str] | None,
    sticky_keys: Sequence[str | None] | None,
    *,
    pace: Pace,
) -> list[Wish]:
    """The jobs of a call, in order. Raises InvalidInput that names the item, counted from 0."""
    if keys is not None and (len(keys), len(set(keys))) != (len(inputs), len(inputs)):
        raise InvalidInput(
            "idempotency keys do not match the inputs",
            given=f"{len(keys)} keys, {len(set(keys))} different",
            expected=f"{len(inputs)} different keys",
        )
    if sticky_keys is not None and len(sticky_keys) != len(inputs):
        raise InvalidInput(
            "sticky keys do not match the inputs",
            given=f"{len(sticky_keys)} keys",
            expected=f"{len(inputs)}, one for each",
        )
    for key in sticky_keys or ():
        if key is not None:
            check_key("the sticky key", key)
    wishes = []
    for place, plain in enumerate(_plain(checker, inputs)):
        wishes.append(
            Wish(
                job_id=new_job_id(terms.address.tenant),
                variables=plain,
                idempotency_key=None if keys is None else keys[place],
                sticky_key=None if sticky_keys is None else sticky_keys[place],
            )
        )
        await pace.step()
    return wishes


def of_item(place: int, error: InvalidInput) -> InvalidInput:
    """The same error, of one of several jobs."""
    return InvalidInput(
        f"item {place}: {error.problem}",
        given=error.given,
        expected=error.expected,
        remedy=error.remedy,
    )


def _plain(
    checker: VariablesChecker, inputs: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    for place, variables in enumerate(inputs):
        try:
            yield checker.plain(variables)
        except InvalidInput as error:
            if len(inputs) == 1:
                raise
            raise of_item(place, error) from error
