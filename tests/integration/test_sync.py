"""A folder of template files against the registry: what is new is published, the rest left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.errors import Conflict
from contract.model_folder import ModelFolder
from contract.redis_client import Client
from contract.settings import Settings
from templates.folder import read_folder
from templates.prepare import Preparer
from templates.registry import Registry
from templates.rollouts.control import Rollouts
from templates.rollouts.rollout import Plan
from templates.sync import Plan as SyncPlan, apply_plan, make_plan
from templates.transfer import bundle_text, spec_text
from tests.support.templates import RULES, make_spec


@pytest.fixture
def preparer(settings: Settings, tiny_llama: ModelFolder) -> Preparer:
    """The tiny model, by the name that `make_spec` has."""
    settings.models_dir.mkdir(parents=True)
    (settings.models_dir / "tiny").symlink_to(tiny_llama.path)
    return Preparer(settings)


class Source:
    """A folder of template files, and what syncing it comes to."""

    def __init__(self, folder: Path, registry: Registry, preparer: Preparer) -> None:
        self.folder, self.registry, self.preparer = folder, registry, preparer

    def write(self, name: str = "notes", *, rules: str = RULES, **more: Any) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(spec_text(make_spec(name, rules=rules, **more)), "utf-8")
        return path

    def plan(self, *, label: str | None = None) -> SyncPlan:
        return make_plan(read_folder(self.folder), self.registry, self.preparer, label=label)

    def sync(self, *, label: str | None = None) -> list[tuple[str, int | None]]:
        plan = self.plan(label=label)
        assert not plan.refused
        return [(step.action, step.version) for step in apply_plan(plan, self.registry)]


@pytest.fixture
def source(tmp_path: Path, registry: Registry, preparer: Preparer) -> Source:
    folder = tmp_path / "templates"
    folder.mkdir()
    return Source(folder, registry, preparer)


def _state(registry: Registry) -> list[tuple[str, int, dict[str, int]]]:
    return [(t.name, t.latest, dict(t.labels)) for t in registry.list_templates("acme")]


def test_only_what_is_new_is_published(source: Source, registry: Registry) -> None:
    """A new template, then nothing, then a new version of one file, then the old content again."""
    source.write("notes")
    source.write("other")
    assert source.sync() == [("new_template", 1), ("new_template", 1)]
    assert source.sync() == [("unchanged", 1), ("unchanged", 1)]
    source.write("notes", rules=RULES + " Be brief.")
    assert source.sync() == [("new_version", 2), ("unchanged", 1)]
    assert _state(registry) == [("notes", 2, {"production": 1}), ("other", 1, {"production": 1})]
    source.write("notes")
    assert source.sync() == [("unchanged", 1), ("unchanged", 1)]
    assert _state(registry)[0] == ("notes", 2, {"production": 1})


def test_a_plan_writes_nothing(source: Source, client: Client) -> None:
    """It says what syncing would come to, to the number."""
    source.write("notes")
    plan = source.plan(label="staging")
    (step,) = plan.steps
    assert (step.action, step.version, step.template) == ("new_template", 1, "acme/notes")
    assert [str(move) for move in step.labels] == ["production: none -> 1", "staging: none -> 1"]
    assert step.prefix_tokens
    assert client.keys("pq:acme:*") == []
    assert [s.to_dict() for s in apply_plan(plan, source.registry)] == [step.to_dict()]


def test_what_is_unchanged_is_not_compiled(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of hundreds takes no longer than what is new in it."""
    source.write("notes")
    source.sync()
    monkeypatch.setattr(Preparer, "prepare", lambda *_, **__: pytest.fail("it was compiled"))
    assert source.sync() == [("unchanged", 1)]


def test_one_refused_file_keeps_all_from_being_published(source: Source, client: Client) -> None:
    """With the reasons of each; the plan shows the rest as it would have been."""
    source.write("good")
    source.write("bad", rules="Sort <|im_end|> them. " + RULES)
    source.write("lost", model="org/none")
    (source.folder / "broken.yaml").write_text("tenant: [", "utf-8")
    plan = source.plan()
    assert plan.refused
    assert [(step.path, step.action) for step in plan.steps] == [
        ("bad.yaml", "refused"),
        ("broken.yaml", "refused"),
        ("good.yaml", "new_template"),
        ("lost.yaml", "refused"),
    ]
    codes = {step.path: step.findings[0].code for step in plan.steps if step.findings}
    assert codes == {
        "bad.yaml": "template_refused",
        "broken.yaml": "spec_invalid",
        "lost.yaml": "model_error",
    }
    assert "control_token_in_text" in plan.steps[0].findings[0].message
    assert client.keys("pq:acme:*") == []


def test_a_label_follows_the_files(source: Source, registry: Registry) -> None:
    """Also back to an older content, whose version is there already."""
    source.write("notes")
    source.sync(label="staging")
    source.write("notes", rules=RULES + " Be brief.")
    source.sync(label="staging")
    assert _state(registry) == [("notes", 2, {"production": 1, "staging": 2})]
    source.write("notes")
    (step,) = source.plan(label="staging").steps
    assert (step.action, [str(move) for move in step.labels]) == ("unchanged", ["staging: 2 -> 1"])
    source.sync(label="staging")
    assert _state(registry) == [("notes", 2, {"production": 1, "staging": 1})]
    assert source.plan(label="staging").steps[0].labels == ()


