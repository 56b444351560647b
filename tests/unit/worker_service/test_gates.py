"""The gates before any traffic, on a fake engine with a real tokenizer and template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from templates.compiled import CompiledTemplate
from templates.rollouts import paper
from templates.rollouts.rollout import Finding, Outcome
from templates.spec import GenerationSpec
from templates.version import PublishedVersion
from worker.engine.base import EngineClosed, Generation, GenerationRequest, non_finite
from worker.engine.fake import FakeEngine
from worker.rollouts.gates import Gates, Interrupted, try_on_paper

PASS, FAIL, INCONCLUSIVE = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE
NOTES = ("The parcel came on Monday.", "It was wet.", "Nobody was at home.")
SAMPLES = [{"input": {"note": note}} for note in NOTES]


def samples(*expected: str | None) -> dict[str, Any]:
    return {
        "samples": [
            {**sample, "expected": text} for sample, text in zip(SAMPLES, expected, strict=True)
        ]
    }


def gates_of(stack: Any) -> Gates:
    return Gates(answers=stack.runner._answers, prefixes=stack.prefixes)


def found(stack: Any, canary: PublishedVersion, **terms: Any) -> dict[str, Finding]:
    findings = gates_of(stack).try_version(canary, terms.pop("stable", stack.version), **terms)
    return {finding.gate: finding for finding in findings}


def outcomes(findings: dict[str, Finding]) -> dict[str, Outcome]:
    return {gate: finding.outcome for gate, finding in findings.items()}


@pytest.fixture
def on_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tried in a process of its own, which takes a second."""
    monkeypatch.setattr("worker.rollouts.gates.try_on_paper", lambda *_, **__: ())


class Scripted(FakeEngine):
    """Answers by the rule it is given: request and whether it has an entry."""

    def __init__(self, rule: Callable[[GenerationRequest, Generation], Generation]) -> None:
        super().__init__()
        self._rule = rule

    def generate(self, request: GenerationRequest) -> Generation:
        return self._rule(request, super().generate(request))


# --- all of them


def test_a_good_version_passes_every_gate(make_stack: Any) -> None:
    """With what each looked at; the samples went through the engine with the cache and without."""
    stack = make_stack(engine=FakeEngine(answer=lambda _: "yes"))
    canary = stack.publish(rules="Answer with one word. " * 8, **samples("yes", None, "yes"))
    findings = found(stack, canary)
    assert outcomes(findings) == dict.fromkeys(
        ("compiles", "samples", "stable_samples", "prefix", "cached_equals_uncached", "expected"),
        PASS,
    )
    assert findings["expected"].message.startswith("2 of 3 samples")
    tried = [request for request in stack.engine.requests if request.generation.greedy]
    entries = [request.entry is not None for request in tried[-6:]]
    assert entries == [True, False] * 3
    assert stack.prefixes.holds(canary.ref)


def test_a_version_without_samples_is_inconclusive(make_stack: Any) -> None:
    """There is nothing to try it on, and that is no pass."""
    stack = make_stack()
    findings = found(stack, stack.publish(rules="Be brief.", samples=[]))
    assert outcomes(findings) == {
        "compiles": PASS,
        "samples": INCONCLUSIVE,
        "stable_samples": PASS,
        **dict.fromkeys(("prefix", "cached_equals_uncached", "expected"), INCONCLUSIVE),
    }
    assert not stack.engine.requests


# --- on paper


def on_paper(stack: Any, canary: PublishedVersion, stable: PublishedVersion | None = None) -> Any:
    spec = (stable or stack.version).spec
    findings = paper.try_on_paper(canary, spec, stack.model.folder, stack.model.tokenizer)
    return {finding.gate: finding for finding in findings}


def test_what_was_stored_must_be_what_it_compiles_to(make_stack: Any) -> None:
    """Somebody wrote the version by hand: its tokens are not those of its text."""
    stack = make_stack()
    compiled = stack.version.compiled
    ids = (*compiled.prefix_ids[:3], compiled.prefix_ids[3] + 1, *compiled.prefix_ids[4:])
    forged = replace(
        stack.version, compiled=CompiledTemplate(segments=compiled.segments, prefix_ids=ids)
    )
    assert on_paper(stack, forged)["compiles"].outcome is FAIL


def test_a_version_under_anothers_digest_fails(make_stack: Any) -> None:
    """Its content is not what its name says."""
    stack = make_stack()
    other = replace(stack.version, spec=stack.publish(description="other").spec)
    finding = on_paper(stack, other)["compiles"]
    assert (finding.outcome, "digest" in finding.message) == (FAIL, True)


