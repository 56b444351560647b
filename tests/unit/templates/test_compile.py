"""Templates compile to the very prompt of the model's chat template, or are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from contract.errors import TemplateRefused
from contract.model_folder import ModelFolder
from templates import compile as compiling
from templates.compile import compile_template
from templates.compiled import CompiledTemplate, Control, Piece
from templates.fill import fill, filled_text
from templates.placeholders import parse_content
from templates.probes import SEAMS
from templates.spec import TemplateSpec
from templates.tokenizer import TemplateTokenizer
from tests.support import chat_templates as chats, made_tokenizers as kinds
from tests.support.made_tokenizers import KINDS, made, make_model
from tests.support.specs import make_spec

TICKET = make_spec(
    ("system", "Sort the ticket."), ("user", "Ticket: {{ ticket }}\nLabel for {{ who }}:")
)
BARE = make_spec(("user", "{{ text }}"))
VALUES = (
    "",
    "x",
    " the user ",
    "\n\n",
    "\t a\n",
    "my printer",
    "é👍\u200f",
    "{{ 7*7 }}",
    "x" * 999,
)


def contents(spec: TemplateSpec, variables: dict[str, Any]) -> list[dict[str, str]]:
    """What a caller of apply_chat_template would write for these variables."""
    return [
        {
            "role": message.role,
            "content": "".join(
                part.text if hasattr(part, "text") else str(variables[part.name])
                for part in parse_content(message.content)
            ),
        }
        for message in spec.messages
    ]


def check_against_transformers(
    spec: TemplateSpec, chat: str, compiled: CompiledTemplate, kind: str
) -> None:
    """For all VALUES: same text and ids as apply_chat_template, and the prefix begins them."""
    model = make_model(chat)
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=KINDS[kind](),
        bos_token=model.bos_token,
        eos_token=model.eos_token,
        chat_template=chat,
    )
    for value in VALUES:
        variables = dict.fromkeys(spec.variables, value)
        messages = contents(spec, variables)
        filled = fill(compiled, variables, made(kind))
        assert filled_text(compiled, variables) == theirs.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        assert filled.plain
        assert list(filled.ids) == theirs.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        assert filled.ids[: len(compiled.prefix_ids)] == compiled.prefix_ids
        assert len(filled.ids) > len(compiled.prefix_ids)


def refusal(spec: TemplateSpec, chat: str, kind: str = "byte-level") -> str:
    with pytest.raises(TemplateRefused) as caught:
        compile_template(spec, make_model(chat), made(kind))
    assert caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize(
    ("chat", "spec"),
    [
        (chats.CHATML, TICKET),
        (chats.CHATML, BARE),
        (chats.NO_SYSTEM, make_spec(("user", "Sort this.\n\n{{ a }} or {{ b }}"))),
        (chats.NO_SYSTEM, BARE),
        (chats.FOLDING, TICKET),
        (chats.FOLDING, make_spec(("system", "Sort."), ("user", "{{ text }}"))),
        (chats.FOLDING, make_spec(("system", "{{ rules }}"), ("user", "{{ text }}"))),
        (chats.TRIMMING, TICKET),
        (chats.TRIMMING, BARE),
        (chats.TRIMMING, make_spec(("user", "{{ a }}{{ b }}"), ("assistant", " {{ a }}"))),
        (chats.NEWLINES, TICKET),
        (chats.NEWLINES, BARE),
    ],
)
@pytest.mark.parametrize("kind", ["byte-level", "metaspace first", "llama-2", "phi-3", "neox"])
def test_prompts_are_the_chat_templates(chat: str, spec: TemplateSpec, kind: str) -> None:
    """Text and ids equal apply_chat_template's for templates that fold the system text away
    (case P15), have no system role (P14), trim contents (P26), and for tokenizers that add or
    take white space at a piece's edge (P27)."""
    compiled = compile_template(spec, make_model(chat), made(kind))
    check_against_transformers(spec, chat, compiled, kind)


