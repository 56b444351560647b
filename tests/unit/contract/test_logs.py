"""Log lines: JSON where nobody looks, one shape for our records and everybody else's."""

from __future__ import annotations

import io
import json
import logging
import re
from typing import Any

import pytest
import structlog

from contract.errors import NotFound
from contract.logs import configure_logs, get_logger


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


pytestmark = pytest.mark.usefixtures("logging_as_before")


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_are_json_where_there_is_no_terminal() -> None:
    """One object a line: the event, its fields with their types, level, logger and UTC time."""
    stream = io.StringIO()
    configure_logs(stream=stream)
    get_logger("test.ours").info("job_finished", tokens=3, ok=True, text="two\nlines ü")
    (line,) = lines(stream)
    time = line.pop("timestamp")
    assert line == {
        "event": "job_finished",
        "level": "info",
        "logger": "test.ours",
        "tokens": 3,
        "ok": True,
        "text": "two\nlines ü",
    }
    assert time.endswith("Z")


def test_records_of_other_libraries_have_the_same_shape() -> None:
    """Celery's lines parse like ours, with their arguments filled in."""
    stream = io.StringIO()
    configure_logs(stream=stream)
    get_logger("test.ours").warning("same")
    logging.getLogger("celery.test").warning("same %s", "words")
    ours, theirs = lines(stream)
    assert ours.keys() == theirs.keys()
    assert (theirs["event"], theirs["level"], theirs["logger"]) == (
        "same words",
        "warning",
        "celery.test",
    )


@pytest.mark.parametrize("foreign", [False, True])
def test_traceback_stays_within_its_line(foreign: bool) -> None:
    """An exception is a field, so that a reader of lines is never lost."""
    stream = io.StringIO()
    configure_logs(stream=stream)
    logger: Any = logging.getLogger("celery.test") if foreign else get_logger("test.ours")
    try:
        int("broken")
    except ValueError:
        logger.exception("job_crashed")
    (line,) = lines(stream)
    assert (line["event"], line["level"]) == ("job_crashed", "error")
    assert line["exception"].startswith("Traceback")
    assert line["exception"].splitlines()[-1] == "builtins.ValueError"


def test_context_is_in_every_record_of_the_thread() -> None:
    """What was bound once is on our lines and on those of the libraries we call."""
    stream = io.StringIO()
    configure_logs(stream=stream)
    with structlog.contextvars.bound_contextvars(job_id="acme.1"):
        get_logger("test.ours").info("one")
        logging.getLogger("celery.test").info("two")
    get_logger("test.ours").info("three")
    assert [line.get("job_id") for line in lines(stream)] == ["acme.1", "acme.1", None]


def test_terminal_gets_lines_for_people_unless_json_is_forced() -> None:
    """`force_json` is what --json means for a worker's log."""
    readable, forced = Terminal(), Terminal()
    configure_logs(stream=readable)
    get_logger("test.readable").info("job_finished", tokens=3)
    configure_logs(stream=forced, force_json=True)
    get_logger("test.forced").info("job_finished", tokens=3)
    assert "job_finished" in readable.getvalue()
    with pytest.raises(json.JSONDecodeError):
        lines(readable)
    (line,) = lines(forced)
    assert line["tokens"] == 3


def test_level_holds_for_ours_and_for_others() -> None:
    """Names of levels are taken in any case; what is below is not written."""
    stream = io.StringIO()
    configure_logs(level="warning", stream=stream)
    for logger in (get_logger("test.ours"), logging.getLogger("celery.test")):
        logger.info("quiet")
        logger.warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud", "loud"]


def test_second_set_up_replaces_the_first() -> None:
    """No record is written twice, however often logs are set up."""
    first, second = io.StringIO(), io.StringIO()
    configure_logs(stream=first)
    configure_logs(stream=second)
    logging.getLogger("celery.test").info("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_stderr_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    """Data has stdout to itself."""
    configure_logs()
    get_logger("test.default").info("talk")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["event"] == "talk"


def test_local_variables_are_not_in_a_terminals_traceback() -> None:
    """A traceback shows where, not what: locals hold what users wrote."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    configure_logs(stream=stream)
    try:
        variables = {"note": "marker-5521"}
        int("not a number", base=len(variables) + 9)
    except ValueError:
        get_logger("test.ours").exception("job_crashed")
    assert "ValueError" in stream.getvalue()
    assert "marker-5521" not in stream.getvalue()


def _raise_quoting() -> None:
    cause = KeyError("planted")
    cause.__cause__ = ValueError("planted")
    ours = NotFound("told", given="by us")
    raise ExceptionGroup("planted", [TypeError("planted"), ours]) from cause


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_the_words_of_exceptions_are_left_out(stream: type[io.StringIO]) -> None:
    """They may quote a prompt. Types and places stay, of causes and groups too, and our words."""
    out = stream()
    configure_logs(stream=out)
    try:
        _raise_quoting()
    except ExceptionGroup:
        get_logger("test.ours").exception("job_crashed", job_id="a.b")
    text = out.getvalue()
    # The lines of source in the traceback aside.
    assert "planted" not in "".join(re.split(r"raise \w+\(.*?(?:\n|\\n)", text))
    for kind in ("builtins.KeyError", "builtins.ValueError", "builtins.TypeError"):
        assert kind in text
    assert "contract.errors.NotFound: told; given: by us." in text
    assert "_raise_quoting" in text


def test_the_words_are_there_when_debugging() -> None:
    """Who asks for the level debug gets all."""
    out = io.StringIO()
    configure_logs(stream=out, level="debug")
    try:
        int("planted")
    except ValueError:
        get_logger("test.ours").exception("job_crashed")
    assert (
        "ValueError: invalid literal for int() with base 10: 'planted'"
        in lines(out)[0]["exception"]
    )


def test_celerys_lines_lose_what_is_in_tasks_and_messages() -> None:
    """Its words for a crash, and for messages that it refuses, quote all of them."""
    from celery.worker.consumer import consumer

    out = io.StringIO()
    configure_logs(stream=out)
    task = {"name": "n", "id": "i", "description": "raised", "exc": "planted", "args": "planted"}
    logging.getLogger("celery.app.trace").error("Task %(name)s[%(id)s] %(exc)s", task)
    logger = logging.getLogger("celery.worker.consumer.consumer")
    for form in (
        "UNKNOWN_FORMAT",
        "UNKNOWN_TASK_ERROR",
        "INVALID_TASK_ERROR",
        "MESSAGE_DECODE_ERROR",
    ):
        words = getattr(consumer, form)
        logger.error(words, *["planted"] * words.count("%"))
    logger.error("consumer: Cannot connect to %s: %s.", "redis://h", "refused")
    events = [line["event"] for line in lines(out)]
    assert events[0] == "Task n[i] (not shown)"
    assert "planted" not in " ".join(events)
    assert events[-1] == "consumer: Cannot connect to redis://h: refused."
    assert len(events) == 6
