"""Functions made of scripts: named by their content, wrapped as Redis wants them."""

from __future__ import annotations

from contract.load import load_library
from contract.records import job_library
from contract.scripts import LIBRARY_PREFIX, ScriptLibrary
from templates.moving import registry_library

ONE = ScriptLibrary(name="jobs", sources={"get": "return 1", "set": "return 2 -- done"})


def test_the_name_follows_the_content() -> None:
    """Other sources or flags are another library, so that two releases never share one."""
    same = ScriptLibrary(name="jobs", sources={"set": "return 2 -- done", "get": "return 1"})
    other = ScriptLibrary(name="jobs", sources={"get": "return 1", "set": "return 3 -- done"})
    flagged = ScriptLibrary(name="jobs", sources=ONE.sources, flags={"get": "no-writes"})
    renamed = ScriptLibrary(name="more", sources=ONE.sources)
    assert same.library == ONE.library
    assert len({ONE.library, other.library, flagged.library, renamed.library}) == 4


def test_each_script_becomes_a_function_of_the_library() -> None:
    """With KEYS and ARGV as its arguments, and closed after a source that ends in a comment."""
    code = ONE.code()
    assert code.startswith(f"#!lua name={ONE.library}\n")
    for script in ("get", "set"):
        assert f"function_name = '{ONE.library}_{script}'" in code
    assert code.count("callback = function(KEYS, ARGV)\n") == 2
    assert "return 2 -- done\nend}" in code


def test_all_libraries_hold_all_that_clients_call() -> None:
    """Names fit what Redis takes, and no library is another's."""
    jobs, registry, load = job_library(), registry_library(), load_library()
    assert {"submit", "claim", "commit", "cancel"} <= jobs.sources.keys()
    assert registry.sources.keys() == {"publish", "move", "note"}
    assert load.sources.keys() == set(load.flags) == {"sight", "unacked", "fields", "newest"}
    for library in (jobs, registry, load):
        assert library.library.startswith(LIBRARY_PREFIX)
        assert library.library.replace("_", "").isalnum()
        assert library.flags.keys() <= library.sources.keys()
