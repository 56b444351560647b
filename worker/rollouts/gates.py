"""The gates before any traffic: a worker tries a new version as its jobs will be run here.

One sample at a time goes through the engine like a job, beside those that run: the cached and the
uncached path with greedy decoding, and the version's own settings where an output is expected.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from contract.errors import PrefillqError
from contract.logs import get_logger
from contract.model_folder import ModelFolder
from templates.rollouts.judge import verdict
from templates.rollouts.paper import LIMIT_S, TOO_MUCH, WALL_S, pack_request, unpack_findings
from templates.rollouts.rollout import Finding, Outcome
from templates.spec import Sample
from templates.version import PublishedVersion
from worker.answer import JobAnswers
from worker.engine.base import (
    Engine,
    EngineClosed,
    Generation,
    GenerationRequest,
    StopReason,
)
from worker.engine.parity import TOLERANCE, largest_error, largest_score
from worker.prefixes import PrefixService, Served
from worker.trouble import passing_trouble

log = get_logger(__name__)

COMPILES, PREFIX, EQUALITY, EXPECTED = "compiles", "prefix", "cached_equals_uncached", "expected"
RUNS = "runs"  # found only where it fails
POLL_S = 0.5


class Interrupted(PrefillqError):
    """The worker ends, or the rollout did: nothing was found out."""

    code = "gates_interrupted"


class Gates:
    """Tries versions on this worker's engine; one at a time, from one thread."""

    def __init__(self, *, answers: JobAnswers, prefixes: PrefixService) -> None:
        self._answers = answers
        self._prefixes = prefixes

    @property
    def model_digest(self) -> str:
        """Whose versions can be tried here."""
        return self._answers.model.folder.model_digest

    def try_version(
        self,
        canary: PublishedVersion,
        stable: PublishedVersion,
        *,
        stopping: Callable[[], bool] = lambda: False,
    ) -> tuple[Finding, ...]:
        """A finding per gate. Raises Interrupted once `stopping` says so.

        What needs the engine is left out when the version fails on paper already.
        """
        folder = self._answers.model.folder
        findings = try_on_paper(canary, stable, folder, stopping=stopping)
        if verdict(findings) is Outcome.FAIL:
            return findings
        trial = Trial(
            version=canary, answers=self._answers, prefixes=self._prefixes, stopping=stopping
        )
        return (*findings, *trial.run())


def try_on_paper(
    canary: PublishedVersion,
    stable: PublishedVersion,
    folder: ModelFolder,
    *,
    stopping: Callable[[], bool] = lambda: False,
    limit_s: int = LIMIT_S,
    wall_s: int = WALL_S,
) -> tuple[Finding, ...]:
    """The gates of `templates.rollouts.paper`, in a process that no tenant's text can hold up for
    long. Raises Interrupted as soon as `stopping` says so.
    """
    command = [sys.executable, "-m", "templates.rollouts.paper"]
    try:
        process = subprocess.Popen(  # noqa: S603 - our own module
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a traceback may quote what a tenant wrote
            start_new_session=True,  # Ctrl-C is for the worker
        )
    except OSError as error:
        return _unknown(COMPILES, f"the process that tries it does not start: {error.strerror}")
    with process:
        given: bytes | None = pack_request(
            canary, stable.spec, folder, limit_s=limit_s, wall_s=wall_s
        )
        while True:
            try:
                output, _ = process.communicate(given, timeout=POLL_S)
                break
            except subprocess.TimeoutExpired:
                given = None  # communicate goes on with what it was given first
                if stopping():
                    process.kill()
                    raise Interrupted("the gates were left") from None
    if process.returncode == 0:
        return unpack_findings(output)
    match process.returncode:
        case code if code == -signal.SIGXCPU:
            return _fail(COMPILES, f"trying it took over {limit_s} s of computing")
        # What is not Python's own aborts where it is given no memory.
        case code if code in (TOO_MUCH, -signal.SIGABRT):
            return _fail(COMPILES, "trying it took too much memory")
        case code if code == -signal.SIGALRM:
            return _unknown(COMPILES, f"trying it was not over after {wall_s} s: a busy machine?")
    return _unknown(COMPILES, f"the process that tries it ended with {process.returncode}")