def test_the_stable_versions_samples_must_fit_the_new_one(make_stack: Any) -> None:
    """They stand for the jobs of today, which will come without the new variable."""
    stack = make_stack()
    canary = stack.publish(
        messages=[{"role": "user", "content": "{{ note }} {{ tone }}"}],
        input={
            "schema": {
                "type": "object",
                "properties": {"note": {"type": "string"}, "tone": {"type": "string"}},
                "required": ["note", "tone"],
            }
        },
        samples=[{"input": {"note": "a", "tone": "b"}}],
    )
    findings = on_paper(stack, canary)
    assert findings["samples"].outcome is PASS
    assert findings["stable_samples"].outcome is FAIL
    assert "$.tone is missing" in findings["stable_samples"].message


def test_a_stable_version_without_samples_is_judged_by_its_schema(make_stack: Any) -> None:
    """The same schema takes the same jobs; of another nothing is known."""
    stack = make_stack()
    bare = stack.publish(samples=[])
    assert on_paper(stack, stack.version, bare)["stable_samples"].outcome is PASS
    other = {"schema": {"type": "object", "properties": {"note": {}}, "required": ["note"]}}
    wider = stack.publish(samples=[], input=other)
    assert on_paper(stack, stack.version, wider)["stable_samples"].outcome is INCONCLUSIVE


def test_a_sample_too_long_for_the_model_fails(make_stack: Any) -> None:
    """8,192 positions, and a note of 9,000 words."""
    stack = make_stack()
    long = stack.publish(samples=[{"input": {"note": "word " * 9000}}])
    assert on_paper(stack, long)["samples"].outcome is FAIL


def test_no_message_quotes_a_sample(make_stack: Any) -> None:
    """Findings are read by operators, and samples may be users' texts."""
    stack = make_stack()
    secret = "not-to-be-shown"  # noqa: S105 - a word
    canary = stack.publish(
        input={
            "schema": {
                "type": "object",
                "properties": {"note": {"type": "string", "maxLength": 5}},
                "required": ["note"],
            }
        },
        samples=[{"input": {"note": secret}}],
    )
    findings = on_paper(stack, canary)
    assert findings["samples"].outcome is FAIL
    assert all(secret not in finding.message for finding in findings.values())


def endless(stack: Any) -> PublishedVersion:
    """A version whose pattern would take centuries."""
    schema = {
        "type": "object",
        "properties": {"note": {"type": "string", "pattern": "^(a+)+$"}},
        "required": ["note"],
    }
    version: PublishedVersion = stack.publish(
        input={"schema": schema}, samples=[{"input": {"note": "a" * 60 + "!"}}]
    )
    return version


def test_a_pattern_without_end_fails_in_time_and_holds_nothing_up(make_stack: Any) -> None:
    """In a process of its own, which the system ends once it has computed for so long."""
    stack = make_stack()
    canary = endless(stack)
    [finding] = try_on_paper(canary, stack.version, stack.model.folder, limit_s=3)
    assert (finding.gate, finding.outcome) == ("compiles", FAIL)
    assert finding.message == "trying it took over 3 s of computing"
    with pytest.raises(Interrupted):
        try_on_paper(canary, stack.version, stack.model.folder, stopping=lambda: True)


def test_a_process_that_waits_for_its_turn_is_inconclusive(make_stack: Any) -> None:
    """Much time by the clock and little of the processor's: jobs come first on a busy machine."""
    stack = make_stack()
    canary = endless(stack)
    [finding] = try_on_paper(canary, stack.version, stack.model.folder, limit_s=60, wall_s=3)
    assert (finding.gate, finding.outcome) == ("compiles", INCONCLUSIVE)
    assert "after 3 s" in finding.message


@pytest.mark.parametrize(
    ("ends", "outcome", "message"),
    [
        ("kill -ABRT $$", FAIL, "too much memory"),
        ("exit 5", FAIL, "too much memory"),
        ("kill -XCPU $$", FAIL, "of computing"),
        ("kill -ALRM $$", INCONCLUSIVE, "busy machine"),
        ("kill -KILL $$", INCONCLUSIVE, "ended with -9"),
    ],
)
def test_how_the_process_ends_tells_whose_fault_it_is(
    make_stack: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ends: str,
    outcome: Outcome,
    message: str,
) -> None:
    """Memory that code in C is not given, or that Python is not: the version asks for it."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nulimit -c 0\ncat > /dev/null\n{ends}\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    stack = make_stack()
    [finding] = try_on_paper(stack.version, stack.version, stack.model.folder)
    assert (finding.gate, finding.outcome) == ("compiles", outcome)
    assert message in finding.message


def test_a_process_that_cannot_start_is_inconclusive(
    make_stack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is this machine's trouble."""
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    stack = make_stack()
    [finding] = try_on_paper(stack.version, stack.version, stack.model.folder)
    assert (finding.gate, finding.outcome) == ("compiles", INCONCLUSIVE)


