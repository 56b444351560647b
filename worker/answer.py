"""From a claimed job to the engine's answer: version, tokens, verified prefix, generation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from contract.errors import PrefillqError
from contract.logs import get_logger
from contract.types import (
    CacheInfo,
    CacheState,
    Job,
    JobState,
    Timings,
    Variables,
    VersionRef,
)
from templates.fill import check_positions, fill, trusted_ids
from templates.version import PublishedVersion
from worker.engine.base import (
    Engine,
    Generation,
    GenerationRequest,
    GrammarFailed,
    NonFiniteLogits,
)
from worker.leases import Stoppable
from worker.outcome import Answer, failed_with, spoiled, stopped
from worker.prefixes import PrefixService, Served
from worker.streams import TokenSink

if TYPE_CHECKING:  # these need torch, which a fake engine does without
    from worker.grammars import Grammars, OutputGrammar
    from worker.model import LoadedModel

log = get_logger(__name__)


class VersionSource(Protocol):
    """Where a worker reads published versions; `templates.registry.Registry` is one."""

    def get(self, ref: VersionRef) -> PublishedVersion: ...


class PrefixNotVerified(PrefillqError):
    """The prefix of a job of a strict template could not be used."""

    code = "prefix_not_verified"


class AnswerIncomplete(PrefillqError):
    """An answer that had all its tokens before its JSON was whole. Never given out as a success."""

    code = "answer_incomplete"


class JobAnswers:
    """Answers jobs, from several threads; knows nothing of records and messages."""

    def __init__(
        self,
        *,
        versions: VersionSource,
        model: LoadedModel,
        engine: Engine,
        prefixes: PrefixService,
        audit: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model = model
        self.engine = engine
        self._versions = versions
        self._prefixes = prefixes
        self._audit = audit
        self._clock = clock

    def answer(
        self, job: Job, lease: Stoppable, *, claimed_at: float, sink: TokenSink | None = None
    ) -> Answer:
        """The job's answer, or why there is none; `lease` tells the engine when to stop.

        `claimed_at` is on `clock`; `sink` is told of each token as it is chosen. Raises what the
        registry, the templates and the engine raise.
        """
        version = self._versions.get(job.ref)
        return self._generate(job, version, lease, claimed_at=claimed_at, sink=sink)

    def request(
        self, version: PublishedVersion, variables: Variables, *, job_id: str = ""
    ) -> GenerationRequest:
        """What the engine is asked for a job of the version, without an entry.

        Raises InvalidInput for variables that cannot be filled in or are too long, PrefillqError
        for a version of another model. `job_id` is for the log.
        """
        self._check(version)
        ids = self._tokenize(job_id, version, variables)
        choices = self._choice_ids(version.spec.output.choices)
        grammar = self._grammar(version)
        new_tokens = (
            version.spec.generation.max_new_tokens
            if choices is None
            else max(len(choice) for choice in choices) + 1  # and the end of the sequence
        )
        check_positions(len(ids), new_tokens, self.model.folder.max_positions)
        return GenerationRequest(
            ids=ids, generation=version.spec.generation, choices=choices, grammar=grammar
        )

    def read(self, version: PublishedVersion, generation: Generation) -> Any:
        """The JSON of an answer, None for a version without `output.schema`.

        Raises AnswerIncomplete for half of one, AnswerInvalid for what does not fit the schema.
        """
        grammar = self._grammar(version)
        if grammar is None:
            return None
        if generation.finish_reason == "length":
            raise AnswerIncomplete(
                "the answer's JSON is not whole",
                given=f"max_new_tokens={version.spec.generation.max_new_tokens}, all of them used",
                expected="JSON that fits output.schema",
                remedy="Raise generation.max_new_tokens, or give the schema's texts a shorter "
                "maxLength and its arrays fewer maxItems.",
            )
        return grammar.read(generation.text)

    def _check(self, version: PublishedVersion) -> None:
        served = self.model.folder.model_digest
        if version.model_digest != served:
            raise PrefillqError(
                f"{version.ref} was published for other weights than this worker serves",
                given=f"model digest {served[:12]}",
                expected=version.model_digest[:12],
                remedy="Publish the template again, or start a worker with that model.",
            )
        if version.tokenizer_digest != self.model.folder.tokenizer_digest:
            raise PrefillqError(
                f"{version.ref} was compiled with another tokenizer than this worker has",
                given=f"tokenizer digest {self.model.folder.tokenizer_digest[:12]}",
                expected=version.tokenizer_digest[:12],
                remedy="Publish the template again.",
            )

    def _generate(
        self,
        job: Job,
        version: PublishedVersion,
        lease: Stoppable,
        *,
        claimed_at: float,
        sink: TokenSink | None,
    ) -> Answer:
        started = self._clock()
        request = self.request(version, job.variables, job_id=job.id)
        tokenize_s = self._clock() - started
        if reason := lease.stop_reason():
            return stopped(reason)
        with self._prefixes.serve(version, request.ids, use_cache=job.use_cache) as served:
            if version.spec.strict and served.entry is None and job.use_cache:
                error = _not_verified(served.cache.reason)
                return failed_with(error, cache=served.cache, tokens=len(request.ids))
            request = replace(request, entry=served.entry, should_stop=lambda: _engine_stop(lease))
            engine_started_s = self._clock() - claimed_at
            answer = self._decode(version, request, served, sink)
        return replace(
            answer,
            engine_started_s=engine_started_s,
            timings=replace(answer.timings, tokenize_s=tokenize_s),
        )

    def _tokenize(
        self, job_id: str, version: PublishedVersion, variables: Variables
    ) -> tuple[int, ...]:
        tokenizer = self.model.tokenizer
        filled = fill(version.compiled, variables, tokenizer)
        if not filled.plain:
            return filled.ids
        # Without control-token text in the variables the plain tokenization is the authority:
        # should the pieces ever differ from it, the job takes it, and verification decides.
        trusted = trusted_ids(version.compiled, variables, tokenizer)
        if trusted != filled.ids:
            log.warning("pieces_differ_from_plain", job_id=job_id, version=str(version.ref))
        return trusted

    def _decode(
        self,
        version: PublishedVersion,
        request: GenerationRequest,
        served: Served,
        sink: TokenSink | None,
    ) -> Answer:
        choices, prompt_tokens = version.spec.output.choices, len(request.ids)
        cache, cached_tokens = served.cache, served.cached_tokens
        try:
            generation, fallback = self._run_engine(version, request, sink)
        except (NonFiniteLogits, PrefixNotVerified, GrammarFailed) as error:
            return failed_with(error, cache=cache, tokens=prompt_tokens)
        if fallback:
            cache, cached_tokens = CacheInfo(state=CacheState.MISS, reason=fallback), 0
        answer = Answer(
            status=JobState.SUCCEEDED,
            cache=cache,
            generation=generation,
            choice=choices[generation.choice_index]
            if choices is not None and generation.choice_index is not None
            else None,
            probabilities=dict(zip(choices or (), generation.choice_probabilities, strict=False)),
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            timings=Timings(
                verify_s=served.verify_s,
                prefill_s=served.prefill_s,
                fork_s=generation.fork_s,
                suffix_prefill_s=generation.suffix_prefill_s,
                decode_s=generation.decode_s,
            ),
        )
        if generation.finish_reason in ("cancelled", "expired"):
            return stopped(generation.finish_reason, answer)
        try:
            return replace(answer, data=self.read(version, generation))
        except PrefillqError as error:
            return spoiled(answer, error)

    def _run_engine(
        self, version: PublishedVersion, request: GenerationRequest, sink: TokenSink | None
    ) -> tuple[Generation, str]:
        """Generate; on trouble with the cached path once more without it, and say why."""
        entry = request.entry
        if entry is None:
            return self._told(request, sink), ""
        plain = replace(request, entry=None)
        try:
            generation = self._told(request, sink)
        except NonFiniteLogits as error:
            if version.spec.strict:
                raise
            # Seen on some devices with a cache and not without it.
            return self._told(plain, sink), error.code
        if self._audit and not entry.audit():
            self._prefixes.drop(version, "mutated")
            log.error("cache_entry_mutated", version=str(version.ref))
            if version.spec.strict:
                raise _not_verified("entry_mutated")
            return self._told(plain, sink), "entry_mutated"
        return generation, ""

    def _told(self, request: GenerationRequest, sink: TokenSink | None) -> Generation:
        """Generate, and tell the sink, if there is one, of each token."""
        if sink is not None:
            on_token = sink.begin(request.generation.stop, self.model.tokenizer.decode)
            request = replace(request, on_token=on_token)
        return self.engine.generate(request)

    def _grammar(self, version: PublishedVersion) -> OutputGrammar | None:
        schema = version.spec.output.json_schema
        return None if schema is None else self._grammars.get(schema)

    @cached_property
    def _grammars(self) -> Grammars:
        from worker.grammars import Grammars  # workers of templates without schemas need none

        folder = self.model.folder
        return Grammars(
            self.model.tokenizer,
            tokenizer_digest=folder.tokenizer_digest,
            eos_ids=folder.eos_ids,
        )

    def _choice_ids(self, choices: tuple[str, ...] | None) -> tuple[tuple[int, ...], ...] | None:
        if choices is None:
            return None
        return tuple(self.model.tokenizer.encode_ordinary(choice) for choice in choices)


def _not_verified(reason: str) -> PrefixNotVerified:
    return PrefixNotVerified(
        f"the template is strict and its prefix was not used: {reason}",
        remedy="Compare the job's variables with the template's samples.",
    )


def _engine_stop(lease: Stoppable) -> Literal["cancelled", "expired"] | None:
    # A lost lease ends like a cancel; its commit is refused by the fence. So does a returned job,
    # which is released instead.
    match lease.stop_reason():
        case "expired":
            return "expired"
        case None:
            return None
        case _:
            return "cancelled"