def test_no_system_role_is_refused_in_the_models_words() -> None:
    """A system message for a model without that role: its own words, and what to do (case P14)."""
    said = refusal(TICKET, chats.NO_SYSTEM)
    assert "System role not supported" in said
    assert "first user message" in said


def test_folded_system_text_is_in_the_prefix() -> None:
    """Where the system text opens the first user turn, the prefix still covers it (case P15)."""
    spec = make_spec(("system", "Sort the ticket."), ("user", "Ticket: {{ t }}"))
    compiled = compile_template(spec, make_model(chats.FOLDING), made("byte-level"))
    text = made("byte-level").decode(compiled.prefix_ids, skip_control=False)
    assert text == "<s>[INST] Sort the ticket.\n\nTicket:"


def test_a_date_in_the_prompt_is_refused() -> None:
    """A chat template that writes today's date would lose the prefix at midnight (case P16)."""
    said = refusal(make_spec(("user", "{{ t }}")), chats.DATED)
    assert "04 Mar 2021" in said
    assert "28 Nov 2032" in said
    fixed = chats.DATED.replace("strftime_now is defined", "false")
    compiled = compile_template(BARE, make_model(fixed), made("byte-level"))
    check_against_transformers(BARE, fixed, compiled, "byte-level")


def test_edited_earlier_turns() -> None:
    """A chat template that edits earlier answers by what comes later gives the prompt of the
    whole conversation, edits included (case P17)."""
    spec = make_spec(
        ("user", "How?"), ("assistant", "<why>since</why>\nSo."), ("user", "And {{ x }}?")
    )
    compiled = compile_template(spec, make_model(chats.EDITING), made("byte-level"))
    check_against_transformers(spec, chats.EDITING, compiled, "byte-level")
    assert "since" not in made("byte-level").decode(compiled.prefix_ids)


def test_a_variable_in_an_edited_turn_is_refused() -> None:
    """The same, with a variable whose text could be cut away (cases P17, P28)."""
    spec = make_spec(("user", "How?"), ("assistant", "{{ answer }}"), ("user", "And?"))
    assert "</why>" in refusal(spec, chats.EDITING)


@pytest.mark.parametrize(
    ("condition", "named"),
    [
        ("m.content.startswith('/fast')", "/fast"),
        ("m.content.endswith('/fast')", "/fast"),
        ("'</why>' in m.content", "</why>"),
        ("m.content == 'stop'", "stop"),
        ("m.content.startswith('<r>') and m.content.endswith('</r>')", "'<r>' to '</r>'"),
        ("'a</q>b' in m.content | replace('z', '')", "a</q>b"),
        ("m.content | length > 700", "701 characters"),
        ("not m.content", "''"),
        ("m.content | trim == ''", "''"),
        ("'\\n' in m.content", "white space"),
    ],
)
def test_templates_that_look_into_contents_are_refused(condition: str, named: str) -> None:
    """A chat template whose fixed text depends on a content is found, and what it looks for is
    named (case P28)."""
    chat = chats.BRANCHING.replace("m.content.startswith('/fast')", condition)
    assert named in refusal(BARE, chat)


def test_fixed_text_shields_from_branches() -> None:
    """The same chat template serves where the variable cannot reach the branch (case P28)."""
    spec = make_spec(("user", "Text: {{ text }}"))
    compiled = compile_template(spec, make_model(chats.BRANCHING), made("byte-level"))
    check_against_transformers(spec, chats.BRANCHING, compiled, "byte-level")


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("'nothing'", "leaves out"),
        ("m.content * 2", "repeats"),
        ("m.content | upper", "leaves out or changes"),
        ("m.content | title", "leaves out or changes"),
        ("m.content | capitalize", "leaves out or changes"),
        ("m.content | length", "leaves out or changes"),
        ("m.content[:3]", "leaves out or changes"),
        ("m.content | tojson", "message 1"),
        ("m.content.strip('\\n')", "message 1"),
        ("m.content | replace('\\n', ' ')", "message 1"),
        ("m.content | replace('<', '&lt;')", "certain contents"),
        ("m.content | e", "certain contents"),
        ("m.content.split('</s>')[-1]", "</s>"),
        ("m.content ~ range(99999) | random ~ range(99999) | random", "something random"),
        ("raise_exception('no ' + m.content) if 'x' in m.content else m.content", "no x"),
    ],
)
def test_templates_that_change_contents_are_refused(expression: str, reason: str) -> None:
    """A content that is dropped, doubled, cut or rewritten is refused, and the reason says so."""
    chat = "{% for m in messages %}<turn>{{ " + expression + " }}<end>{% endfor %}"
    assert reason in refusal(BARE, chat)


