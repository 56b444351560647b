"""A whole stack in memory, for tests of code that submits jobs: no Redis, no worker, no model.

    stack = Stack()
    stack.publish("prompts/triage.yaml")
    stack.answer("acme/triage", "billing")
    assert stack.producer.submit("acme/triage", {"ticket": "..."}).result().text == "billing"

Templates, validation, versions, labels, rollouts, idempotency keys, limits, states and errors are
the real ones: they are the same code. A job is answered while it is submitted, by a text or a
function of yours, unless the stack holds jobs back.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from contract.described import describe
from contract.errors import InvalidInput, PrefillqError
from contract.ids import tenant_of
from contract.job_store import Claimed, PieceWrite
from contract.memory_store import MemoryJobStore
from contract.pieces import Entry
from contract.settings import Settings
from contract.types import CacheInfo, CacheState, JobError, JobState, Result, Timings, Usage
from producer.async_client import AsyncProducer
from producer.bell import Ring
from producer.client import Producer
from producer.desk import Parts
from templates.answers import AnswerReader
from templates.memory import MemoryRegistry
from templates.output_schema import INEXACT
from templates.placeholders import Variable, parse_content, to_text
from templates.spec import load_spec, parse_spec
from templates.version import PublishedVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of the prompt, with the variables in their places."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a model would be asked: a job as the function that answers it sees it."""

    job_id: str
    template: str  # tenant/name
    version: int
    variables: Mapping[str, Any]
    messages: tuple[Message, ...]
    choices: tuple[str, ...] | None  # the template's output.choices
    json_schema: Mapping[str, Any] | None  # its output.schema
    attempt: int  # 1 at first


# A text, or its pieces, which is how they are streamed.
Answer = str | Iterable[str]
Answering = Callable[[Asked], Answer]


class Unanswered(PrefillqError):
    """A test's job of a template for which nobody said what to answer."""

    code = "unanswered"