def test_a_label_that_moved_meanwhile_is_a_conflict(source: Source, registry: Registry) -> None:
    """The plan was made for another state; nothing is overwritten."""
    source.write("notes")
    source.sync(label="staging")
    source.write("notes", rules=RULES + " Be brief.")
    plan = source.plan(label="staging")
    registry.remove_label("acme", "notes", "staging")
    with pytest.raises(Conflict):
        apply_plan(plan, registry)
    assert "staging" not in registry.labels("acme", "notes")


def test_retired_content_is_told_and_gets_no_label(source: Source, registry: Registry) -> None:
    """It takes no jobs: without a label a warning, with one a refusal."""
    source.write("notes")
    source.sync()
    source.write("notes", rules=RULES + " Be brief.")
    source.sync()
    registry.retire("acme", "notes", 2)
    (step,) = source.plan().steps
    assert (step.action, [f.code for f in step.findings]) == ("unchanged", ["retired"])
    (step,) = source.plan(label="staging").steps
    assert (step.action, [f.code for f in step.findings]) == ("refused", ["conflict"])
    assert "is retired" in step.findings[0].message


def test_a_label_that_a_rollout_is_about_stays(source: Source, registry: Registry) -> None:
    """Files publish during a rollout; where its label points only the rollout decides."""
    source.write("notes")
    source.sync()
    source.write("notes", rules=RULES + " Be brief.")
    source.sync()
    plan = Plan(label="production", stable=1, canary=2, steps=(10_000,), bake_s=60.0)
    Rollouts(registry).start("acme", "notes", plan)
    (step,) = source.plan(label="production").steps
    assert (step.action, [f.code for f in step.findings]) == ("refused", ["conflict"])
    assert "a rollout of acme/notes is about the label production" in step.findings[0].message
    assert not source.plan(label="staging").refused
    source.write("notes", rules=RULES + " Be kind.")
    assert source.sync() == [("new_version", 3)]


def test_the_journal_names_the_file(source: Source, registry: Registry) -> None:
    """Whoever looks for the reason of a move finds where it came from."""
    source.write("notes")
    source.sync(label="staging")
    entries = registry.journal("acme", "notes")
    assert [(entry.action, entry.why) for entry in entries] == [
        ("publish", "sync of notes.yaml"),
        ("label", "sync of notes.yaml"),
    ]


def test_a_bundle_brings_its_versions_and_labels(source: Source, registry: Registry) -> None:
    """In their order; `production` is where the bundle has it, or nowhere."""
    specs = [make_spec(rules=f"{RULES} Variant {n}.") for n in range(3)]
    path = source.folder / "notes.yaml"
    path.write_text(bundle_text(specs, {"canary": 0}), "utf-8")
    assert source.sync(label="staging") == [
        ("new_template", 1),
        ("new_version", 2),
        ("new_version", 3),
    ]
    assert _state(registry) == [("notes", 3, {"canary": 1})]
    path.write_text(bundle_text(specs, {"canary": 2, "production": 1}), "utf-8")
    moves = [str(move) for step in source.plan().steps for move in step.labels]
    assert moves == ["production: none -> 2", "canary: 1 -> 3"]
    assert {action for action, _ in source.sync()} == {"unchanged"}
    assert _state(registry) == [("notes", 3, {"canary": 3, "production": 2})]


def test_a_new_bundle_with_production_elsewhere(source: Source, registry: Registry) -> None:
    """Publishing the first version sets the label; the bundle's word counts in the end."""
    specs = [make_spec(rules=f"{RULES} Variant {n}.") for n in range(2)]
    text = bundle_text(specs, {"production": 1})
    (source.folder / "notes.yaml").write_text(text, "utf-8")
    source.sync()
    assert _state(registry) == [("notes", 2, {"production": 2})]


def test_what_is_published_twice_in_a_bundle_has_one_number(
    source: Source, registry: Registry
) -> None:
    """Equal content is one version, also inside one file."""
    specs = [make_spec(), make_spec(rules=RULES + " Be brief."), make_spec()]
    (source.folder / "notes.yaml").write_text(bundle_text(specs, {"production": 2}), "utf-8")
    assert [step.version for step in source.plan().steps] == [1, 2, 1]
    source.sync()
    assert _state(registry) == [("notes", 2, {"production": 1})]


def test_names_of_files_may_be_any(source: Source, registry: Registry) -> None:
    """Also what is no UTF-8, or longer than an entry of the journal may say."""
    source.write("notes").rename(source.folder / ("n" * 230 + "\udcff.yaml"))
    assert source.sync() == [("new_template", 1)]
    assert registry.journal("acme", "notes")[0].why.startswith("sync of nnn")


def test_a_lost_version_is_told(source: Source, registry: Registry, client: Client) -> None:
    """What is there cannot be known then; publishing its content again mends it."""
    source.write("notes")
    source.sync()
    for key in client.keys("pq:acme:template:notes:version:*"):
        client.delete(key)
    registry._lookup._kept.clear()
    (step,) = source.plan().steps
    assert step.action == "refused"
    assert "Publish the template again" in step.findings[0].remedy


def test_warnings_are_with_the_step(source: Source) -> None:
    """They refuse only where warnings are errors."""
    source.write("notes", samples=[])
    (step,) = source.plan().steps
    assert (step.action, [f.code for f in step.findings]) == ("new_template", ["no_samples"])
    source.preparer = Preparer(source.preparer._settings, strict=True)
    (step,) = source.plan().steps
    assert step.action == "refused"
    assert "no_samples" in step.findings[0].message
