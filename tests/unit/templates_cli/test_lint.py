"""Lint: what is wrong with a template, and what makes its prefix worth little."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.errors import TemplateRefused
from contract.model_folder import ModelFolder
from contract.settings import Settings
from templates.compile import compile_template
from templates.examples import example_paths
from templates.finding import Finding
from templates.lint import lint_prompt, lint_spec
from templates.lint_prefix import Compiled, variables_last
from templates.lint_texts import lint_control_tokens
from templates.prepare import Preparer
from templates.spec import load_spec, parse_spec
from templates.tokenizer import TemplateTokenizer
from tests.support import chat_templates as chats
from tests.support.made_tokenizers import made, make_model

LONG = "Read the note with care. Names, numbers and dates are repeated as they are written. " * 4
SAMPLES = [{"input": {"note": "The parcel came on Monday."}}, {"input": {"note": "Nobody called."}}]


def _data(**changed: Any) -> dict[str, Any]:
    return {
        "tenant": "acme",
        "name": "notes",
        "model": "smollm2-135m-instruct",
        "messages": [
            {"role": "system", "content": LONG},
            {"role": "user", "content": "{{ note }}"},
        ],
        "input": {
            "schema": {
                "type": "object",
                "properties": {"note": {"type": "string"}},
                "required": ["note"],
            }
        },
        "samples": SAMPLES,
        **changed,
    }


def _schema(**properties: Any) -> dict[str, Any]:
    return {"schema": {"type": "object", "properties": properties, "required": list(properties)}}


def _of_spec(**changed: Any) -> list[Finding]:
    return list(lint_spec(parse_spec(_data(**changed))))


@pytest.fixture(scope="module")
def tokenizer(smollm2: ModelFolder) -> TemplateTokenizer:
    return TemplateTokenizer.load(smollm2.path)


def _in_tokens(
    model: ModelFolder, tokenizer: TemplateTokenizer, **changed: Any
) -> dict[str, Finding]:
    spec = parse_spec(_data(**changed))
    compiled = compile_template(spec, model, tokenizer)
    it = Compiled(spec=spec, compiled=compiled, model=model, tokenizer=tokenizer)
    return {finding.code: finding for finding in lint_prompt(it)}


def test_sound_template_has_no_findings(smollm2: ModelFolder, tokenizer: TemplateTokenizer) -> None:
    """Fixed text first, the variable last, samples that fit."""
    assert _of_spec() == []
    assert _in_tokens(smollm2, tokenizer) == {}


@pytest.mark.parametrize(
    ("changed", "level", "code", "part"),
    [
        ({"input": _schema(note={}, mood={})}, "warning", "unused_variable", "mood"),
        ({"samples": []}, "warning", "no_samples", "no samples"),
        (
            {"messages": [{"role": "user", "content": "Hello"}], "input": _schema()},
            "warning",
            "no_variables",
            "no message holds a variable",
        ),
        ({"samples": [{"input": {"note": 3}}]}, "error", "sample_invalid", "sample 1"),
        ({"samples": [*SAMPLES, {"input": {}}]}, "error", "sample_invalid", "sample 3"),
        (
            {
                "output": {"choices": ["yes", "no"]},
                "samples": [{"input": {"note": "x"}, "expected": "maybe"}],
            },
            "error",
            "expected_impossible",
            "'maybe'",
        ),
        (
            {"input": _schema(note={"$ref": "#/$defs/nowhere"})},
            "error",
            "schema_unusable",
            "nowhere",
        ),
    ],
)
def test_file_alone_shows_it(changed: dict[str, Any], level: str, code: str, part: str) -> None:
    """Each with its level, the place and a remedy."""
    found = {finding.code: finding for finding in _of_spec(**changed)}
    assert found[code].level == level
    assert part in found[code].message
    assert found[code].remedy


def test_short_prefix_is_remarked(smollm2: ModelFolder, tokenizer: TemplateTokenizer) -> None:
    """Few fixed tokens, or a small share of the prompt, are not worth a cache."""
    few = _in_tokens(
        smollm2, tokenizer, messages=[{"role": "user", "content": "{{ note }}"}], samples=[]
    )
    # SmolLM2's chat template adds a system message of its own; the prefix is that.
    assert "short_prefix" not in few
    short = [{"role": "system", "content": "Hi."}, {"role": "user", "content": "{{ note }}"}]
    few = _in_tokens(smollm2, tokenizer, messages=short, samples=[])
    assert "tokens are the same for every job" in few["short_prefix"].message
    share = _in_tokens(smollm2, tokenizer, samples=[{"input": {"note": "many words " * 200}}])
    assert "% of a sample's prompt" in share["short_prefix"].message
    assert share["short_prefix"].level == "warning"


LATE = [
    {"role": "system", "content": "Sort notes. Here is the note: {{ note }}\n\n" + LONG},
    {"role": "user", "content": "Go."},
]


def test_text_behind_the_variable_is_counted(
    smollm2: ModelFolder, tokenizer: TemplateTokenizer
) -> None:
    """By compiling the same texts with the variable at the end, which the remedy names."""
    found = _in_tokens(smollm2, tokenizer, messages=LATE)["variable_before_text"]
    saved = int(found.message.split()[0])
    assert (found.level, found.in_message) == ("warning", 1)
    assert LATE[0]["content"][found.at :].startswith("{{ note }}")
    assert "{{ note }}" in found.message
    assert "to the end of message 2" in found.remedy
    after = [LATE[0] | {"content": LATE[0]["content"].replace("{{ note }}", "")}, LATE[1]]
    after[1] = after[1] | {"content": "Go.\n\n{{ note }}"}
    lengths = [
        len(compile_template(parse_spec(_data(messages=messages)), smollm2, tokenizer).prefix_ids)
        for messages in (LATE, after)
    ]
    assert saved == lengths[1] - lengths[0]
    assert saved > 60


def test_a_variable_that_changes_by_name_is_called_so(
    smollm2: ModelFolder, tokenizer: TemplateTokenizer
) -> None:
    """A clock at the head of the prompt ends the prefix there, for every job."""
    messages = [
        {"role": "system", "content": "It is {{ now }}.\n" + LONG},
        {"role": "user", "content": "{{ note }}"},
    ]
    both = {"input": _schema(note={}, now={}), "samples": []}
    found = _in_tokens(smollm2, tokenizer, messages=messages, **both)["variable_before_text"]
    assert "{{ now }}, which by its name changes with every job," in found.message
    last = [
        {"role": "system", "content": LONG},
        {"role": "user", "content": "{{ note }} {{ now }}"},
    ]
    assert _in_tokens(smollm2, tokenizer, messages=last, **both) == {}


def test_what_cannot_be_reordered_is_estimated(
    smollm2: ModelFolder, tokenizer: TemplateTokenizer
) -> None:
    """Without a user message there is no place for the variable; the count says that it is one."""
    messages = [{"role": "system", "content": "{{ note }}\n\n" + LONG}]
    found = _in_tokens(smollm2, tokenizer, messages=messages)["variable_before_text"]
    assert found.message.startswith("about ")
    assert "to the end of" not in found.remedy


def test_a_reorder_keeps_texts_and_braces() -> None:
    """Messages that held nothing but variables are gone, and kept braces stay kept."""
    messages = [
        {"role": "system", "content": r"A \{{ b }} {{ one }} c"},
        {"role": "user", "content": "{{ two }}"},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": "e {{ one }}\n"},
    ]
    data = _data(messages=messages, input=_schema(one={}, two={}), samples=[])
    moved = variables_last(parse_spec(data))
    assert moved is not None
    assert [(m.role, m.content) for m in moved.messages] == [
        ("system", r"A \{{ b }}  c"),
        ("assistant", "d"),
        ("user", "e\n\n{{ one }}\n{{ two }}\n{{ one }}"),
    ]


@pytest.mark.parametrize(
    ("content", "lost"), [("the code is cab{{ note }}", 2), ("the code is cab {{ note }}", 0)]
)
def test_a_seam_that_merges_is_counted(content: str, lost: int) -> None:
    """The tokens before the variable that its value may still change."""
    model, tokenizer = make_model(chats.CHATML), made("gluing")
    found = _in_tokens(model, tokenizer, messages=[{"role": "user", "content": content}])
    if not lost:
        assert "seam_merges" not in found
        return
    finding = found["seam_merges"]
    assert f"the last {lost} tokens of the fixed text before {{{{ note }}}}" in finding.message
    assert (finding.level, finding.in_message, finding.at) == ("warning", 1, content.index("{{"))


def test_one_token_at_a_seam_is_not_worth_a_word(
    smollm2: ModelFolder, tokenizer: TemplateTokenizer
) -> None:
    """A blank, a line break or a quote merges with nearly any value: all templates lose one."""
    for content in ("Note: {{ note }}", "Note:\n{{ note }}", '"{{ note }}"', "id={{ note }}"):
        messages = [{"role": "system", "content": LONG}, {"role": "user", "content": content}]
        assert _in_tokens(smollm2, tokenizer, messages=messages) == {}


def test_choices_bound_the_answer(smollm2: ModelFolder, tokenizer: TemplateTokenizer) -> None:
    """`max_new_tokens` does not count where the answer is one of them."""
    changed = {"output": {"choices": ["yes", "no"]}, "generation": {"max_new_tokens": 32_000}}
    assert _in_tokens(smollm2, tokenizer, **changed) == {}


def test_strict_without_a_prefix_is_an_error() -> None:
    """Each job would fail: there is nothing to verify."""
    bare = make_model("{% for m in messages %}{{ m.content }}{% endfor %}")
    messages = [{"role": "user", "content": "{{ note }} is the note"}]
    found = _in_tokens(bare, made("byte-level"), messages=messages, strict=True)
    assert found["strict_without_prefix"].level == "error"
    assert "strict_without_prefix" not in _in_tokens(bare, made("byte-level"), messages=messages)


TODAY = date(2026, 5, 3)


@pytest.mark.parametrize(
    ("text", "code", "shown"),
    [
        ("Today is Sunday, 3 May 2026.", "clock_in_text", "3 May 2026"),
        ("Today's date: 2024-01-31", "clock_in_text", "2024-01-31"),
        ("The current time is 14:05.", "clock_in_text", "14:05"),
        ("It is now 14:05 in Berlin.", "clock_in_text", "14:05"),
        ("Prices of 2026-05-03 hold.", "clock_in_text", "2026-05-03"),
        ("Prices of 2 May 2026 hold.", "clock_in_text", "2 May 2026"),
        ("Prices of May 4, 2026 hold.", "clock_in_text", "May 4, 2026"),
        ("Stand: 03.05.2026", "clock_in_text", "03.05.2026"),
        ("Request id: 123e4567-e89b-42d3-a456-426614174000", "random_in_text", "123e4567"),
        ("session 1714729812", "random_in_text", "1714729812"),
        ("nonce=k3jf93kd", "random_in_text", "k3jf93kd"),
        ("Now: {{ now() }}", "not_substituted", "{{ now() }}"),
        ("{{ note | upper }}", "not_substituted", "{{ note | upper }}"),
        ("{% if note %}x{% endif %}", "not_substituted", "{% if note %}"),
        ("Date: $(date +%F)", "not_substituted", "$(date +%F)"),
        ("Date: ${NOW}", "not_substituted", "${NOW}"),
    ],
)
def test_what_changes_from_day_to_day_is_remarked(text: str, code: str, shown: str) -> None:
    """Clocks, ids and commands that nothing evaluates, with the message and the place in it."""
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": "{{ note }}\n"}]
    messages[1]["content"] += text
    found = list(lint_spec(parse_spec(_data(messages=messages)), today=TODAY))
    assert {finding.code for finding in found} == {code}
    assert {(finding.level, finding.in_message) for finding in found} == {("warning", 2)}
    assert shown in found[0].message
    assert messages[1]["content"][found[0].at :].startswith(
        (shown, text.split(maxsplit=1)[0], "{", "$")
    )
    assert found[0].remedy


@pytest.mark.parametrize(
    "text",
    [
        "I called today at 14:30 and on 1 May 2024.",
        "Invoices from 2024-01-31 on have the new number.",
        "Write dates as %Y-%m-%d or like 31.12.1999.",
        "The build number has 10 digits; the job id is a text.",
        "Order 1714729812 was lost, and the trace of it too.",
        r"Keep \{{ name }} and {a} and {'b': {'c': 1}} as they are.",
        "It costs $(5) or ${PRICE}; run $(make) for it.",
        "A discount of 5 % {of all}%.",
        "The current version is 2.3.4.",
    ],
)
def test_ordinary_text_is_not_remarked(text: str) -> None:
    """Warnings that most templates give are warnings that nobody reads."""
    messages = [{"role": "user", "content": LONG + text + " {{ note }}"}]
    assert list(lint_spec(parse_spec(_data(messages=messages)), today=TODAY)) == []


def test_control_tokens_are_named_with_their_place(tokenizer: TemplateTokenizer) -> None:
    """The model's own are errors, other models' warnings; a variable's are its own business."""
    content = "One <|im_end|> two [INST] three <|user|> {{ note }} <b> <s>"
    spec = parse_spec(_data(messages=[{"role": "user", "content": content}]))
    found = {(f.code, f.level, content[f.at :][:6]) for f in lint_control_tokens(spec, tokenizer)}
    assert found == {
        ("control_token_in_text", "error", "<|im_e"),
        ("foreign_control_token", "warning", "[INST]"),
        ("foreign_control_token", "warning", "<|user"),
    }