@pytest.mark.parametrize("clock", ["%H", "%M", "%S", "%d", "%m", "%Y", "%a", "%p", "%j", "%B"])
def test_every_field_of_the_clock_is_seen(clock: str) -> None:
    """Whatever part of the time is written, two renderings show it."""
    chat = "{{ strftime_now('" + clock + "') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    assert "writes the time" in refusal(BARE, chat)


def test_trimming_is_recorded_per_end() -> None:
    """Each end of a content is followed by itself: kept here, trimmed there (case P26)."""
    chat = "{% for m in messages %}<turn>{{ m.content.rstrip() }} <end>{% endfor %}"
    spec = make_spec(("user", "{{ a }}"), ("user", "{{ b }}!"))
    compiled = compile_template(spec, make_model(chat), made("byte-level"))
    check_against_transformers(spec, chat, compiled, "byte-level")
    assert [
        span.strip
        for segment in compiled.segments
        if isinstance(segment, Piece) and not segment.constant
        for span in segment.spans
        if span.strip
    ] == ["r", "r"]


def test_control_text_in_a_message_is_refused() -> None:
    """An author's control token is named, with its message."""
    spec = make_spec(("system", "<b> {x} [1]"), ("user", "{{ t }}<end> now"))
    said = refusal(spec, chats.CHATML)
    assert "message 2 spells a control token" in said
    assert "'<end>'" in said


def test_jinja_in_a_message_stays_text() -> None:
    """Fixed text that looks like Jinja is text in the prompt (case P25)."""
    spec = make_spec(("user", "\\{{ 7*7 }} {% raw %} {{ t }}"))
    compiled = compile_template(spec, make_model(chats.CHATML), made("byte-level"))
    assert "{{ 7*7 }} {% raw %} it" in filled_text(compiled, {"t": "it"})


@pytest.mark.model
@pytest.mark.parametrize(
    ("content", "end"),
    [
        ("Ticket: {{ t }}", "user\nTicket:"),
        ("Ticket:{{ t }}", "user\nTicket"),
        ("user_{{ t }}", "user\n"),
        ("See\n{{ t }}", "user\nSee"),
        ("{{ t }} is it", "user\n"),
    ],
)
def test_prefix_ends_at_a_clean_seam(
    smollm2: ModelFolder, real: TemplateTokenizer, content: str, end: str
) -> None:
    """A literal that ends in a space or mid-word before a variable: the prefix backs off to
    where no value changes a token, and no further than a word (case P18)."""
    compiled = compile_template(make_spec(("user", content)), smollm2, real)
    text = real.decode(compiled.prefix_ids, skip_control=False)
    assert text.endswith(end) or (end == "user\n" and text.endswith("user"))
    for value in VALUES:
        ids = fill(compiled, {"t": value}, real).ids
        assert ids[: len(compiled.prefix_ids)] == compiled.prefix_ids


@pytest.mark.parametrize("kind", KINDS)
def test_prefix_leaves_a_token(kind: str) -> None:
    """The prefix is never a whole request, with variables or without."""
    for spec in (make_spec(("user", "the user")), make_spec(("user", "the {{ t }}"))):
        try:
            compiled = compile_template(spec, make_model(chats.CHATML), made(kind))
        except TemplateRefused:
            assert kind in ("word level", "word piece", "merging", "unigram")
            continue
        for probe in SEAMS:
            ids = fill(compiled, {"t": probe.value}, made(kind)).ids
            assert ids[: len(compiled.prefix_ids)] == compiled.prefix_ids
            assert len(ids) > len(compiled.prefix_ids)


