"""The recurrent models against the equations they are named for."""

import pytest
import torch
from torch import nn

from regard.attention.masks import Mask
from regard.attention.scores import SingleHeadAttention
from regard.attention.watch import watch
from regard.batches.batch import IGNORE_INDEX, Batch
from regard.layers import recurrent
from regard.layers.recurrent import RecurrentLayers, RecurrentState, VariationalDropout
from regard.models.recurrent_language import RecurrentLanguageModel
from regard.models.recurrent_translator import RecurrentTranslator
from regard.recipe import LanguageRegularization, RecurrentDecoderModel, RecurrentModel


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


@pytest.mark.parametrize("cell", ["rnn", "gru"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("lengths", [(6, 4, 1), (2, 2, 2), (3, 0, 5)], ids=str)
def test_padded_sequences_are_encoded_as_packed_ones(cell, bidirectional, lengths):
    """States, last states and gradients; what lies beyond the end of a row changes none of them."""
    layers = RecurrentLayers(cell, 5, 8, 2, bidirectional=bidirectional).double()
    lengths, found = torch.tensor(lengths), []
    for encode, beyond in ((layers.encode, 0.0), (lambda *given: layers._encode_padded(given[0], given[1].clamp(min=1)), 7.0)):
        torch.manual_seed(1)
        x = torch.randn(3, 6, 5).double()
        x[torch.arange(6) >= lengths.clamp(min=1)[:, None]] = beyond
        x.requires_grad_()
        states, last = encode(x, lengths)
        layers.zero_grad()
        (sum((i + 2) * part.square().sum() for i, part in enumerate(states)) + last.hidden.exp().sum()).backward()
        found.append((states, last.hidden, x.grad, [p.grad for p in layers.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


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


AWD_LSTM = LanguageRegularization(
    variational_dropout=True,
    dropout=0.25,
    embedding_dropout=0.4,
    output_dropout=0.4,
    word_dropout=0.1,
    weight_dropout=0.5,
    activation_penalty=2.0,
    temporal_penalty=1.0,
)


def awd_lstm(regularize=AWD_LSTM, **settings):
    settings = {"layers": 3, "width": 8, "embedding_width": 6, "tie": True, **settings}
    return RecurrentLanguageModel(RecurrentDecoderModel(**settings), 13, regularize)


def language_batch(B=3, T=7):
    tokens = torch.randint(4, 13, (B, T + 1))
    labels = tokens[:, 1:].clone()
    labels[0, 4:] = IGNORE_INDEX
    return Batch({"target": tokens[:, :-1]}, labels, torch.arange(B).numpy())


def test_variational_dropout_has_one_mask_for_all_time_steps_and_another_for_each_sequence():
    dropout, x = VariationalDropout(0.4), torch.ones(50, 9, 200)
    factors = dropout(x)
    assert torch.equal(factors, factors[:, :1].expand_as(factors))
    assert sorted(factors.unique().tolist()) == pytest.approx([0, 1 / 0.6]) and len(factors[:, 0].unique(dim=0)) == 50
    assert (factors == 0).float().mean() == pytest.approx(0.4, abs=0.02)
    assert dropout.eval()(x) is x


@pytest.mark.parametrize("cell, number", [("rnn", 1), ("lstm", 4), ("gru", 3)])
def test_weight_dropout_drops_hidden_to_hidden_weights_only_and_scales_the_rest(monkeypatch, cell, number):
    layers, x = RecurrentLayers(cell, 5, 60, weight_dropout=0.3), torch.randn(2, 4, 5)
    module, seen = layers.layers[0], []
    sequence = recurrent.SEQUENCES[type(module)]
    monkeypatch.setitem(recurrent.SEQUENCES, type(module), lambda *args: seen.append(args[2]) or sequence(*args))
    output, last = layers(x, layers.zero_state(2, x))
    ((weight_ih, weight_hh, *biases),) = seen
    assert weight_ih.equal(module.weight_ih_l0) and all(map(torch.equal, biases, (module.bias_ih_l0, module.bias_hh_l0)))
    dropped = weight_hh == 0
    assert dropped.float().mean() == pytest.approx(0.3, abs=4 * (0.21 / (number * 60 * 60)) ** 0.5)
    torch.testing.assert_close(weight_hh[~dropped], module.weight_hh_l0[~dropped] / 0.7)
    module.weight_hh_l0.data.copy_(weight_hh)
    expected, expected_last = layers.eval()(x, layers.zero_state(2, x))
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(last.hidden, expected_last.hidden)
    assert len(seen) == 1, "weights are dropped in training only"


@pytest.mark.parametrize("cell, module", [("lstm", nn.LSTM), ("gru", nn.GRU)])
def test_gradients_are_scaled_within_a_layer_only(monkeypatch, cell, module):
    layers, x = RecurrentLayers(cell, 5, 8, 2, weight_dropout=0.3), torch.randn(2, 4, 5).requires_grad_()
    gradients, inside, sequence = [], [], recurrent.SEQUENCES[module]

    def observed(*args):
        found = sequence(*args)
        found[0].register_hook(inside.append)
        return found

    monkeypatch.setitem(recurrent.SEQUENCES, module, observed)
    for scale in (0.0, 1024.0):
        monkeypatch.setattr(recurrent, "_gradient_scale", lambda _, scale=scale: scale)
        torch.manual_seed(1)
        state = layers.zero_state(2, x)
        state.hidden.requires_grad_()
        output, last = layers(x, state)
        loss = (output.sin().sum() + last.hidden.cos().sum()) / 1000
        gradients.append(torch.autograd.grad(loss, [x, state.hidden, *layers.parameters()]))
    for unscaled, scaled in zip(*gradients):
        torch.testing.assert_close(scaled, unscaled)
    for unscaled, scaled in zip(inside[:2], inside[2:], strict=True):
        torch.testing.assert_close(scaled, 1024 * unscaled)


def test_without_training_all_rates_of_dropout_are_ignored():
    model, target = awd_lstm().eval(), torch.randint(4, 13, (3, 7))
    plain = awd_lstm(None).eval()
    plain.load_state_dict(model.state_dict())
    logits = model(target)
    assert logits.equal(model(target)) and logits.equal(plain(target))
    assert not model.train()(target).equal(logits) and not model(target).equal(model(target))
    model.eval()
    state = model.start(None, target[:, :3])
    torch.testing.assert_close(model.step(target[:, 3:4], state)[0], logits[:, 3:4])


def test_word_dropout_drops_all_occurrences_of_a_word_in_a_batch():
    model = awd_lstm(LanguageRegularization(dropout=0.0, word_dropout=0.5))
    target = torch.randint(4, 13, (30, 7))
    factors = (model._embed(target) / model.token_embedding(target)).detach()  # (B, T, E)
    by_word = [factors[target == word].unique() for word in range(4, 13)]
    assert all(len(values) == 1 for values in by_word)
    assert sorted({round(float(values), 4) for values in by_word}) == [0, 2]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("settings", [{}, {"cell": "gru"}, {"attention": "dot"}, {"tie": False}], ids=str)
def test_with_all_dropout_gradients_reach_all_weights(precision, settings):
    model, batch = awd_lstm(**settings), language_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        loss = nn.functional.cross_entropy(model(**batch.inputs).float().flatten(0, 1), batch.labels.flatten(), ignore_index=-1)
        (loss + model.auxiliary_loss(batch)).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.abs().sum() > 0, name


@pytest.mark.parametrize("passes", [1, 2])
def test_penalties_of_activations_equal_their_equations(passes):
    batch = language_batch()
    model = awd_lstm(LanguageRegularization(dropout=0.0, output_dropout=0.5, activation_penalty=2.0, temporal_penalty=3.0))
    seen = []
    model.output_dropout.register_forward_hook(lambda _, args, output: seen.extend([args[0], output]))
    model((batch.duplicate() if passes == 2 else batch).inputs["target"])
    features, dropped = (part.unflatten(0, (passes, -1)) for part in seen)
    expected = sum(
        2 * dropped[n, row, t].square().mean() + (3 * (features[n, row, t] - features[n, row, t - 1]).square().mean() if t else 0)
        for n in range(passes)
        for row, t in (batch.labels != IGNORE_INDEX).nonzero().tolist()
    )
    torch.testing.assert_close(model.auxiliary_loss(batch), expected / passes)
    model.eval()(batch.inputs["target"])
    assert model.auxiliary_loss(batch) == 0
