"""Every error that prefillq raises on purpose: one root, one leaf per remedy.

Each message says what happened, what was given, what was expected and what to do.
The command line turns `exit_code` into the process's exit status and `code` into the
`error` field of `--json` output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from contract.types import Result


class PrefillqError(Exception):
    """Root of all errors of this project.

    `problem` is one sentence. `given` and `expected` name values (never a whole prompt);
    `remedy` tells the reader what to do next.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    passing: ClassVar[bool] = False  # True: the same job may well succeed at another attempt

    def __init__(
        self, problem: str, *, given: object = None, expected: object = None, remedy: str = ""
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.given = given
        self.expected = expected
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.without_remedy} {self.remedy}" if self.remedy else self.without_remedy

    @property
    def without_remedy(self) -> str:
        """The problem, what was given and what was expected, in one sentence."""
        parts = [self.problem.rstrip(".")]
        if self.given is not None:
            parts.append(f"given: {self.given}")
        if self.expected is not None:
            parts.append(f"expected: {self.expected}")
        return "; ".join(parts) + "."

    def copied(self) -> Self:
        """The same error with the same cause, for one more who raises it: an error that is raised
        in many places keeps all their frames."""
        made = type(self).__new__(type(self), *self.args)
        made.__dict__.update(self.__dict__)
        made.__cause__ = self.__cause__
        return made

    def to_dict(self) -> dict[str, object]:
        """The error as plain data, for `--json`."""
        return {
            "error": self.code,
            "problem": self.problem,
            "given": None if self.given is None else str(self.given),
            "expected": None if self.expected is None else str(self.expected),
            "remedy": self.remedy,
        }


class SettingsError(PrefillqError):
    """A setting or `PREFILLQ_` variable has a value that cannot be used."""

    code = "bad_setting"
    exit_code = 2


class InvalidInput(PrefillqError):
    """Variables, options or a batch line that cannot become a job. Nothing was enqueued."""

    code = "invalid_input"


class SpecInvalid(PrefillqError):
    """A template file that does not describe a template."""

    code = "spec_invalid"


class TemplateRefused(PrefillqError):
    """A well-formed template that cannot be compiled to an exact prefix with this model."""

    code = "template_refused"
    exit_code = 5


class ModelError(PrefillqError):
    """A model that cannot be fetched, found or loaded."""

    code = "model_error"


class RedisUnreachable(PrefillqError):
    """Redis did not answer in time, or refused the connection."""

    code = "redis_unreachable"
    exit_code = 3


class RedisRefused(PrefillqError):
    """Redis answered, but would not do it: out of memory, read-only, no permission."""

    code = "redis_refused"


class KeyDamaged(RedisRefused):
    """A key holds what a command or script cannot work with; that another key is read says nothing
    against."""


class RedisFull(RedisRefused):
    """Redis has no memory left, which may pass; nothing was written."""


class NotFound(PrefillqError):
    """No such template, version, label or job (or it has expired)."""

    code = "not_found"
    exit_code = 4


class TimedOut(PrefillqError):
    """The wait ended before the job did. The job goes on."""

    code = "timed_out"
    exit_code = 6


class Conflict(PrefillqError):
    """What was asked contradicts what is already so."""

    code = "conflict"
    exit_code = 7


class TemplateMoved(Conflict):
    """The template was changed while a job of it was being submitted. Nothing was enqueued."""

    code = "template_moved"


class KeyTaken(Conflict):
    """Under this idempotency key another input was submitted before."""


class QueueFull(Conflict):
    """As many jobs of the template wait as may. Nothing was enqueued."""


class OverLimit(Conflict):
    """The tenant may not have more at the moment. Nothing was enqueued.

    `retry_after_s`: seconds until there may be room, None when that depends on its other jobs.
    """

    code = "over_limit"

    def __init__(self, problem: str, *, retry_after_s: float | None = None, **details: Any) -> None:
        super().__init__(problem, **details)
        self.retry_after_s = retry_after_s


class JobFailed(PrefillqError):
    """The job ended without an answer: failed, cancelled or expired. `result` says all of it."""

    code = "job_failed"
    exit_code = 8

    def __init__(self, result: Result) -> None:
        error = result.error
        super().__init__(
            f"job {result.job_id} is {result.status}",
            given=None if error is None else f"{error.code}: {error.message}",
            remedy="" if error is None else error.remedy,
        )
        self.result = result


class CodecError(PrefillqError):
    """Bytes that are not a message of ours, or a value that msgpack cannot carry unchanged."""

    code = "codec_error"


class RecordDamaged(CodecError):
    """A job's record that holds something else than prefillq writes: that job is lost, no other."""

    code = "record_damaged"