class Stack:
    """Producers, templates and answers in one process. Safe to share between threads."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._ahead_s = 0.0
        self.store = MemoryJobStore(self.settings, clock=lambda: time.time() + self._ahead_s)
        self.registry = MemoryRegistry(
            lambda name, state: self.store.template_moved(
                *name, state.revision, retired=state.retired
            )
        )
        self._parts = Parts(
            store=self.store, undo_store=self.store, versions=self.registry, bell=_Doorbell(self)
        )
        self.producer = Producer(self.settings, parts=self._parts)
        self.asked: list[Asked] = []  # all that was asked, in order
        self._answers: dict[str, Answering] = {}
        self._waiting: list[str] = []  # ids of jobs that were rung for and held back
        self._held = 0
        self._lock = threading.RLock()

    def async_producer(self) -> AsyncProducer:
        """A producer for the running event loop, on the same jobs; close it there."""
        return AsyncProducer(self.settings, parts=self._parts)

    def publish(self, template: Mapping[str, Any] | str | Path) -> PublishedVersion:
        """Publish a template: plain data, or a YAML file. Raises SpecInvalid, TemplateRefused.

        As in Redis the first version gets the label `production`, and the same content again gives
        the same version.
        """
        if isinstance(template, Mapping):
            return self.registry.publish(parse_spec(dict(template)))
        return self.registry.publish(load_spec(Path(template)))

    def answer(self, template: str, answer: str | Iterable[str] | Answering) -> None:
        """How jobs of `tenant/name` are answered from now on: by a function of what is asked, by
        one text, or by the next of several, the last of which stays.

        It must be one of the template's `output.choices`, or JSON that fits its `output.schema`,
        which `Result.data` then has; another answer fails the job.

        A function fails a job by raising: a PrefillqError gives its code, anything else
        `internal_error`. One whose `passing` is true is tried again, up to
        `Settings.max_attempts` times.
        """
        if isinstance(answer, str):
            self._answers[template] = lambda _: answer
        elif callable(answer):
            self._answers[template] = answer
        else:
            given = list(answer)
            if not given:
                raise InvalidInput("no answers", given="an empty list", expected="one or more")
            texts = itertools.chain(given, itertools.repeat(given[-1]))
            self._answers[template] = lambda _: next(texts)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside the block jobs stay queued; `run` or the end of the block has them answered."""
        with self._lock:
            self._held += 1
        try:
            yield
        finally:
            with self._lock:
                self._held -= 1
            if not self._held:
                self.run()

    def run(self, count: int | None = None) -> int:
        """Answer the jobs that wait, or the first `count` of them; how many there were."""
        done = 0
        while count is None or done < count:
            with self._lock:
                if not self._waiting:
                    break
                job_id = self._waiting.pop(0)
            self._work(job_id)
            done += 1
        return done

    def pass_time(self, seconds: float) -> None:
        """Put the stack's clock ahead, so that deadlines and results expire."""
        self._ahead_s += seconds

    def close(self) -> None:
        self.producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _rung(self, job_id: str) -> None:
        with self._lock:
            self._waiting.append(job_id)
            held = self._held
        if not held:
            self.run()

    def _work(self, job_id: str) -> None:
        """Claim, answer and commit, as a worker does."""
        tenant_of(job_id)
        claim = self.store.claim(job_id, "in-memory", 3600.0)
        if not isinstance(claim, Claimed):
            return
        job = claim.job
        version = self.registry.get(job.ref)
        asked = _asked(claim, version)
        self.asked.append(asked)
        empty = Result(
            job_id=job.id,
            ref=job.ref,
            status=JobState.FAILED,
            cache=CacheInfo(state=CacheState.OFF, reason="in_memory"),
            timings=Timings(queue_s=claim.queued_s),
            model=version.spec.model,
            device="none",
            worker="in-memory",
            attempt=job.attempt,
        )
        try:
            result = self._answered(claim, asked, empty)
        except PrefillqError as error:
            failure = JobError(code=error.code, message=error.without_remedy, remedy=error.remedy)
            result = replace(empty, error=failure)
            if error.passing:
                if self.store.retry(result, job.fence, 0.0) is JobState.QUEUED:
                    with self._lock:
                        self._waiting.insert(0, job.id)
                return
        except Exception as error:  # noqa: BLE001 - as in a worker, it fails the job
            text = f"{type(error).__name__} in the test's answer: {error}"
            result = replace(empty, error=JobError(code="internal_error", message=text))
        self.store.commit(result, job.fence)

    def _answered(self, claim: Claimed, asked: Asked, empty: Result) -> Result:
        answering = self._answers.get(asked.template)
        if answering is None:
            raise Unanswered(
                f"nobody said how jobs of {asked.template} are answered",
                remedy=f'Call stack.answer("{asked.template}", ...) before the submit.',
            )
        answer = answering(asked)
        pieces = [answer] if isinstance(answer, str) else []
        for piece in () if isinstance(answer, str) else answer:
            pieces.append(piece)
            self._write(claim, "".join(pieces[:-1]), piece)
        text = "".join(pieces)
        if asked.choices is not None and text not in asked.choices:
            raise InvalidInput(
                f"the answer is none of the choices of {asked.template}",
                given=describe(text),
                expected=f"one of {', '.join(asked.choices)}",
            )
        prompt = sum(len(message.content.split()) for message in asked.messages)
        cancelled = self.store.stop_reason(asked.job_id, claim.job.fence) == "cancelled"
        reader = None if asked.json_schema is None else _reader(asked.json_schema)
        return replace(
            empty,
            status=JobState.CANCELLED if cancelled else JobState.SUCCEEDED,
            text=text,
            choice=text if asked.choices is not None else None,
            data=None if cancelled or reader is None else reader.read(text),
            finish_reason="cancelled" if cancelled else "stop",
            usage=Usage(prompt_tokens=prompt, completion_tokens=len(text.split())),
        )

    def _write(self, claim: Claimed, before: str, piece: str) -> None:
        job = claim.job
        if not job.stream:
            return
        entry = Entry(kind="text", fence=job.fence, attempt=job.attempt, at=len(before), text=piece)
        self.store.write_pieces([PieceWrite(job_id=job.id, entries=(entry,), keep_s=3600.0)])


class _Doorbell:
    """`producer.bell.Bell` that has the job answered at once."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    def ring(self, rings: Iterable[Ring]) -> None:
        for one in rings:
            self._stack._rung(one.job_id)  # noqa: SLF001 - its own stack

    def close(self) -> None:
        pass


def _reader(schema: Mapping[str, Any]) -> AnswerReader:
    """No grammar held the answer to the schema: all is checked that can be."""
    return AnswerReader(schema, costly=INEXACT)


def _asked(claim: Claimed, version: PublishedVersion) -> Asked:
    job = claim.job
    return Asked(
        job_id=job.id,
        template=f"{job.ref.tenant}/{job.ref.template}",
        version=job.ref.version,
        variables=job.variables,
        messages=tuple(
            Message(
                role=message.role,
                content="".join(
                    to_text(job.variables[part.name]) if isinstance(part, Variable) else part.text
                    for part in parse_content(message.content)
                ),
            )
            for message in version.spec.messages
        ),
        choices=version.spec.output.choices,
        json_schema=version.spec.output.json_schema,
        attempt=job.attempt,
    )
