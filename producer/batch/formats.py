"""How a batch's lines are written: prefillq's own way, and the parts that another way needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from contract.described import describe
from contract.errors import InvalidInput, PrefillqError
from contract.ids import parse_address
from contract.types import JobState, Result, Usage
from producer.batch.seen import check_index

MAX_ID = 512  # characters
INVALID = "invalid"  # the status of a line that could not become a job
_STATUSES = {INVALID, *(str(state) for state in JobState if state.ended)}
_FIELDS = {"variables", "template", "id", "sticky_key"}

# The one variable of the template at an address. Raises InvalidInput when it has another number.
OnlyVariable = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a line asks for, before it is known whether its template takes it."""

    template: str
    variables: Mapping[str, Any]
    sticky_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a line of the output says of itself."""

    index: int
    batch: str
    status: str
    usage: Usage | None

    def __post_init__(self) -> None:
        """Raise ValueError or InvalidInput for what no output holds."""
        check_index(self.index)
        if self.index < 0 or self.status not in _STATUSES:
            raise ValueError("an index or status that no line has")


class Format(Protocol):
    """The lines of one kind of batch file."""

    name: str
    unique_ids: bool  # True: no two lines of an input may have the same id
    beginning: bytes  # of every line that is written, to tell a torn one from somebody else's

    def id_of(self, data: Mapping[str, Any]) -> str | int | None:
        """The caller's name for a line. Raises InvalidInput."""
        ...

    def read(
        self, data: Mapping[str, Any], *, template: str | None, only_variable: OnlyVariable
    ) -> Asked:
        """A line of the input. Raises InvalidInput."""
        ...

    def result(self, result: Result, *, batch: str, index: int, id_: str | int | None) -> Any:
        """The line of a job that has ended."""
        ...

    def failed(
        self,
        error: PrefillqError,
        *,
        job_id: str | None,
        batch: str,
        index: int,
        id_: str | int | None,
    ) -> Any:
        """The line of a job whose answer is not to be had."""
        ...

    def refused(
        self, error: PrefillqError, *, batch: str, index: int, id_: str | int | None
    ) -> Any:
        """The line of one that could not become a job."""
        ...

    def written(self, line: Any) -> Written:
        """What a line of the output says. Raises LookupError, TypeError, AttributeError, ValueError
        or InvalidInput for those that this format does not write."""
        ...


class OwnFormat:
    """`{"variables": {...}, "template": ..., "id": ..., "sticky_key": ...}`, of which the last
    three are optional; and results with `index`, `id` and `batch` before them.
    """

    name = "prefillq"
    unique_ids = False
    beginning = b'{"index": '

    def id_of(self, data: Mapping[str, Any]) -> str | int | None:
        value = data.get("id")
        if value is not None and not isinstance(value, str | int):
            raise InvalidInput(
                "id is neither text nor integer",
                given=describe(value),
                expected='such as "ticket-17" or 17',
            )
        if isinstance(value, str) and len(value) > MAX_ID:
            raise InvalidInput(
                "id is too long", given=describe(value), expected=f"at most {MAX_ID} characters"
            )
        return value

    def read(
        self,
        data: Mapping[str, Any],
        *,
        template: str | None,
        only_variable: OnlyVariable,  # noqa: ARG002 - here each variable has its name
    ) -> Asked:
        address = address_of(data.get("template", template))
        if unknown := sorted(set(data) - _FIELDS):
            raise InvalidInput(
                "unknown fields",
                given=", ".join(map(ascii, unknown))[:120],
                expected="variables, template, id, sticky_key",
                remedy="Put the template's variables under 'variables'.",
            )
        variables = data.get("variables")
        if not isinstance(variables, dict):
            raise InvalidInput(
                "variables is no object",
                given="nothing" if variables is None else describe(variables),
                expected='"variables": {"name": value}',
            )
        return Asked(template=address, variables=variables, sticky_key=data.get("sticky_key"))

    def result(self, result: Result, *, batch: str, index: int, id_: str | int | None) -> Any:
        return {"index": index, "id": id_, "batch": batch, **result.to_dict()}

    def failed(
        self,
        error: PrefillqError,
        *,
        job_id: str | None,
        batch: str,
        index: int,
        id_: str | int | None,
    ) -> Any:
        return {
            "index": index,
            "id": id_,
            "batch": batch,
            "job_id": job_id,
            "status": str(JobState.FAILED),
            "usage": Usage().to_dict(),
            "error": {
                "code": error.code,
                "message": error.without_remedy,
                "remedy": error.remedy,
            },
        }

    def refused(
        self, error: PrefillqError, *, batch: str, index: int, id_: str | int | None
    ) -> Any:
        error_ = error.to_dict()
        return {"index": index, "id": id_, "batch": batch, "status": INVALID, "error": error_}

    def written(self, line: Any) -> Written:
        usage = line.get("usage") if isinstance(line, dict) else None
        index, whose, status = line["index"], line["batch"], line["status"]
        if (type(index), type(whose), type(status)) != (int, str, str):
            raise TypeError("fields of other types")
        return Written(
            index=index,
            batch=whose,
            status=status,
            usage=None if usage is None else Usage.from_dict(usage),
        )


def address_of(value: object) -> str:
    """A template's address. Raises InvalidInput."""
    if not isinstance(value, str):
        raise InvalidInput(
            "template is missing",
            given="no template" if value is None else describe(value),
            expected='"template": "tenant/name"',
            remedy="Name it on the line or with --template.",
        )
    parse_address(value)
    return value


OWN = OwnFormat()
