"""`submit`, `result`, `status`, `cancel` and `batch` on a producer in memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner, Result as Ran

from contract.errors import InvalidInput, TimedOut
from contract.job_store import JobView
from contract.types import Job, JobError, JobState, Result, VersionRef
from producer import cli, commands
from producer.batch.lines import BatchLine
from producer.commands import parse_pairs

REF = VersionRef(tenant="acme", template="triage", version=1, digest="d" * 64)
PROPERTIES = {
    "ticket": {"type": "string"},
    "price": {"type": "number"},
    "urgent": {"type": "boolean"},
    "words": {"type": "array"},
    "either": {"type": ["string", "null"]},
    "maybe": {"type": ["integer", "null"]},
    "untyped": {},
}


@dataclass(slots=True)
class _Handle:
    id: str
    state: JobState = JobState.SUCCEEDED
    scores: dict[str, float] = field(default_factory=dict)

    def status(self) -> JobState:
        return self.state

    def view(self) -> JobView:
        return JobView(
            job=Job(id=self.id, ref=REF, variables={}, rollout="c" * 16),
            state=self.state,
            worker="",
            finished_at=None,
            result=None,
            cancel_requested=False,
            scores=self.scores,
        )

    def score(self, name: str, value: float) -> None:
        self.scores[name] = value

    def cancel(self) -> JobState:
        return JobState.CANCELLED

    def outcome(self, timeout: float | None = None) -> Result:
        if not self.state.ended:
            raise TimedOut("the job goes on", given=timeout)
        if self.state is JobState.SUCCEEDED:
            return Result(job_id=self.id, ref=REF, status=self.state, text="error")
        error = JobError(code="boom", message="it broke", remedy="Mend it.")
        return Result(job_id=self.id, ref=REF, status=self.state, error=error)


@dataclass(slots=True)
class _Producer:
    state: JobState = JobState.SUCCEEDED
    patience_s: float = 0.0
    submitted: list[tuple[str, Mapping[str, Any], dict[str, Any]]] = field(default_factory=list)

    def submit(self, template: str, variables: Mapping[str, Any], **options: Any) -> _Handle:
        self.submitted.append((template, variables, options))
        return _Handle("acme.0", self.state)

    def handle(self, job_id: str) -> _Handle:
        return _Handle(job_id, self.state)


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> _Producer:
    made = _Producer()

    def make(_settings: object, *, patience_s: float = 0.0) -> _Producer:
        made.patience_s = patience_s
        return made

    monkeypatch.setattr(commands, "_producer", make)
    monkeypatch.setattr(commands, "_properties", lambda _settings, _template: PROPERTIES)
    return made


def _run(*arguments: str, stdin: str | None = None) -> Ran:
    return CliRunner().invoke(cli.main, arguments, input=stdin)


def test_submit_prints_the_id_alone(producer: _Producer) -> None:
    """So that a shell can keep it in a variable."""
    assert _run("submit", "acme/triage", "--vars", '{"ticket": "x"}').stdout == "acme.0\n"
    data = _run("submit", "acme/triage", "--var", "ticket=x", "--json").stdout
    assert json.loads(data) == {"job_id": "acme.0"}


def test_submit_passes_everything_on(producer: _Producer, tmp_path: Path) -> None:
    """Variables from a file, single ones on top, and the options."""
    file = tmp_path / "vars.json"
    file.write_text('{"ticket": "old", "price": 1}')
    _run(
        *("submit", "acme/triage@2", "--vars", f"@{file}", "--var", "ticket=a=b"),
        *("--idempotency-key", "k", "--deadline", "5", "--no-cache"),
    )
    options = {
        "idempotency_key": "k",
        "sticky_key": None,
        "deadline_s": 5.0,
        "use_cache": False,
        "stream": False,
    }
    assert producer.submitted == [("acme/triage@2", {"ticket": "a=b", "price": 1}, options)]


def test_submit_is_as_patient_as_asked(producer: _Producer) -> None:
    """Not at all, unless asked."""
    _run("submit", "acme/triage")
    assert producer.patience_s == 0
    _run("submit", "acme/triage", "--patience", "7")
    assert producer.patience_s == 7


def test_submit_reads_stdin(producer: _Producer) -> None:
    """With `--vars -`."""
    _run("submit", "acme/triage", "--vars", "-", stdin='{"ticket": "from stdin"}')
    assert producer.submitted[0][1] == {"ticket": "from stdin"}


def test_submit_and_wait_prints_the_answer(producer: _Producer) -> None:
    """Only the text on stdout; the id is talk."""
    ran = _run("submit", "acme/triage", "--wait")
    assert (ran.stdout, ran.stderr, ran.exit_code) == ("error\n", "acme.0\n", 0)
    data = _run("submit", "acme/triage", "--wait", "--json")
    assert json.loads(data.stdout)["status"] == "succeeded"


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED])
@pytest.mark.parametrize("command", [("submit", "acme/triage", "--wait"), ("result", "acme.0")])
def test_job_without_an_answer_gives_8(
    producer: _Producer, state: JobState, command: tuple[str, ...]
) -> None:
    """Why is said on stderr; --json has the whole result."""
    producer.state = state
    ran = _run(*command)
    assert (ran.exit_code, ran.stdout) == (8, "")
    assert f"{state}: it broke. Mend it." in ran.stderr
    data = _run(*command, "--json")
    assert data.exit_code == 8
    assert json.loads(data.stdout)["status"] == state


@pytest.mark.parametrize("wait", [(), ("--wait", "--timeout", "0")])
def test_result_of_an_unfinished_job_gives_6(producer: _Producer, wait: tuple[str, ...]) -> None:
    """With and without waiting; the answer to come is not lost."""
    producer.state = JobState.RUNNING
    ran = _run("result", "acme.0", *wait)
    assert (ran.exit_code, ran.stdout) == (6, "")
    assert json.loads(_run("result", "acme.0", *wait, "--json").stdout)["error"] == "timed_out"


def test_status_and_cancel(producer: _Producer) -> None:
    """One word, or one object."""
    assert _run("status", "acme.0").stdout == "succeeded\n"
    assert _run("cancel", "acme.0").stdout == "cancelled\n"
    assert json.loads(_run("status", "acme.0", "--json").stdout) == {
        "job_id": "acme.0",
        "status": "succeeded",
        "template": "acme/triage",
        "version": 1,
        "rollout": "c" * 16,
        "scores": {},
    }
    assert json.loads(_run("cancel", "acme.0", "--json").stdout)["status"] == "cancelled"


def test_a_score_may_be_below_zero(producer: _Producer) -> None:
    """And is no option then; a word is wrong use."""
    ran = _run("score", "acme.0", "quality", "-0.5", "--json")
    assert json.loads(ran.stdout) == {"job_id": "acme.0", "name": "quality", "value": -0.5}
    assert _run("score", "acme.0", "quality", "good").exit_code == 2
    assert _run("score", "acme.0", "quality").exit_code == 2


def test_a_sticky_key_goes_with_the_job(producer: _Producer) -> None:
    """From the command line to the producer."""
    _run("submit", "acme/triage", "--vars", "{}", "--sticky-key", "customer-7")
    [(_, _, options)] = producer.submitted
    assert options["sticky_key"] == "customer-7"


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("ticket=12", "12"),
        ("ticket=", ""),
        ("ticket={x}", "{x}"),
        ("price=19.5", 19.5),
        ("urgent=true", True),
        ('words=["a"]', ["a"]),
        ("either=null", "null"),
        ("maybe=null", None),
        ("untyped=5", "5"),
        ("unknown=5", "5"),
    ],
)
def test_schema_decides_what_a_pair_means(pair: str, value: object) -> None:
    """Text stays text where text is allowed; all else is read as JSON."""
    assert list(parse_pairs([pair], PROPERTIES).values()) == [value]


@pytest.mark.parametrize("pairs", [["ticket"], ["price=cheap"], ["price=NaN"], ["a=1", "a=2"]])
def test_bad_pair_is_named(pairs: list[str]) -> None:
    """A missing value, no JSON where JSON must be, a name given twice."""
    with pytest.raises(InvalidInput, match="--var"):
        parse_pairs(pairs, PROPERTIES)


@pytest.mark.parametrize("value", ["{", "[1]", "@nowhere.json", "3"])
def test_bad_variables_are_named(producer: _Producer, value: str) -> None:
    """Nothing is enqueued."""
    ran = _run("submit", "acme/triage", "--vars", value)
    assert ran.exit_code == 1
    assert "--vars" in ran.stderr
    assert producer.submitted == []


@dataclass(slots=True)
class _Jobs:
    keys: set[str] = field(default_factory=set)
    state: JobState = JobState.SUCCEEDED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def check(self, template: str, variables: Mapping[str, Any], key: str | None) -> None:  # noqa: ARG002
        if "ticket" not in variables:
            raise InvalidInput("$.ticket is missing", remedy="Give it.")

    def only_variable(self, template: str) -> str:  # noqa: ARG002
        return "ticket"

    def submit(self, line: BatchLine, idempotency_key: str) -> _Handle:
        self.keys.add(idempotency_key)
        return _Handle(f"acme.{line.index}", self.state)

    def ended(self, handles: Collection[_Handle], timeout: float | None) -> Iterator[_Handle]:  # noqa: ARG002
        yield from handles


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> _Jobs:
    made = _Jobs()
    monkeypatch.setattr("producer.batch.jobs.Jobs", lambda *_args, **_options: made)
    return made


GOOD = '{"variables": {"ticket": "a"}}\n{"id": "x", "variables": {"ticket": "b"}}\n'


def _batch(tmp_path: Path, content: str, *options: str) -> tuple[Ran, Path]:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(content)
    ran = _run("batch", str(source), "-o", str(out), "--template", "acme/triage", *options)
    return ran, out


def test_batch_writes_results_and_a_summary(jobs: _Jobs, tmp_path: Path) -> None:
    """Results in the file, the summary on stderr, or with --json on stdout."""
    ran, out = _batch(tmp_path, GOOD)
    assert (ran.exit_code, ran.stdout) == (0, "")
    assert "2 succeeded" in ran.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["index"], line["id"], line["text"]) for line in lines] == [
        (0, None, "error"),
        (1, "x", "error"),
    ]
    again, _ = _batch(tmp_path, GOOD, "--json")
    summary = json.loads(again.stdout)
    assert (summary["lines"], summary["already_done"]) == (2, 2)
    assert summary["statuses"] == {"succeeded": 2}


def test_batch_reads_stdin(jobs: _Jobs, tmp_path: Path) -> None:
    """With `-`; the same input is the same batch."""
    _batch(tmp_path, GOOD)
    out = str(tmp_path / "out.jsonl")
    ran = _run("batch", "-", "-o", out, "--template", "acme/triage", "--json", stdin=GOOD)
    assert json.loads(ran.stdout)["already_done"] == 2


def test_bad_lines_are_all_reported_first(jobs: _Jobs, tmp_path: Path) -> None:
    """Each with its number; nothing is enqueued and nothing written."""
    content = GOOD + '{"variables": {}}\nnonsense\n'
    ran, out = _batch(tmp_path, content)
    assert ran.exit_code == 1
    assert "line 3: $.ticket is missing. Give it." in ran.stderr
    assert "line 4: not a line of JSON" in ran.stderr
    assert jobs.keys == set()
    assert out.read_text() == ""
    data, _ = _batch(tmp_path, content, "--json")
    assert data.exit_code == 1
    assert [line["line"] for line in json.loads(data.stdout)["lines"]] == [3, 4]


def test_bad_lines_can_be_skipped(jobs: _Jobs, tmp_path: Path) -> None:
    """They become error lines, the others run, and the exit status tells."""
    ran, out = _batch(tmp_path, GOOD + "nonsense\n", "--skip-invalid")
    assert ran.exit_code == 8
    statuses = [json.loads(line)["status"] for line in out.read_text().splitlines()]
    assert sorted(statuses) == ["invalid", "succeeded", "succeeded"]


def test_failed_jobs_give_8(jobs: _Jobs, tmp_path: Path) -> None:
    """All results are written all the same."""
    jobs.state = JobState.FAILED
    ran, out = _batch(tmp_path, GOOD)
    assert ran.exit_code == 8
    assert len(out.read_text().splitlines()) == 2


def test_another_input_is_a_conflict(jobs: _Jobs, tmp_path: Path) -> None:
    """Results of two inputs never mix; the file stays as it was."""
    _, out = _batch(tmp_path, GOOD)
    before = out.read_text()
    ran, _ = _batch(tmp_path, GOOD * 2)
    assert ran.exit_code == 7
    assert "belongs to another batch" in ran.stderr
    assert out.read_text() == before


def test_another_run_makes_new_keys(jobs: _Jobs, tmp_path: Path) -> None:
    """`--run` asks for the same input again."""
    _batch(tmp_path, GOOD)
    (tmp_path / "out.jsonl").unlink()
    _batch(tmp_path, GOOD, "--run", "second")
    assert len(jobs.keys) == 4


def test_input_is_never_taken_for_output(jobs: _Jobs, tmp_path: Path) -> None:
    """Naming one file twice changes nothing in it."""
    source = tmp_path / "in.jsonl"
    source.write_text(GOOD.rstrip())
    ran = _run("batch", str(source), "-o", str(source), "--template", "acme/triage")
    assert ran.exit_code == 7
    assert source.read_text() == GOOD.rstrip()


@pytest.mark.parametrize("place", ["missing.jsonl", "."])
def test_unreadable_input_is_an_error(jobs: _Jobs, tmp_path: Path, place: str) -> None:
    """Named with the reason."""
    ran = _run("batch", str(tmp_path / place), "-o", str(tmp_path / "out"))
    assert ran.exit_code == 1
    assert "batch file cannot be read" in ran.stderr