def test_a_process_that_is_killed_is_inconclusive(
    make_stack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an out-of-memory killer."""
    monkeypatch.setattr("sys.executable", "/bin/false")
    stack = make_stack()
    [finding] = try_on_paper(stack.version, stack.version, stack.model.folder)
    assert (finding.gate, finding.outcome) == ("compiles", INCONCLUSIVE)


# --- on the engine


@pytest.mark.usefixtures("on_engine")
def test_another_token_with_the_cache_fails(make_stack: Any) -> None:
    """In float32 every token must be the uncached path's; the place is told."""

    def other(request: GenerationRequest, answer: Generation) -> Generation:
        if request.entry is None or not request.generation.greedy or request.keep_scores:
            return answer
        ids = (*answer.token_ids[:2], 99, *answer.token_ids[3:])
        return replace(answer, token_ids=ids)

    stack = make_stack(engine=Scripted(other))
    findings = found(stack, stack.publish(rules="Be brief."))
    assert outcomes(findings) == {"prefix": PASS, "cached_equals_uncached": FAIL}
    assert "sample 1: token 3" in findings["cached_equals_uncached"].message


@pytest.mark.usefixtures("on_engine")
def test_an_answer_that_ends_early_with_the_cache_fails(make_stack: Any) -> None:
    """One is the beginning of the other."""

    def shorter(request: GenerationRequest, answer: Generation) -> Generation:
        cut = request.entry is not None and not request.keep_scores
        return replace(answer, token_ids=answer.token_ids[:2]) if cut else answer

    stack = make_stack(engine=Scripted(shorter))
    findings = found(stack, stack.publish(rules="Be brief."))
    assert "token 3" in findings["cached_equals_uncached"].message


@pytest.mark.usefixtures("on_engine")
@pytest.mark.parametrize(("off_by", "outcome"), [(0.1, PASS), (2.0, FAIL)])
def test_in_half_precision_the_scores_decide(
    make_stack: Any, off_by: float, outcome: Outcome
) -> None:
    """Another token near a tie is let be; scores of 10 may be off by 0.5 in bfloat16."""

    def scored(request: GenerationRequest, answer: Generation) -> Generation:
        cached = request.entry is not None
        mine = request.should_stop() is None and not request.generation.min_new_tokens
        return replace(
            answer,
            token_ids=(1,) if cached and mine else answer.token_ids,
            first_scores=(10.0, off_by if cached and mine else 0.0),
        )

    stack = make_stack(engine=Scripted(scored))
    stack.model.dtype = "bfloat16"
    findings = found(stack, stack.publish(rules="Be brief."))
    assert findings["cached_equals_uncached"].outcome is outcome


@pytest.mark.usefixtures("on_engine")
@pytest.mark.parametrize("expected", ["no", "answer", ""])
def test_an_expected_output_that_does_not_come_fails(make_stack: Any, expected: str) -> None:
    """The sample is named, neither text is."""
    stack = make_stack(engine=FakeEngine(answer=lambda _: "yes"))
    findings = found(stack, stack.publish(rules="x", **samples("yes", expected, None)))
    assert outcomes(findings) == {"prefix": PASS, "expected": FAIL}
    assert findings["expected"].message == "sample 2 does not give the output that it expects"


@pytest.mark.usefixtures("on_engine")
def test_expected_outputs_are_tried_with_the_versions_own_settings(make_stack: Any) -> None:
    """Equality is a matter of greedy decoding; what is expected is what jobs will get."""

    def by_temperature(request: GenerationRequest, answer: Generation) -> Generation:
        return replace(answer, text=f"at {request.generation.temperature}")

    stack = make_stack(engine=Scripted(by_temperature))
    generation = {"max_new_tokens": 8, "temperature": 0.7, "seed": 3, "stop": ["!"]}
    canary = stack.publish(rules="x", generation=generation, **samples("at 0.7", "at 0.7", None))
    assert found(stack, canary)["expected"].outcome is PASS
    spec = GenerationSpec(**generation)
    greedy = [r.generation for r in stack.engine.requests if r.generation.stop and r.entry is None]
    assert greedy == [spec.model_copy(update={"temperature": 0.0})] * 3


@pytest.mark.usefixtures("on_engine")
def test_an_expected_choice_is_met_to_the_letter(make_stack: Any) -> None:
    """By its index, whatever text the engine gives."""
    stack = make_stack()
    labels = ("red", "green", "blue")
    canary = stack.publish(rules="x", output={"choices": labels}, **samples(None, None, None))
    assert found(stack, canary)["expected"].outcome is PASS
    picked = [
        stack.engine.generate(stack.runner._answers.request(canary, {"note": note})).choice_index
        for note in NOTES
    ]
    right = stack.publish(
        rules="x", output={"choices": labels}, **samples(*(labels[i or 0] for i in picked))
    )
    assert found(stack, right)["expected"].outcome is PASS
    wrong = stack.publish(
        rules="x", output={"choices": labels}, **samples(*(labels[(i or 0) - 1] for i in picked))
    )
    assert found(stack, wrong)["expected"].outcome is FAIL


@pytest.mark.usefixtures("on_engine")
def test_a_prefix_over_the_budget_fails(make_stack: Any) -> None:
    """It would not fit alone: no job would ever hit it."""
    stack = make_stack(cache_bytes=10)
    findings = found(stack, stack.publish(rules="x"))
    assert outcomes(findings) == {"prefix": FAIL}
    assert "over_budget" in findings["prefix"].message


@pytest.mark.usefixtures("on_engine")
def test_a_prefix_without_room_at_the_moment_is_inconclusive(make_stack: Any) -> None:
    """It would fit, were the other one not in use."""
    stack = make_stack(cache_bytes=60)
    ids = stack.runner._answers.request(stack.version, {"note": "x"}).ids
    with stack.prefixes.serve(stack.version, ids) as served:
        assert served.entry is not None
        findings = found(stack, stack.publish(rules="Be brief, use few words. " * 4))
    assert outcomes(findings) == {"prefix": INCONCLUSIVE}


@pytest.mark.usefixtures("on_engine")
def test_a_first_warming_that_finds_a_difference_fails(make_stack: Any) -> None:
    """The version would run uncached here."""

    class Leaky(FakeEngine):
        def generate(self, request: GenerationRequest) -> Generation:
            answer = super().generate(request)
            return replace(answer, token_ids=(7,) * 4) if request.entry else answer

    stack = make_stack(engine=Leaky())
    findings = found(stack, stack.publish(rules="x"))
    assert outcomes(findings) == {"cached_equals_uncached": FAIL}


@pytest.mark.usefixtures("on_engine")
def test_a_version_without_a_prefix_has_nothing_to_compare(make_stack: Any) -> None:
    """That is its author's choice, and no fault."""
    stack = make_stack()
    whole = stack.publish(
        messages=[{"role": "user", "content": "{{ note }}"}],
    )
    bare = replace(
        whole, compiled=CompiledTemplate(segments=whole.compiled.segments, prefix_ids=())
    )
    stack.versions[bare.ref.digest] = bare
    findings = found(stack, bare)
    assert set(outcomes(findings).values()) == {PASS}
    assert findings["cached_equals_uncached"].message == "nothing is cached"


@pytest.mark.usefixtures("on_engine")
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RuntimeError("quotes a prompt"), FAIL),
        (non_finite(), FAIL),
        (MemoryError(), INCONCLUSIVE),
    ],
)
def test_what_a_sample_does_to_the_engine(
    make_stack: Any, error: Exception, outcome: Outcome
) -> None:
    """A crash fails the version, without the error's words; what may pass is tried again."""

    def third(request: GenerationRequest, answer: Generation) -> Generation:
        if stack.model.tokenizer.decode(request.ids).count(NOTES[2]):
            raise error
        return answer

    stack = make_stack(engine=Scripted(third))
    findings = found(stack, stack.publish(rules="x", **samples(None, None, None)))
    assert findings["runs"].outcome is outcome
    assert "sample 3" in findings["runs"].message
    assert "quotes" not in findings["runs"].message


@pytest.mark.usefixtures("on_engine")
def test_a_worker_that_ends_finds_nothing_out(make_stack: Any) -> None:
    """Neither between two samples nor in the midst of one, nor when its engine is closed."""
    stack = make_stack()
    canary = stack.publish(rules="x", **samples(None, None, None))
    with pytest.raises(Interrupted):
        found(stack, canary, stopping=lambda: True)

    def closed(request: GenerationRequest, answer: Generation) -> Generation:
        raise EngineClosed("closed")

    stack = make_stack(engine=Scripted(closed))
    with pytest.raises(Interrupted):
        found(stack, stack.publish(rules="x"))


@pytest.mark.usefixtures("on_engine")
def test_one_sample_at_a_time_is_in_the_engine(make_stack: Any) -> None:
    """A gate run takes what one job takes of the batch."""
    inside: list[int] = []

    class Counting(FakeEngine):
        def generate(self, request: GenerationRequest) -> Generation:
            inside.append(len(inside))
            try:
                return super().generate(request)
            finally:
                assert inside.pop() == 0

    stack = make_stack(engine=Counting(batch_size=8))
    assert found(stack, stack.publish(rules="x", **samples(None, None, None)))
