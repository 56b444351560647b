"""What the gates make of two versions' jobs: by example, and laws that hold for any."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from templates.rollouts.judge import judge, verdict
from templates.rollouts.outcomes import JobOutcome, Outcomes
from templates.rollouts.rollout import Finding, Limits, Outcome

PASS, FAIL, INCONCLUSIVE = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE
LIMITS = Limits(min_samples=20, scores={"human": 0.1})
GATES = {"failures", "fallbacks", "latency", "length", "score:human"}


def job(
    *, failed: bool = False, cache: str = "hit", seconds: float = 1.0, tokens: int = 8
) -> JobOutcome:
    state = "failed" if failed else "succeeded"
    return JobOutcome(state=state, cache=cache, seconds=seconds, tokens=tokens)


def sample(
    count: int,
    *,
    failed: int = 0,
    missed: int = 0,
    slow: int = 0,
    seconds: float = 1.0,
    tokens: int = 8,
    scores: tuple[float, ...] = (),
) -> Outcomes:
    """`failed`, `missed` and `slow` (ten times `seconds`) count jobs, other ones each."""
    good = count - failed - missed - slow
    return Outcomes(
        jobs=(
            *[job(failed=True)] * failed,
            *[job(cache="miss", seconds=seconds, tokens=tokens)] * missed,
            *[job(seconds=10 * seconds, tokens=tokens)] * slow,
            *[job(seconds=seconds, tokens=tokens)] * good,
        ),
        scores={"human": scores},
    )


def outcome(gate: str, canary: Outcomes, stable: Outcomes, limits: Limits = LIMITS) -> Outcome:
    [found] = [finding for finding in judge(canary, stable, limits) if finding.gate == gate]
    return found.outcome


def message(gate: str, canary: Outcomes, stable: Outcomes) -> str:
    [found] = [finding for finding in judge(canary, stable, LIMITS) if finding.gate == gate]
    return found.message


GOOD = sample(200, scores=(0.9, 0.8) * 50)
NONE = Outcomes()


def test_there_is_a_finding_for_each_gate_and_each_score_with_a_limit() -> None:
    """Also without traffic."""
    for canary in (NONE, GOOD):
        assert {finding.gate for finding in judge(canary, GOOD, LIMITS)} == GATES


@pytest.mark.parametrize(("canary", "stable"), [(NONE, NONE), (NONE, GOOD), (GOOD, NONE)])
def test_no_traffic_is_inconclusive(canary: Outcomes, stable: Outcomes) -> None:
    """On either side, for every gate."""
    findings = judge(canary, stable, LIMITS)
    assert {finding.outcome for finding in findings} == {INCONCLUSIVE}
    assert verdict(findings) is INCONCLUSIVE


def test_equal_versions_pass() -> None:
    """All gates, and so the verdict."""
    findings = judge(GOOD, GOOD, LIMITS)
    assert {finding.outcome for finding in findings} == {PASS}
    assert verdict(findings) is PASS


@pytest.mark.parametrize(
    ("gate", "worse"),
    [
        ("failures", sample(200, failed=40)),
        ("fallbacks", sample(200, missed=60)),
        ("latency", sample(200, slow=60)),
        ("latency", sample(200, seconds=1.6)),
        ("length", sample(200, tokens=13)),
        ("length", sample(200, tokens=3)),
        ("score:human", sample(200, scores=(0.7, 0.6) * 50)),
    ],
)
def test_each_gate_fails_by_its_own_cause(gate: str, worse: Outcomes) -> None:
    """And only that gate, of those that have enough jobs."""
    failed = {f.gate for f in judge(worse, GOOD, LIMITS) if f.outcome is FAIL}
    assert failed == {gate}
    assert verdict(judge(worse, GOOD, LIMITS)) is FAIL


@pytest.mark.parametrize(
    ("gate", "canary"),
    [
        ("failures", sample(50, failed=2)),  # 4 % where 2 % are allowed: two jobs of fifty
        ("fallbacks", sample(50, missed=5)),
        ("latency", sample(50, slow=4)),
        ("score:human", sample(50, scores=(1.0, 0.4) * 10)),
    ],
)
def test_a_rise_over_the_limit_that_may_be_chance_is_inconclusive(
    gate: str, canary: Outcomes
) -> None:
    """Over the limit as measured, and not with confidence; a hundred times the jobs fail."""
    assert outcome(gate, canary, GOOD) is INCONCLUSIVE
    many = Outcomes(
        jobs=canary.jobs * 100, scores={name: s * 100 for name, s in canary.scores.items()}
    )
    assert outcome(gate, many, Outcomes(jobs=GOOD.jobs * 100, scores=GOOD.scores)) is FAIL


def test_one_very_long_answer_fails_nothing() -> None:
    """The mean is over the limit, and its standard error says whose doing that is."""
    canary = Outcomes(jobs=(*[job()] * 30, job(tokens=2000)))
    assert outcome("length", canary, GOOD) is INCONCLUSIVE


def test_one_very_slow_job_fails_nothing() -> None:
    """Nor does it matter: 1 of 30 is under the 5 of 100 that p95 lets be."""
    canary = Outcomes(jobs=(*[job()] * 30, job(seconds=1000)))
    assert outcome("latency", canary, GOOD) is PASS


def test_a_stable_p95_of_few_jobs_convicts_nobody() -> None:
    """Of 20 jobs p95 is the second longest, and says little of those that are rarer."""
    stable = Outcomes(jobs=tuple(job(seconds=1 + i % 7) for i in range(20)))
    canary = Outcomes(jobs=(*stable.jobs[:18], job(seconds=12), job(seconds=12)))
    assert outcome("latency", canary, stable) is INCONCLUSIVE


def test_failed_jobs_are_judged_by_the_failures_gate_alone() -> None:
    """They have no answer to measure: 30 failures beside 30 answers leave the rest as it was."""
    canary = Outcomes(
        jobs=(*[job(failed=True, cache="", seconds=99, tokens=0)] * 30, *[job()] * 30)
    )
    assert outcome("failures", canary, GOOD) is FAIL
    for gate in ("fallbacks", "latency", "length"):
        assert outcome(gate, canary, GOOD) is PASS


def test_scores_are_counted_by_name() -> None:
    """19 scores of 200 jobs are too few; 20 are enough."""
    for count, expected in ((19, INCONCLUSIVE), (20, PASS)):
        canary = sample(200, scores=(0.85,) * count)
        assert outcome("score:human", canary, GOOD) is expected


@pytest.mark.parametrize(
    ("gate", "numbers"),
    [
        ("failures", ("20.00% of 200", "0.00% of 200", "2.00%")),
        ("fallbacks", ("25.00% of 160", "0.00% of 200", "5.00%")),
        ("latency", ("2 s", "1 s", "1.5 times")),
        ("length", ("12 tokens of 160", "8 of 200", "50%")),
        ("score:human", ("0.5 of 30", "0.85 of 100", "0.1")),
    ],
)
def test_a_message_has_both_numbers_and_the_limit(gate: str, numbers: tuple[str, ...]) -> None:
    """With the counts they are of."""
    canary = sample(200, failed=40, missed=40, seconds=2.0, tokens=12, scores=(0.5,) * 30)
    text = message(gate, canary, GOOD)
    assert all(number in text for number in numbers), text


def test_a_verdict_needs_every_gate() -> None:
    """Nothing at all is no pass, and one gate that knows nothing keeps the others waiting."""

    def finding(result: Outcome) -> Finding:
        return Finding(gate="g", outcome=result, message="")

    assert verdict(()) is INCONCLUSIVE
    assert verdict((finding(PASS), finding(INCONCLUSIVE))) is INCONCLUSIVE
    assert verdict((finding(PASS), finding(INCONCLUSIVE), finding(FAIL))) is FAIL


# --- laws

jobs = st.builds(
    job,
    failed=st.booleans(),
    cache=st.sampled_from(["hit", "miss", "off"]),
    seconds=st.floats(0, 1e4),
    tokens=st.integers(0, 4096),
)
samples = st.builds(
    lambda found, scores: Outcomes(jobs=tuple(found), scores={"human": tuple(scores)}),
    st.lists(jobs, max_size=60),
    st.lists(st.floats(-10, 10), max_size=40),
)
limits = st.builds(
    Limits,
    min_samples=st.integers(1, 30),
    failures=st.floats(0, 1),
    fallbacks=st.floats(0, 1),
    latency=st.floats(1, 10),
    length=st.floats(0, 2),
    scores=st.fixed_dictionaries({"human": st.floats(0, 5)}),
)
RANK = {FAIL: 0, INCONCLUSIVE: 1, PASS: 2}


def counts(outcomes: Outcomes) -> dict[str, int]:
    """How many samples each gate has to go by."""
    answered = len(outcomes.answered)
    return {
        "failures": len(outcomes.jobs),
        "fallbacks": answered,
        "latency": answered,
        "length": answered,
        "score:human": len(outcomes.scores.get("human", ())),
    }


@given(canary=samples, stable=samples, limits=limits)
def test_too_few_samples_never_pass_and_never_fail(
    canary: Outcomes, stable: Outcomes, limits: Limits
) -> None:
    """Whatever the few say."""
    for finding in judge(canary, stable, limits):
        fewest = min(counts(canary)[finding.gate], counts(stable)[finding.gate])
        if fewest < limits.min_samples:
            assert finding.outcome is INCONCLUSIVE


@given(both=samples, limits=limits)
def test_a_version_is_never_worse_than_itself(both: Outcomes, limits: Limits) -> None:
    """Equal samples pass wherever there are enough of them."""
    for finding in judge(both, both, limits):
        enough = counts(both)[finding.gate] >= limits.min_samples
        assert finding.outcome is (PASS if enough else INCONCLUSIVE), finding


@given(canary=samples, stable=samples, limits=limits, data=st.data())
def test_what_is_worse_is_judged_no_better(
    canary: Outcomes, stable: Outcomes, limits: Limits, data: st.DataObject
) -> None:
    """One more failure, a miss for a hit, a slower job, lower scores: never a better outcome."""
    found = {finding.gate: finding.outcome for finding in judge(canary, stable, limits)}
    alive = [i for i, one in enumerate(canary.jobs) if not one.failed]
    if alive:
        place = data.draw(st.sampled_from(alive))
        chosen = canary.jobs[place]
        worse = {
            "failures": replace(chosen, state="failed"),
            "fallbacks": replace(chosen, cache="miss"),
            "latency": replace(chosen, seconds=chosen.seconds * 2 + 1),
        }
        for gate, changed in worse.items():
            rest = (*canary.jobs[:place], changed, *canary.jobs[place + 1 :])
            then = outcome(gate, replace(canary, jobs=rest), stable, limits)
            assert RANK[then] <= RANK[found[gate]]
    lower = {"human": tuple(score - 1 for score in canary.scores["human"])}
    then = outcome("score:human", replace(canary, scores=lower), stable, limits)
    assert RANK[then] <= RANK[found["score:human"]]


@given(canary=samples, stable=samples, limits=limits)
@settings(max_examples=50)
def test_a_wider_limit_is_never_judged_worse(
    canary: Outcomes, stable: Outcomes, limits: Limits
) -> None:
    """Every limit doubled."""
    wider = replace(
        limits,
        failures=2 * limits.failures,
        fallbacks=2 * limits.fallbacks,
        latency=2 * limits.latency,
        length=2 * limits.length,
        scores={name: 2 * drop for name, drop in limits.scores.items()},
    )
    pairs = zip(judge(canary, stable, limits), judge(canary, stable, wider), strict=True)
    assert all(RANK[after.outcome] >= RANK[before.outcome] for before, after in pairs)


@given(canary=samples, stable=samples, limits=limits)
def test_a_message_is_short_and_names_no_infinity(
    canary: Outcomes, stable: Outcomes, limits: Limits
) -> None:
    """It is kept in Redis and shown in tables."""
    for finding in judge(canary, stable, limits):
        assert len(finding.message) < 200
        assert "inf" not in finding.message
        assert "nan" not in finding.message


@pytest.mark.parametrize("side", ["canary", "stable"])
def test_a_comparison_of_the_newest_alone_says_so(side: str) -> None:
    """Also when too few are left of it."""
    for ours in (GOOD, sample(3)):
        sides = {"canary": ours, "stable": GOOD}
        told = judge(*(replace(of, cut=name == side) for name, of in sides.items()), LIMITS)
        assert all(found.message.endswith("there are more than are read") for found in told)
        plain = judge(*sides.values(), LIMITS)
        assert [found.outcome for found in told] == [found.outcome for found in plain]
        assert not any("more than are read" in found.message for found in plain)