def test_constant_template() -> None:
    """Without variables all but the last id is prefix."""
    compiled = compile_template(
        make_spec(("user", "the user")), make_model(chats.CHATML), made("byte-level")
    )
    assert fill(compiled, {}, made("byte-level")).ids[:-1] == compiled.prefix_ids


def test_empty_prefix() -> None:
    """A prompt that begins with a variable has no prefix, and that is no error."""
    chat = "{% for m in messages %}{{ m.content }}<end>{% endfor %}"
    compiled = compile_template(BARE, make_model(chat), made("byte-level"))
    assert compiled.prefix_ids == ()


def test_control_tokens_are_segments() -> None:
    """The chat template's control tokens are kept as ids, in order."""
    compiled = compile_template(BARE, make_model(chats.FOLDING), made("byte-level"))
    controls = [s.text for s in compiled.segments if isinstance(s, Control)]
    assert controls == ["<s>", "[INST]", "[/INST]"]


def test_compiling_twice_gives_the_same() -> None:
    """Publishing the same content again must give an equal compiled template."""
    one, two = (
        compile_template(TICKET, make_model(chats.CHATML), made("byte-level")) for _ in range(2)
    )
    assert one == two
    assert CompiledTemplate.from_plain(json.loads(json.dumps(one.to_plain()))) == one


def test_samples_are_tried() -> None:
    """A sample that lacks a variable is named; one that is odd but whole is fine."""
    fine = [{"t": "<turn> x"}, {"t": 3.5}, {"t": ["a", None]}]
    compile_template(
        make_spec(("user", "{{ t }}"), samples=fine), make_model(chats.CHATML), made("byte-level")
    )
    said = refusal(make_spec(("user", "{{ t }}"), samples=[*fine, {"u": 1}]), chats.CHATML)
    assert "sample 4" in said
    assert "variable t is missing" in said


def test_tokenizer_whose_tokens_are_normalized_is_refused() -> None:
    """Control tokens that the tokenizer finds only after it added a dummy space would read
    differently in a piece: refused, with the remedy (case P27)."""
    tokens = [kinds.control(text, normalized=True) for text in kinds.CONTROL]
    tokenizer = TemplateTokenizer(json.loads(kinds.llama2(tokens=tokens).to_str()))
    with pytest.raises(TemplateRefused, match="'normalized': false"):
        compile_template(TICKET, make_model(chats.CHATML), tokenizer)


def test_chat_template_is_needed(smollm2: ModelFolder, real: TemplateTokenizer) -> None:
    """A base model without a chat template is refused as such."""
    with pytest.raises(TemplateRefused, match="no chat template"):
        compile_template(BARE, replace(smollm2, chat_template=""), real)


@pytest.mark.parametrize("spoil", ["strip", "literal"])
def test_the_text_check_catches_a_wrong_skeleton(
    monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    """Were the skeleton found wrongly, comparing with the chat template would show it."""
    find = compiling.find_skeleton

    def wrong(chat: Any) -> Any:
        first, *rest = find(chat)
        if spoil == "literal":
            return (first, replace(first), *rest)
        return (first, *(replace(span, strip="") for span in rest))

    monkeypatch.setattr(compiling, "find_skeleton", wrong)
    assert "certain contents" in refusal(BARE, chats.TRIMMING)


def test_the_id_check_catches_a_wrong_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were pieces encoded as texts of their own, comparing ids would show it (case P27)."""
    tokenizer = TemplateTokenizer(json.loads(kinds.metaspace("first").to_str()))

    def piecewise(segments: Any) -> tuple[int, ...]:
        return tuple(
            id_
            for part in segments
            for id_ in ([part.id] if isinstance(part, Control) else tokenizer.encode_trusted(part))
        )

    monkeypatch.setattr(tokenizer, "encode_segments", piecewise)
    with pytest.raises(TemplateRefused, match="reads the whole prompt and its pieces"):
        compile_template(TICKET, make_model(chats.CHATML), tokenizer)