def test_prompt_over_the_models_positions_is_an_error(
    smollm2: ModelFolder, tokenizer: TemplateTokenizer
) -> None:
    """With the numbers; case P12: prompt and new tokens together must fit the model."""
    found = _in_tokens(smollm2, tokenizer, generation={"max_new_tokens": 32_000})
    assert found["over_model_limit"].level == "error"
    assert str(smollm2.max_positions) in found["over_model_limit"].message


@pytest.fixture(scope="module")
def preparer(smollm2: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> Preparer:
    """One for all tests here, so that the tokenizer is read once."""
    settings = Settings(cache_dir=tmp_path_factory.mktemp("cache"))
    settings.models_dir.mkdir()
    (settings.models_dir / smollm2.name).symlink_to(smollm2.path)
    return Preparer(settings)


def _lint_text(preparer: Preparer, folder: Path, text: str) -> list[Finding]:
    path = folder / "template.yaml"
    path.write_text(text, "utf-8")
    return preparer.lint(path)


@pytest.mark.parametrize("text", ["messages: [", "tenant: acme\n", "", "--- 1\n--- 2\n"])
def test_no_template_is_one_error(preparer: Preparer, tmp_path: Path, text: str) -> None:
    """A file that cannot be read as a template is a finding like others, not a crash."""
    (found,) = _lint_text(preparer, tmp_path, text)
    assert (found.level, found.code) == ("error", "spec_invalid")


def test_refusal_of_the_compiler_is_an_error(preparer: Preparer, tmp_path: Path) -> None:
    """Here a chat template that writes the date; the finding says by what, and in which line."""
    model = preparer._settings.models_dir / "smollm2-135m-instruct"
    folder = preparer._settings.models_dir / "clock"
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    chat = folder / "chat_template.jinja"
    dated = "{#- the date -#}\n{{ strftime_now('%d %b %Y') }}\n" + chat.read_text("utf-8")
    chat.unlink()
    chat.write_text(dated, "utf-8")
    (found,) = _lint_text(preparer, tmp_path, yaml.safe_dump(_data(model="clock")))
    assert (found.level, found.code) == ("error", "clock_in_chat_template")
    assert "strftime_now (line 2)" in found.message
    assert "fixed date" in found.remedy


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "format": "date", "pattern": "^x"},
        {
            "type": "object",
            "properties": {
                f"p{n}": {"type": ["string", "integer", "number", "boolean", "null"]}
                for n in range(500)
            },
        },
    ],
    ids=["two that exclude each other", "a large one"],
)
def test_a_schema_that_no_grammar_can_be_made_of_is_an_error(
    preparer: Preparer, tmp_path: Path, schema: dict[str, Any]
) -> None:
    """What workers would refuse job by job, for the same reason and by the same code."""
    data = _data(output={"schema": schema}, generation={"max_new_tokens": 4000})
    found = {f.code: f for f in _lint_text(preparer, tmp_path, yaml.safe_dump(data))}
    assert found["grammar_refused"].level == "error"
    with pytest.raises(TemplateRefused, match="grammar"):
        preparer.prepare(parse_spec(data))