@dataclass(slots=True, kw_only=True)
class Trial:
    """A version's samples on the engine, and what has been found so far."""

    version: PublishedVersion
    answers: JobAnswers
    prefixes: PrefixService
    stopping: Callable[[], bool]
    prefix: Finding | None = None
    checked_tokens: int = 0
    expecting: int = 0  # samples that expect an output

    @property
    def engine(self) -> Engine:
        return self.answers.engine

    def run(self) -> tuple[Finding, ...]:
        """All samples, in order; the first that shows a fault is the last that is tried."""
        samples = self.version.spec.samples
        if not samples:
            gates = (PREFIX, EQUALITY, EXPECTED)
            return tuple(
                finding
                for gate in gates
                for finding in _unknown(gate, "there are no samples to try it on")
            )
        for number, sample in enumerate(samples, 1):
            try:
                fault = self._try(sample, f"sample {number}")
            except (EngineClosed, Interrupted) as error:
                raise Interrupted("the gates were left") from error
            except PrefillqError as error:
                fault = _fail(RUNS, f"sample {number}: {error.problem}")
            except Exception as error:
                fault = _crash(error, f"sample {number}")
                log.exception("gates_crashed", version=str(self.version.ref), sample=number)
            if fault is not None:
                return fault if self.prefix is None else (self.prefix, *fault)
        found = [self.prefix] if self.prefix is not None else []
        return (*found, *self._passes(len(samples)))

    def _passes(self, samples: int) -> tuple[Finding, ...]:
        tokens = f"{self.checked_tokens} tokens of {samples} samples are equal"
        expected = f"{self.expecting} of {samples} samples expect an output and give it"
        return (
            Finding(
                gate=EQUALITY,
                outcome=Outcome.PASS,
                message=tokens if self.checked_tokens else "nothing is cached",
            ),
            Finding(
                gate=EXPECTED,
                outcome=Outcome.PASS,
                message=expected if self.expecting else "no sample expects an output",
            ),
        )

    def _try(self, sample: Sample, name: str) -> tuple[Finding, ...] | None:
        request = replace(
            self.answers.request(self.version, sample.input), should_stop=self._should_stop
        )
        with self.prefixes.serve(self.version, request.ids) as served:
            if fault := self._prefix(served, name):
                return fault
            cached = self._greedy(request, served)
            if served.entry is not None:
                plain = self._greedy(request, None)
                if difference := self._difference(plain, cached):
                    return _fail(EQUALITY, f"{name}: {difference}")
                self.checked_tokens += len(plain.token_ids)
            own = cached
            judged = sample.expected is not None or request.grammar is not None
            if judged and not self.version.spec.generation.greedy and request.choices is None:
                own = self._generate(replace(request, entry=served.entry))
            self.answers.read(self.version, own)  # half of a JSON is the version's fault
            if sample.expected is None:
                return None
            self.expecting += 1
        if not self._meets(own, sample.expected):
            # Not what came instead: it is a model's text, and ends in logs.
            return _fail(EXPECTED, f"{name} does not give the output that it expects")
        return None

    def _prefix(self, served: Served, name: str) -> tuple[Finding, ...] | None:
        """Note once that the prefix is here; why it is not, if that is a fault."""
        reason = served.cache.reason
        if served.entry is not None:
            message = f"{len(served.entry.ids)} tokens are prefilled, {served.entry.nbytes} bytes"
        elif reason == "no_prefix" or self.engine.name == "uncached":
            message = f"nothing to keep: {reason}"
        elif reason.startswith("parity_"):
            return _fail(EQUALITY, f"{name}: the check of its first warming found {reason[7:]}")
        elif reason == "over_budget" and not self._too_large():
            return _unknown(PREFIX, "there is no room beside what is in use now")
        else:
            return _fail(PREFIX, f"{name}: it cannot be kept: {reason}")
        if self.prefix is None:
            self.prefix = Finding(gate=PREFIX, outcome=Outcome.PASS, message=message)
        return None

    def _too_large(self) -> bool:
        """True when the prefix would not fit the budget if it were alone."""
        size = self.prefixes.cache.refused_bytes(self.prefixes.key(self.version))
        return size is None or size > self.prefixes.cache.stats().max_bytes

    def _greedy(self, request: GenerationRequest, served: Served | None) -> Generation:
        generation = request.generation.model_copy(update={"temperature": 0.0})
        entry = None if served is None else served.entry
        asked = replace(request, generation=generation, entry=entry, keep_scores=self._by_scores)
        return self._generate(asked)

    @property
    def _by_scores(self) -> bool:
        """In half precision near ties may go either way: the first token's scores decide."""
        return self.answers.model.dtype_name != "float32"

    def _generate(self, request: GenerationRequest) -> Generation:
        generation = self.engine.generate(request)
        if generation.finish_reason in ("cancelled", "expired"):
            raise Interrupted("the gates were left")
        return generation

    def _should_stop(self) -> StopReason | None:
        return "cancelled" if self.stopping() else None

    def _difference(self, plain: Generation, cached: Generation) -> str:
        """In words, or nothing."""
        if self._by_scores:
            error = largest_error(plain.first_scores, cached.first_scores)
            allowed = TOLERANCE[self.answers.model.dtype_name] * largest_score(plain.first_scores)
            if error <= allowed:
                return ""
            return f"the first token's scores differ by {error:.3g}; {allowed:.3g} is allowed"
        if plain.token_ids == cached.token_ids:
            return ""
        pairs = zip(plain.token_ids, cached.token_ids, strict=False)
        shorter = min(len(plain.token_ids), len(cached.token_ids))
        first = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), shorter)
        return f"token {first + 1} of the answer differs from the uncached one's"

    def _meets(self, generation: Generation, expected: str) -> bool:
        choices = self.version.spec.output.choices
        if choices is not None and generation.choice_index is not None:
            return choices[generation.choice_index] == expected
        if self.version.spec.output.json_schema is not None:
            wanted = _json(expected)
            return wanted is not None and self.answers.read(self.version, generation) == wanted
        return generation.text.strip() == expected.strip()


def _json(text: str) -> Any:
    """None for what is no JSON: a version that was not linted may expect it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _fail(gate: str, message: str) -> tuple[Finding, ...]:
    return (Finding(gate=gate, outcome=Outcome.FAIL, message=message),)


def _unknown(gate: str, message: str) -> tuple[Finding, ...]:
    return (Finding(gate=gate, outcome=Outcome.INCONCLUSIVE, message=message),)


def _crash(error: Exception, name: str) -> tuple[Finding, ...]:
    if trouble := passing_trouble(error):
        return _unknown(RUNS, f"{name}: {trouble} in the worker; it is tried again")
    return _fail(RUNS, f"{name}: {type(error).__name__} in the worker")
