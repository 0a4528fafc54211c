"""Figures as objects: `run.show`, `regard.show` and `seen.show` draw what the command does, and display in a notebook."""

import re
from html import unescape

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.show.recording import attention_maps
from regard.show.selection import VIEW_OPTIONS

transformers = pytest.importorskip("transformers")
TEXT = "the dog did not sleep because it was hungry"
NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *TEXT.split()]
BERT = dict(
    vocab_size=14, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=40, initializer_range=0.4
)
VIEWS = ("matrix", "heads", "head-matrices", "model", "token", "entropy", "neurons")


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.BertTokenizer(vocab={name: i for i, name in enumerate(NAMES)})


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return transformers.AutoModelForMaskedLM.from_config(transformers.BertConfig(**BERT)).eval()


def token(view):
    return 2 if view in ("token", "neurons") else None


def html(figure):
    return figure._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize("view", VIEWS)
def test_model_in_memory_and_recording_are_drawn_alike(model, tokenizer, view):
    inputs = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad(), regard.watch(model, queries=True) as seen:
        model(**inputs)
    chosen = {"layer": 2, "head": 3, "token": token(view)}
    chosen = {option: value for option, value in chosen.items() if option in VIEW_OPTIONS[view]}
    shown = regard.show(model, tokenizer, TEXT, view, **chosen)
    recorded = seen.show(view, tokens=inputs.tokens(), **chosen)
    assert shown.description == recorded.description and "self-attention" in shown.description
    assert shown._svg() == recorded._svg()


def test_recording_without_tokens_is_labelled_by_position(model, tokenizer):
    with torch.no_grad(), regard.watch(model) as seen:
        model(**tokenizer(["the dog", "it was"], return_tensors="pt"))
    (group,) = attention_maps(seen.to_record())
    assert list(group.keys) == ["1", "2", "3", "4"]
    first, second = (seen.show("matrix", row=row)._svg() for row in (0, 1))
    assert first != second


def test_any_module_can_be_shown():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    with torch.no_grad(), regard.watch(encoder) as seen:
        encoder(torch.randn(1, 5, 16))
    assert "2 layers of 2 heads, 5 × 5" in seen.show("heads", tokens=list("abcde")).description


@pytest.mark.parametrize("view", ["matrix", "heads", "model", "neurons", "beam", "steps"])
def test_run_draws_the_file_of_the_command(tiny_run, tmp_path, view):
    text = tiny_run.data.valid.source[0]
    words = ["show", str(tiny_run.folder), text, "--view", view, "--device", "cpu", "--out"]
    for ending in ("svg", "html"):
        result = CliRunner().invoke(app, [*words, str(tmp_path / f"a.{ending}")], catch_exceptions=False)
        figure = tiny_run.show(text, view)
        assert figure.description == result.stdout.strip()
        assert figure.save(tmp_path / f"b.{ending}").read_bytes() == (tmp_path / f"a.{ending}").read_bytes()


def test_run_without_a_view_shows_the_alignment_of_words(tiny_run):
    text = tiny_run.data.valid.source[0]
    alignment = tiny_run.align(text)
    assert tiny_run.show(text).description == " ".join(alignment.target)


@pytest.mark.parametrize("view", VIEWS)
def test_figure_displays_without_network_or_shared_names(model, tokenizer, view, tmp_path):
    """Several figures of one notebook share no element: each page is in a frame of its own, each image in an <img>."""
    figure = regard.show(model, tokenizer, TEXT, view, token=token(view))
    text = html(figure)
    (outer,) = re.findall(r"<[^>]*>", text.removesuffix("</iframe>"))  # one element, and nothing of the page outside of it
    assert outer.startswith("<img" if view == "entropy" else "<iframe") and " id=" not in outer.partition(" srcdoc=")[0]
    inside = unescape(text)
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", inside) and "import(" not in inside
    for ending in ("svg", "pdf", "png", "html"):
        assert figure.save(tmp_path / f"a.{ending}").stat().st_size > 1000
    with pytest.raises(regard.UserError, match=r"use \.svg, \.png, \.pdf or \.html"):
        figure.save(tmp_path / "a.gif")


def test_words_of_a_text_stay_text(model):
    names = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</iframe>", "&quot;"]
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.tensor([[4, 5, 6, 7]]))
    text = html(seen.show("heads", tokens=names))
    assert text.count("<") == text.count(">") == 2 and "<script>alert" not in unescape(text)


def test_show_leaves_the_model_as_it_was(model, tokenizer):
    model.train()
    model.bert.pooler = None
    model.bert.embeddings.eval()
    before = {name: (part.clone(), part.requires_grad) for name, part in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    first, second = (regard.show(model, tokenizer, TEXT, "model")._svg() for _ in range(2))
    assert first == second  # no dropout
    assert [module.training for module in model.modules()] == modes
    for name, part in model.named_parameters():
        assert torch.equal(part, before[name][0]) and part.requires_grad == before[name][1]
    model.eval()


def test_neurons_are_the_scores_of_the_model(model, tokenizer):
    from regard.show.neurons import neuron_view
    from regard.show.selection import ViewSelection

    inputs = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad(), regard.watch(model, queries=True) as seen:
        model(**inputs)
    view, at = neuron_view(seen, seen.to_record(inputs.tokens()), ViewSelection("neurons", layer=2, head=3, token="4"))
    weights = seen.stack()[1, 0, 2].numpy()
    assert view.queries[at].word == "did" and len(view.queries) == len(weights)
    for row, query in enumerate(view.queries):
        np.testing.assert_allclose(torch.from_numpy(query.scores).softmax(-1).numpy(), weights[row], atol=1e-6)
        np.testing.assert_allclose(query.sums, query.scores, atol=1e-5)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda model, tokenizer, seen: seen.show("nose"), "no such view; use one of matrix, heads"),
        (lambda model, tokenizer, seen: seen.show("steps"), r"use run.show\(text, view='steps'\)"),
        (lambda model, tokenizer, seen: seen.show("neurons"), "watch with queries=True"),
        (lambda model, tokenizer, seen: seen.show("heads", layer=9), "has layers 1, 2, 3"),
        (lambda model, tokenizer, seen: seen.show("heads", tokens=["a"] * 9), "9 in a row, and 4 at"),
        (lambda model, tokenizer, seen: regard.show(nn.Linear(2, 2), tokenizer, TEXT), r"draw it with seen.show\(tokens"),
        (lambda model, tokenizer, seen: regard.show(model, tokenizer, TEXT, "beam"), "it is for runs that translate"),
    ],
)
def test_what_cannot_be_shown_is_one_line(model, tokenizer, draw, message):
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.tensor([[4, 5, 6, 7]]))
    with pytest.raises(regard.UserError, match=message) as raised:
        draw(model, tokenizer, seen)
    assert "\n" not in str(raised.value)


def test_nothing_recorded_cannot_be_shown(model):
    with regard.watch(model) as seen:
        pass
    with pytest.raises(regard.UserError, match="nothing was recorded"):
        seen.show()


def test_bert_has_one_side_though_its_output_layer_is_called_decoder(model):
    """As every encoder of masked tokens, and unlike an encoder–decoder."""
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.tensor([[4, 5]]))
    assert {module.queries for module in seen.to_record(["a", "b"]).modules.values()} == {"text"}
