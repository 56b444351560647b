"""`prefillq tenants limits`, and what producers are told who reach one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

VARIABLES = ("--vars", '{"note": "hello", "count": 2}')


def test_limits_are_shown_set_and_ended(command_line: CommandLine) -> None:
    """None at first; what is not given is not limited; --none ends all."""
    cli = command_line
    none = {"tenant": "acme", "rate_per_s": None, "max_queued": None, "max_running": None}
    assert cli.run("tenants", "limits", "acme", "--json").json == none
    ran = cli.run("tenants", "limits", "acme", "--rate", "30/min", "--max-queued", "7", "--json")
    assert ran.json == {**none, "rate_per_s": 0.5, "max_queued": 7}
    ran = cli.run("tenants", "limits", "acme", "--max-running", "0")
    assert [line.split(maxsplit=1) for line in ran.out.splitlines()] == [
        ["tenant", "acme"],
        ["rate_per_s", "no limit"],
        ["max_queued", "no limit"],
        ["max_running", "0"],
    ]
    assert cli.run("tenants", "limits", "acme", "--none", "--json").json == none


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rate", "fast"), "write 50/s"),
        (("--rate", "0/s"), "write 50/s"),
        (("--rate", "5/day"), "write 50/s"),
        (("--max-queued", "-1"), "--max-queued"),
        (("--none", "--rate", "1/s"), "--none goes with no other limit"),
    ],
)
def test_what_is_no_limit_is_usage(
    command_line: CommandLine, words: tuple[str, ...], said: str
) -> None:
    """Exit 2, and the limits are what they were."""
    cli = command_line
    cli.run("tenants", "limits", "acme", "--max-queued", "3")
    ran = cli.run("tenants", "limits", "acme", *words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert cli.run("tenants", "limits", "acme", "--json").json["max_queued"] == 3


def test_no_tenants_name(command_line: CommandLine) -> None:
    """Nothing is written under a name that no key can hold."""
    ran = command_line.run("tenants", "limits", "a:b", "--max-queued", "3", "--json")
    assert (ran.code, ran.json["error"]) == (1, "invalid_input")


def test_job_over_a_limit_is_refused_and_says_which(command_line: CommandLine, notes: Path) -> None:
    """Exit 7 with the limit, or with the seconds until there is room; `create` sets them too."""
    cli = command_line
    assert cli.run("templates", "publish", notes).code == 0
    cli.run("tenants", "limits", "acme", "--max-queued", "1")
    assert cli.run("submit", "acme/notes", *VARIABLES).code == 0
    ran = cli.run("submit", "acme/notes", *VARIABLES, "--json")
    assert (ran.code, ran.json["error"], ran.json["expected"]) == (7, "over_limit", "at most 1")
    cli.run("tenants", "limits", "acme", "--rate", "1/h")
    assert cli.run("submit", "acme/notes", *VARIABLES).code == 0
    ran = cli.run("submit", "acme/notes", *VARIABLES, "--json")
    assert (ran.code, ran.json["error"]) == (7, "over_limit")
    assert re.fullmatch(r"Submit again in 3[56]\d\d s\.", ran.json["remedy"])
