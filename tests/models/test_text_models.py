"""Laws of the models of one text: language models, ELMo, classifiers, taggers."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard.attention.modules import attention_modules
from regard.attention.watch import watch
from regard.decoding.beam import beam_search
from regard.decoding.greedy import greedy_or_sample
from regard.decoding.sampling import greedy
from regard.errors import UserError
from regard.layers.recurrent import RecurrentLayers, reverse_sequences
from regard.layers.state import DecoderState
from regard.models.recurrent_encoder import ContextualEmbedding
from regard.recipe import (
    DecoderModel,
    ElmoModel,
    EncoderClassifierModel,
    EncoderModel,
    RecurrentDecoderModel,
    RecurrentEncoderModel,
)
from regard.tasks import find_task
from regard.tokens.special_tokens import BOS, EOS

V, C = 13, 4
CELLS = st.sampled_from(["rnn", "lstm", "gru"])
SCORES = st.sampled_from(["none", "dot", "scaled", "general", "additive", "cosine"])


@st.composite
def blocks(draw):
    """Settings of a Transformer block: BERT, GPT-2, Llama and combinations."""
    kind = draw(st.sampled_from(["sinusoidal", "learned", "rotary", "alibi", "relative"]))
    return dict(
        kind="transformer",
        layers=draw(st.integers(1, 3)),
        width=8,
        heads=4,
        feed_forward=16,
        max_length=32,
        key_value_heads=draw(st.sampled_from([None, 2])),
        norm=draw(st.sampled_from(["layer", "rms"])),
        norm_first=draw(st.booleans()),
        bias=draw(st.booleans()),
        positions={"kind": kind},
        activation=draw(st.sampled_from(["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"])),
    )


@st.composite
def language_models(draw):
    torch.manual_seed(draw(st.integers(0, 1000)))
    if draw(st.booleans()):
        settings = DecoderModel(**draw(blocks()), tie=draw(st.booleans()), window=draw(st.sampled_from([None, 2])))
        return enlarge_weights(find_task("language", "transformer").models["transformer"](settings, V).double().eval())
    settings = RecurrentDecoderModel(
        cell=draw(CELLS),
        layers=draw(st.integers(1, 2)),
        width=8,
        embedding_width=draw(st.sampled_from([None, 6])),
        attention=draw(SCORES),
        tie=draw(st.booleans()),
    )
    return find_task("language", "recurrent").models["recurrent"](settings, V).double().eval()


@st.composite
def text_models(draw, tasks=("classify", "tag", "elmo")):
    torch.manual_seed(draw(st.integers(0, 1000)))
    task = draw(st.sampled_from(tasks))
    if task != "elmo" and draw(st.booleans()):
        settings = EncoderClassifierModel(
            **draw(blocks()),
            segments=draw(st.sampled_from([0, 2])),
            embedding_norm=draw(st.booleans()),
            pool=draw(st.sampled_from(["first", "mean", "max"])),
            convolution=draw(st.sampled_from([0, 3])),
        )
        return enlarge_weights(find_task(task, "transformer").models["transformer"](settings, V, C).double().eval())
    if task == "elmo":
        settings = ElmoModel(kind="elmo", cell=draw(CELLS), layers=draw(st.integers(1, 2)), width=8)
        return find_task("language", "elmo").models["elmo"](settings, V).double().eval()
    settings = RecurrentEncoderModel(
        cell=draw(CELLS), layers=draw(st.integers(1, 2)), width=8, attention=draw(SCORES), bidirectional=draw(st.booleans())
    )
    return find_task(task, "recurrent").models["recurrent"](settings, V, C).double().eval()


def enlarge_weights(model):
    """Larger weights, which tell errors from rounding: small ones make all outputs nearly equal."""
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(20)
    return model


def texts(B=3, S=6):
    lengths = torch.tensor([S, *torch.randint(1, S + 1, (B - 1,)).tolist()])
    return torch.randint(4, V, (B, S)), lengths


def close(one, other):
    torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


@given(text_models())
def test_padding_does_not_change_logits_and_batched_equals_one_by_one(model):
    def real(logits, row, length):
        return logits[row, :length] if logits.dim() > 2 else logits[row]

    source, lengths = texts()
    changed = source.clone()
    for row, length in enumerate(lengths.tolist()):
        changed[row, length:] = torch.randint(4, V, (source.size(1) - length,))
    together, other = model(source, lengths), model(changed, lengths)
    for row, length in enumerate(lengths.tolist()):
        close(real(together, row, length), real(other, row, length))
        close(real(together, row, length), model(source[row : row + 1, :length], lengths[row : row + 1])[0])


@given(blocks(), st.sampled_from([0, 2]), st.sampled_from(["mean", "max"]), st.sampled_from(["bi-encoder", "cosine"]))
def test_bi_encoder_reads_each_text_of_a_pair_alone(block, segments, pool, pairs):
    """The vectors of a padded batch of pairs are those of each text in a row of its own."""
    settings = EncoderClassifierModel(**block, segments=segments, pool=pool, pairs=pairs)
    model = enlarge_weights(find_task("classify", "transformer").models["transformer"](settings, V, C).double().eval())
    source, lengths = texts(B=4, S=9)
    ends = torch.cat([torch.randint(1, 9, (1,)), torch.randint(1, 9, (3,)).minimum(lengths[1:])])  # of the first texts
    lengths, at = lengths.maximum(ends + 1), torch.arange(9)
    second = ((at >= ends[:, None]) & (at < lengths[:, None])).long()
    together, logits = model.text_vectors(source, lengths, second), model(source, lengths, second)
    for row, (end, length) in enumerate(zip(ends.tolist(), lengths.tolist())):
        alone = []
        for text in (source[row, :end], source[row, end:length]):
            size = torch.tensor([len(text)])
            alone.append(model.pool(model.encoder(text[None], size), size))
        close(together[0][row], alone[0][0])
        close(together[1][row], alone[1][0])
        close(logits[row], model.output(model.compare(*alone))[0])


@given(blocks(), st.sampled_from([0, 1, 2]), st.integers(0, 1000))
def test_span_predictor_ignores_padding(block, segments, seed):
    torch.manual_seed(seed)
    model = enlarge_weights(
        find_task("answer", "transformer").models["transformer"](EncoderModel(**block, segments=segments), V).double().eval()
    )
    source, lengths = texts()
    second = (torch.arange(source.size(1)) > 2).long().expand(len(source), -1)
    together = model(source, lengths, second)  # (B, 2, S)
    for row, length in enumerate(lengths.tolist()):
        alone = model(source[row : row + 1, :length], lengths[row : row + 1], second[row : row + 1, :length])[0]
        close(together[row, :, :length], alone)
        assert (together[row, :, length:] == -torch.inf).all()


@given(text_models(tasks=("elmo",)), st.integers(0, 5))
def test_elmo_does_not_see_the_tokens_it_predicts(model, at):
    """The next token is predicted from the left and the current one, the previous token from the right and the current one."""
    source, lengths = torch.randint(4, V, (2, 6)), torch.tensor([6, 6])
    before = model(source, lengths)  # (B, S, 2, V)
    changed = source.clone()
    changed[:, at] = (source[:, at] - 4 + 1) % (V - 4) + 4
    after = model(changed, lengths)
    close(before[:, :at, 0], after[:, :at, 0])
    close(before[:, at + 1 :, 1], after[:, at + 1 :, 1])
    assert not torch.allclose(before[:, at:, 0], after[:, at:, 0])
    assert not torch.allclose(before[:, : at + 1, 1], after[:, : at + 1, 1])


@given(st.integers(1, 7), st.integers(0, 100))
def test_reversing_sequences_twice_is_the_identity(length, seed):
    torch.manual_seed(seed)
    x, lengths = torch.randn(3, 7, 2), torch.tensor([7, length, 1])
    assert torch.equal(reverse_sequences(reverse_sequences(x, lengths), lengths), x)
    assert torch.equal(reverse_sequences(x, lengths)[1, :length], x[1, :length].flip(0))


@given(language_models())
def test_later_tokens_do_not_change_earlier_logits(model):
    target = torch.randint(4, V, (2, 6))
    changed = torch.cat([target[:, :3], torch.randint(4, V, (2, 3))], dim=1)
    close(model(target)[:, :3], model(changed)[:, :3])


@given(language_models())
def test_cached_equals_uncached(model):
    target = torch.randint(4, V, (3, 6))
    whole, state, parts = model(target), model.start(None, target[:, :1]), []
    for start, end in ((1, 2), (2, 5), (5, 6)):
        logits, state = model.step(target[:, start:end], state)
        parts.append(logits)
    close(torch.cat(parts, 1), whole[:, 1:])


@given(language_models())
def test_no_logits_are_computed_during_prefill(model):
    model.output.register_forward_hook(lambda *_: pytest.fail("logits that nobody wants"))
    model.start(None, torch.randint(4, V, (3, 6)))


@given(language_models())
def test_left_padded_prompts_equal_unpadded_ones(model):
    prompts = [[BOS, 5, 6, 7, 8], [BOS, 9, 4]]
    prefix = torch.tensor([prompts[0], [-1, -1, *prompts[1]]])
    limits = torch.tensor([6, 6])
    together = greedy_or_sample(model, None, limits, greedy, prefix=prefix)
    for row, prompt in enumerate(prompts):
        alone = greedy_or_sample(model, None, limits[:1], greedy, prefix=torch.tensor([prompt]))[0]
        assert alone.tokens == together[row].tokens
        assert alone.log_probability == pytest.approx(together[row].log_probability, abs=1e-9)
        tokens = torch.tensor([[*prompt, *alone.tokens, EOS]])
        log_p = model(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None])[0, len(prompt) - 1 :, 0]
        if len(alone.tokens) < 5:  # at its limit a text is ended by the search, not by the model
            assert alone.log_probability == pytest.approx(log_p.sum().item(), abs=1e-9)


@given(language_models())
def test_beam_search_equals_greedy_with_one_beam(model):
    prefix, limits = torch.tensor([[BOS, 5, 6], [-1, BOS, 7]]), torch.tensor([6, 6])
    one = beam_search(model, None, limits, beam=1, prefix=prefix)
    assert [found[0].tokens for found in one] == [
        found.tokens for found in greedy_or_sample(model, None, limits, greedy, prefix=prefix)
    ]


@given(st.integers(1, 4), st.integers(0, 100))
def test_every_other_layer_with_a_window_sees_the_window_only(window, seed):
    """What is further back than the windows of all layers together reach is out of sight, if no layer sees everything."""
    torch.manual_seed(seed)
    settings = DecoderModel(kind="transformer", layers=2, width=8, heads=2, feed_forward=16, window=window)
    model = enlarge_weights(find_task("language", "transformer").models["transformer"](settings, V).double().eval())
    target = torch.randint(4, V, (1, 7))
    with watch(model) as seen:
        model(target)
    full, local = (seen[name][0].amax(0) > 0 for name in attention_modules(model))
    distance = torch.arange(7)[:, None] - torch.arange(7)
    assert torch.equal(full, distance >= 0) and torch.equal(local, (distance >= 0) & (distance < window))


@given(language_models())
def test_joined_states_continue_as_if_decoded_alone(model):
    prompts = [torch.tensor([[BOS, 5, 6]]), torch.tensor([[BOS, 7, 8, 9, 4]])]
    states = [model.start(None, prompt) for prompt in prompts]
    joined = DecoderState.join([model.start(None, prompt) for prompt in prompts])
    token = torch.tensor([[5], [6]])
    together, _ = model.step(token, joined)
    for row, state in enumerate(states):
        close(together[row], model.step(token[row : row + 1], state)[0][0])


@given(text_models(tasks=("classify", "tag")))
def test_watched_equals_unwatched_and_weights_sum_to_one(model):
    source, lengths = texts()
    attends = attention_modules(model)
    with nullcontext() if attends else pytest.raises(UserError, match="no attention found"), watch(model) as seen:
        watched = model(source, lengths)
    assert torch.equal(watched, model(source, lengths))
    for name in attends:
        assert torch.allclose(seen[name].sum(-1), torch.ones(1, dtype=torch.double))  # padded queries too
        assert all((seen[name][row, ..., length:] == 0).all() for row, length in enumerate(lengths.tolist()))


@pytest.mark.parametrize("cell, theirs", [("rnn", nn.RNN), ("lstm", nn.LSTM), ("gru", nn.GRU)])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_layers_equal_torch_stacked_cells(cell, theirs, bidirectional):
    ours, stack = (
        RecurrentLayers(cell, 5, 8, 2, bidirectional=bidirectional),
        theirs(5, 8 // (1 + bidirectional), 2, batch_first=True, bidirectional=bidirectional),
    )
    for number, layer in enumerate(ours.layers):
        for name, p in layer.named_parameters():
            getattr(stack, name.replace("_l0", f"_l{number}")).data.copy_(p)
    x = torch.randn(3, 6, 5)
    expected, last = stack(x)
    layers, carry = ours.encode(x, torch.tensor([6, 6, 6]))
    torch.testing.assert_close(layers[-1], expected)
    hidden = last[0] if cell == "lstm" else last
    torch.testing.assert_close(carry.hidden, hidden.unflatten(0, (2, -1)).permute(2, 0, 1, 3).flatten(2))
    if not bidirectional:
        torch.testing.assert_close(ours(x, ours.zero_state(3, x))[0], expected)


def test_embeddings_are_concatenated_with_contextual_vectors_of_equal_scale():
    other, (source, lengths) = elmo(), texts()
    vectors = ContextualEmbedding(other, "mix", [6, 8, 8], layer_norm=True)
    model = find_task("tag", "recurrent").models["recurrent"](
        RecurrentEncoderModel(width=8, embedding_width=5), V, C, None, vectors
    )
    inputs = model.hidden_states(source, lengths)[0]
    assert inputs.shape[-1] == 8 + 5 and model.token_embedding is None
    torch.testing.assert_close(inputs[..., 8:], model.reader.embedding(source))
    vectors.layer = 2
    states = other.hidden_states(source, lengths)[2]
    deviation = (states.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(vectors(source, lengths), (states - states.mean(-1, keepdim=True)) / deviation)


def test_mix_decay_adds_the_gradient_of_an_l2_penalty():
    other, (source, lengths) = elmo(), texts()
    gradients = []
    for decay in (0.0, 0.7):
        vectors = ContextualEmbedding(other, "mix", [6, 8, 8], mix_decay=decay)
        vectors.scalars.data = torch.tensor([1.0, -2.0, 0.5])
        vectors(source, lengths).sum().backward()
        gradients.append(vectors.scalars.grad)
    torch.testing.assert_close(gradients[1] - gradients[0], 2 * 0.7 * torch.tensor([1.0, -2.0, 0.5]))


def test_a_classifier_without_layers_is_linear_in_the_mean_of_its_inputs():
    source, lengths = texts()
    settings = RecurrentEncoderModel(width=8, layers=0)
    model = find_task("classify", "recurrent").models["recurrent"](settings, V, C, None).eval()
    means = torch.stack([x[:n].mean(0) for x, n in zip(model.token_embedding(source), lengths)])
    torch.testing.assert_close(model(source, lengths), model.output(means))
    tagger = find_task("tag", "recurrent").models["recurrent"](settings, V, C, None).eval()
    torch.testing.assert_close(tagger(source, lengths), tagger.output(tagger.token_embedding(source)))


def elmo(dropout=None):
    return find_task("language", "elmo").models["elmo"](ElmoModel(kind="elmo", layers=2, width=8, embedding_width=3), V, dropout)


@pytest.mark.parametrize("layer", [0, 1, 2, "mix"])
def test_contextual_embedding_is_frozen_and_equals_its_equation(layer):
    other = elmo()
    widths = [6, 8, 8]
    vectors = ContextualEmbedding(other, layer, widths)
    source, lengths = texts()
    layers = other.hidden_states(source, lengths)
    assert [x.size(-1) for x in layers] == widths
    if layer == "mix":
        nn.init.normal_(vectors.scalars)
        vectors.gamma.data.fill_(1.7)
        share = vectors.scalars.softmax(0)
        expected = 1.7 * sum(s * nn.functional.pad(x, (0, 8 - x.size(-1))) for s, x in zip(share, layers))
    else:
        expected = layers[layer]
    torch.testing.assert_close(vectors(source, lengths), expected)
    classifier = (
        find_task("classify", "recurrent").models["recurrent"](RecurrentEncoderModel(width=8), V, C, None, vectors).train()
    )
    classifier(source, lengths).sum().backward()
    assert all(p.grad is None for p in other.parameters())
    assert all(p.grad is not None for name, p in classifier.named_parameters() if not name.startswith("reader.features.model."))


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
@pytest.mark.parametrize("convolution", [0, 3])
def test_texts_without_segments_belong_to_the_first_one(positions, convolution):
    """In value and gradient, although the row of that segment is added once to the positions instead of to every token."""
    torch.manual_seed(1)
    sizes = dict(layers=2, width=8, heads=2, feed_forward=16, max_length=9, segments=2, embedding_norm=True)
    settings = EncoderModel(kind="transformer", positions={"kind": positions}, convolution=convolution, **sizes)
    model = find_task("encode").models["transformer"](settings, V).double()
    ids, lengths = torch.randint(4, V, (3, 7)), torch.tensor([7, 2, 5])
    table, found = model.encoder.segments.weight, []
    for segments in (None, torch.zeros_like(ids)):
        vectors = model(ids, lengths, segments)
        weights = torch.linspace(-1, 1, vectors.numel(), dtype=torch.double).view_as(vectors)
        found.append((vectors, *torch.autograd.grad((vectors * weights).sum(), table)))
    torch.testing.assert_close(found[0], found[1], atol=1e-10, rtol=0)
    assert not torch.allclose(found[0][0], model(ids, lengths, torch.ones_like(ids)), atol=1e-3)
