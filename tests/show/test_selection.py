"""Which token and which head a name means."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from regard.attention.modules import layer_names
from regard.cli import app
from regard.errors import UserError
from regard.explain.head_report import HeadReport, HeadRole
from regard.recipe import TokenSettings
from regard.show.recording import attention_maps, model_inputs
from regard.show.selection import VIEW_OPTIONS, ViewSelection, parse_head_name, select
from regard.show.token_choice import choose_token, readable_tokens, whole_words
from regard.tokens.tokenizer import train_tokenizer

WORDS = ["the", "rabb", "·it", "saw", "it", "and", "it", "5", "ran"]


@pytest.mark.parametrize(
    "token, index, note",
    [
        ("it", 4, "2 of 9 tokens are 'it'; this is the first, token 5 (for the next: --token it:2, or by number, --token 7)"),
        ("it:2", 6, ""),
        ("·it", 2, ""),
        ("rabbit", 1, "a word of several tokens; this is the first, 'rabb', token 2"),
        ("The", 0, ""),
        ("2", 1, ""),
        (2, 1, ""),
        ("5", 7, "this is the word '5', token 8; token 5 is 'it'"),
        (5, 4, ""),
    ],
)
def test_token_is_a_word_one_of_several_or_a_number(token, index, note):
    found = choose_token(WORDS, token)
    assert found.place == index and found.note.endswith(note) and bool(found.note) == bool(note)


@pytest.mark.parametrize("token, message", [("it:3", "use it:1 to it:2"), ("dog", "not among the rabb"), ("0", "from 1 to 9")])
def test_token_that_is_not_there_is_a_user_error(token, message):
    with pytest.raises(UserError, match=message):
        choose_token(WORDS, token)


@given(st.lists(st.sampled_from(["a", "·b", "·", "it"]), min_size=1))
def test_whole_words_hold_every_token_once(words):
    whole = [word for word in whole_words(words) if word is not None]
    assert "".join(whole) == words[0] + "".join(w.removeprefix("·") if len(w) > 1 else w for w in words[1:])


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "bytes"])
def test_labels_mark_the_continuations_of_words(kind):
    """Joined at the marks, the labels are the words of the text; a lone space is no dash."""
    texts = ["the rabbit saw the habit", "a rabbi ran, 漢字 rabbits"] * 5
    tokenizer = train_tokenizer(TokenSettings(kind=kind, size=300 if kind == "bytes" else 60), texts)
    text = "the batter saw the hat"
    (ids,) = tokenizer.encode([text])
    labels = tokenizer.labels(ids)
    assert [word for word in whole_words(labels) if word not in (None, "␣")] == text.split()
    assert any(label.startswith("·") for label in labels) and not {"▁", "Ġ"} & set(labels)
    assert tokenizer.labels(ids[1:], ids[0]) == labels[1:]


def test_labels_of_single_characters_have_no_marks():
    tokenizer = train_tokenizer(TokenSettings(kind="characters", size=60), ["it is"])
    assert tokenizer.labels(tokenizer.encode(["it is"])[0]) == ["i", "t", "␣", "i", "s"]


@pytest.mark.parametrize(
    "tokens", [["[CLS]", "rabb", "##it", ",", "it"], ["<s>", "▁rabb", "it", ",", "▁it"], ["<s>", "Ġrabb", "it", ",", "Ġit"]]
)
def test_tokens_of_other_libraries_are_shown_as_words(tokens):
    assert readable_tokens(tokens)[1:] == ["rabb", "·it", ",", "it"] == readable_tokens(readable_tokens(tokens))[1:]


@pytest.mark.parametrize(
    "name, parts",
    [
        ("3", (None, None, 3)),
        ("2.3", (None, 2, 3)),
        ("cross 2.3", ("cross", 2, 3)),
        ("self-attention of the encoder, layer 2, head 3", ("self-attention of the encoder", 2, 3)),
    ],
)
def test_head_name_is_read_in_parts(name, parts):
    assert tuple(parse_head_name(name)) == parts
    with pytest.raises(UserError, match="use 3"):
        parse_head_name(name + "x")


def test_head_that_explain_names_is_the_one_that_show_draws(tiny_run):
    """Every name of a report, given as --head, selects the weights of that module and head."""
    inputs = model_inputs(tiny_run, tiny_run.data.valid.source[0])
    _, seen = inputs.watch()
    roles = [HeadRole(module, head, {}) for module in seen.names() for head in range(2)]
    groups = attention_maps(inputs.to_record(seen))
    for (module, head), name in HeadReport(roles, {}, {}, {}, 1, {}).names().items():
        _, selected = select(groups, ViewSelection.of(head=name))
        np.testing.assert_allclose(selected.matrix()[0], seen[module][0, head].numpy(), rtol=1e-6)
        assert selected.matrix()[2] == name


def test_layers_are_named_by_stack_from_1():
    encoder, decoder = "bert.encoder.layer.0.attention.self", "model.decoder.layers.1.self_attn"
    assert layer_names([encoder]) == {encoder: "self-attention, layer 1"}
    assert layer_names([decoder]) == {decoder: "self-attention, layer 2"}
    both = layer_names(["encoder.layers.0.self_attn", decoder, "decoder.layers.0.encoder_attn"])
    assert [*both.values()] == [
        "self-attention of the encoder, layer 1",
        "self-attention of the decoder, layer 2",
        "cross-attention, layer 1",
    ]


@pytest.mark.parametrize("view", VIEW_OPTIONS)
def test_options_that_a_view_does_not_use_are_refused(view):
    given = {"kind": "cross", "layer": 1, "head": 1, "token": "it"}
    needed = {"token": "it"} if view == "token" else {}
    for option, value in given.items():
        chosen = {**needed, **({"layer": 1} if option == "head" and "layer" in VIEW_OPTIONS[view] else {}), option: value}
        if option in VIEW_OPTIONS[view]:
            assert getattr(ViewSelection.of(view, **chosen), option) == value
        else:
            with pytest.raises(UserError, match=f"it does not apply to --view {view}"):
                ViewSelection.of(view, **chosen)


def test_heads_draws_every_head_or_is_refused(tiny_run, tmp_path):
    def show(*options):
        words = ["show", str(tiny_run.folder), "The dog sleeps .", *options, "--heads", "--device", "cpu"]
        return CliRunner().invoke(app, words, catch_exceptions=False).output

    for options in ([], ["--view", "matrix"], ["--view", "heads"], ["--kind", "encoder"]):
        assert all(f"head {head}" in show(*options, "--terminal") for head in (1, 2))
    assert "layer 2, head 2" in show("--view", "token", "--token", "dog", "--kind", "encoder", "--terminal")
    for view in ("neurons", "steps", "beam"):
        with pytest.raises(UserError, match="--heads: "):
            show("--view", view, "--terminal")
    with pytest.raises(UserError, match="leave out one of them"):
        show("--head", "1.1", "--terminal")
