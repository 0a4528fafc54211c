"""The recurrent models against the equations they are named for."""

import pytest
import torch
from torch import nn

from regard.attention.masks import Mask
from regard.attention.scores import SingleHeadAttention
from regard.attention.watch import watch
from regard.layers.recurrent import RecurrentLayers, RecurrentState
from regard.models.recurrent_translator import RecurrentTranslator
from regard.recipe import RecurrentModel


@pytest.mark.parametrize("cell, theirs", [("rnn", nn.RNNCell), ("lstm", nn.LSTMCell), ("gru", nn.GRUCell)])
def test_recurrent_layers_equal_torch_cells_step_by_step(cell, theirs):
    ours = RecurrentLayers(cell, 5, 8)
    single = theirs(5, 8)
    single.load_state_dict({name.removesuffix("_l0"): p for name, p in ours.layers[0].state_dict().items()})
    x = torch.randn(3, 6, 5)
    lengths = torch.tensor([6, 4, 1])
    (states,), last = ours.encode(x, lengths)
    h, c = torch.zeros(3, 8), torch.zeros(3, 8)
    for t in range(6):
        h, c = single(x[:, t], (h, c)) if cell == "lstm" else (single(x[:, t], h), c)
        for row in range(3):
            if t < lengths[row]:
                torch.testing.assert_close(states[row, t], h[row])
            if t == lengths[row] - 1:
                torch.testing.assert_close(last.hidden[row, 0], h[row])
    stepped, _ = ours(x, RecurrentState(torch.zeros(3, 1, 8), torch.zeros(3, 1, 8) if cell == "lstm" else None))
    torch.testing.assert_close(stepped[0], states[0])


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_layers_read_one_token_at_a_time_as_they_read_all(cell):
    layers, x = RecurrentLayers(cell, 5, 8, 2).double(), torch.randn(3, 6, 5).double()
    state = layers.zero_state(3, x)
    expected, last = layers(x, state)
    outputs = []
    for y in x.split(1, dim=1):
        output, state = layers(y, state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected)
    torch.testing.assert_close(state.hidden, last.hidden)
    torch.testing.assert_close(state.cell, last.cell)


def scores_by_hand(attention, kind, s, h):
    """The equations of the lectures, one pair of a state and an annotation at a time."""
    match kind:
        case "dot":
            return s @ h
        case "scaled":
            return s @ h / len(s) ** 0.5
        case "general":
            return s @ (attention.k_proj.weight @ h)
        case "additive":
            return attention.attend.score.v @ torch.tanh(attention.q_proj.weight @ s + attention.k_proj.weight @ h)
        case "cosine":
            return s @ h / (s.norm() * h.norm())


@pytest.mark.parametrize("kind", ["dot", "scaled", "general", "additive", "cosine"])
def test_each_score_function_equals_its_equation(kind):
    attention = SingleHeadAttention(kind, 6, 6, width=4).double()
    states, annotations = torch.randn(2, 3, 6).double(), torch.randn(2, 5, 6).double()
    keys, values = attention.project_kv(annotations)
    mask = Mask(lengths=torch.tensor([5, 3]))
    seen = attention(states, keys, values, mask=mask)
    for b, length in enumerate((5, 3)):
        for t in range(3):
            e = torch.stack([scores_by_hand(attention, kind, states[b, t], annotations[b, j]) for j in range(length)])
            torch.testing.assert_close(seen[b, t], e.softmax(0) @ annotations[b, :length])


@pytest.mark.parametrize("kind", ["dot", "scaled", "general", "additive", "cosine"])
def test_watched_weights_times_annotations_equal_the_context(kind):
    attention = SingleHeadAttention(kind, 6, 6, width=4)
    states, annotations = torch.randn(2, 3, 6), torch.randn(2, 5, 6)
    with watch(attention) as seen:
        mixed = attention(states, *attention.project_kv(annotations))
    torch.testing.assert_close(seen.stack()[0, :, 0] @ annotations, mixed)


def test_bahdanau_decoder_equals_the_papers_equations():
    """c_i from s_{i-1}; s_i = f(s_{i-1}, y_{i-1}, c_i); the output from y_{i-1}, s_i, c_i."""
    model = RecurrentTranslator(RecurrentModel(kind="recurrent", width=6, embedding_width=4), 11, 11).double().eval()
    source, lengths, target = torch.randint(4, 11, (1, 5)), torch.tensor([5]), torch.randint(4, 11, (1, 3))
    annotations, _ = model.encoder.layers[0](model.source_embedding(source))
    cell = nn.GRUCell(10, 6).double()
    cell.load_state_dict({name.removesuffix("_l0"): p for name, p in model.decoder.cells.layers[0].state_dict().items()})
    s = torch.tanh(model.bridge(annotations[:, 0, 3:]))  # the backward direction has read everything at the first word
    attention = model.decoder.cross_attention
    for i in range(3):
        y = model.target_embedding(target[:, i])
        e = torch.stack([scores_by_hand(attention, "additive", s[0], h) for h in annotations[0]])
        c = (e.softmax(0) @ annotations[0])[None]
        s = cell(torch.cat([y, c], -1), s)
        t = model.decoder.maxout(torch.cat([s, y, c], -1)).view(1, 4, 2).max(-1).values
        torch.testing.assert_close(model(source, lengths, target)[:, i], model.output(t))


def test_without_attention_the_decoder_sees_the_source_through_the_bridge_only():
    """Two sources with the same last encoder state give the same output; with attention they differ."""
    for attention, equal in (("none", True), ("dot", False)):
        settings = RecurrentModel(kind="recurrent", width=8, attention=attention, decoder="luong")
        model = RecurrentTranslator(settings, 11, 11).eval()
        model.bridge.weight.data.zero_()
        one, other = (model(torch.randint(4, 11, (1, 5)), torch.tensor([5]), torch.full((1, 3), 4)) for _ in range(2))
        assert torch.allclose(one, other) == equal