def test_a_tokenizer_that_cannot_spell_json_is_an_error(
    preparer: Preparer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a schema, and only then."""
    monkeypatch.setattr(preparer, "_grammar_tokenizers", {})
    monkeypatch.setattr(TemplateTokenizer, "to_json", lambda _: made("word level").to_json())
    data = _data(output={"schema": {"type": "boolean"}})
    found = _lint_text(preparer, tmp_path, yaml.safe_dump(data))
    assert [(f.level, f.code) for f in found] == [("error", "grammar_refused")]
    assert _lint_text(preparer, tmp_path, yaml.safe_dump(_data())) == []


def test_findings_name_the_line(preparer: Preparer, tmp_path: Path) -> None:
    """In a block, the very line; elsewhere where the message begins."""
    text = yaml.safe_dump(_data(messages=[]))
    block = "messages:\n- role: system\n  content: |\n    One\n\n    Two <|im_end|> three\n"
    plain = "- role: user\n  content: 'x {{ note }}\n\n    and {{ now() }}'\n"
    text = block + plain + text.replace("messages: []\n", "")
    found = _lint_text(preparer, tmp_path, text)
    assert [(f.code, f.in_message, f.line) for f in found] == [
        ("not_substituted", 2, 8),
        ("control_token_in_text", 1, 6),
    ]
    assert found[1].to_dict() == {
        "level": "error",
        "code": "control_token_in_text",
        "message": "message 1 spells a control token of the model, '<|im_end|>'",
        "remedy": found[1].remedy,
        "in_message": 1,
        "line": 6,
    }


def test_strict_takes_warnings_for_errors(preparer: Preparer) -> None:
    """The first is the reason; without it they come with what was prepared."""
    spec = parse_spec(_data(samples=[]))
    assert [finding.code for finding in preparer.prepare(spec).warnings] == ["no_samples"]
    with pytest.raises(TemplateRefused, match="no_samples"):
        Preparer(preparer._settings, strict=True).prepare(spec)


def test_lint_errors_keep_a_template_from_being_published(preparer: Preparer) -> None:
    """The first one is the reason given."""
    spec = parse_spec(_data(samples=[{"input": {"note": 3}}]))
    with pytest.raises(TemplateRefused, match=r"sample 1 does not fit.*\$\.note"):
        preparer.prepare(spec)


def test_missing_model_only_limits_lint(tmp_path: Path) -> None:
    """The file can still be checked; what was skipped is said."""
    found = _lint_text(
        Preparer(Settings(cache_dir=tmp_path)), tmp_path, yaml.safe_dump(_data(samples=[]))
    )
    assert [(f.level, f.code) for f in found] == [
        ("warning", "no_samples"),
        ("warning", "model_missing"),
    ]


@pytest.mark.parametrize("path", example_paths(), ids=lambda path: path.name)
def test_examples_are_clean(preparer: Preparer, path: Path) -> None:
    """What readers copy has no findings at all."""
    assert preparer.lint(path) == []


def test_triage_example_has_a_long_prefix(preparer: Preparer) -> None:
    """Measurements are made with it: policy and worked examples of more than 600 tokens."""
    (path,) = [path for path in example_paths() if path.name == "support-triage.yaml"]
    assert 600 <= len(preparer.prepare(load_spec(path)).compiled.prefix_ids) <= 720
