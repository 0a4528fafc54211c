"""The flow view: the shown numbers recompose to the model's own, stage by stage."""

import base64

import numpy as np
import pytest
import torch

from regard.attention.watch import watch
from regard.errors import UserError
from regard.models.bert import TextEmbedder
from regard.recipe import EncoderModel
from regard.run.train import train
from regard.show.figures.flow_diagram import ModelFlow, encode_halves, flow_data, flow_page, flow_text
from regard.show.forward_pass.flow import record_flow
from regard.show.forward_pass.forward_trace import trace_forward
from regard.show.forward_pass.model_structure import describe_model
from regard.show.recording import model_inputs

NAMES = ["gpt", "bert", "post-norm gpt", "translator"]
ATTENTION = ("self-attention", "cross-attention")


@pytest.fixture(scope="module")
def flows(token_runs):
    return {name: record_flow(*token_runs[name]) for name in NAMES}


def close(a, b):
    return np.allclose(a, b, atol=2e-5)


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sublayers(flow):
    """Yield the stages of each sub-layer by name, in order."""
    for key in dict.fromkeys((stage.part, stage.layer, stage.sublayer) for stage in flow.stages if stage.layer):
        yield key, {s.name: s for s in flow.stages if (s.part, s.layer, s.sublayer) == key}


@pytest.mark.parametrize("name", NAMES)
def test_softmax_of_the_shown_scores_is_the_attention_that_watch_records(flows, token_runs, name):
    run, text = token_runs[name]
    inputs = model_inputs(run, text).inputs
    with torch.no_grad(), watch(run.model) as seen:
        run._forward(inputs)
    recorded = [seen.recorded(module)[0].parts["weights"][0].numpy() for module in seen.names()]
    shown = [stages["softmax"] for key, stages in sublayers(flows[name]) if key[2] in ATTENTION]
    assert len(shown) == len(recorded)
    for stage, weights in zip(shown, recorded):
        assert close(softmax(stage.panel("s").values), stage.panel("w").values) and close(stage.panel("w").values, weights)


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_the_dot_products_of_the_shown_queries_and_keys(flows, name):
    for key, stages in sublayers(flows[name]):
        if key[2] in ATTENTION:
            stage = stages["scores"]
            q, k, s = (stage.panel(symbol).values for symbol in "qks")
            seen = np.isfinite(s)
            assert close((q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5)[seen], s[seen])


@pytest.mark.parametrize("name", NAMES)
def test_the_mean_of_the_values_is_the_output_of_the_models_kernel(flows, name):
    for key, stages in sublayers(flows[name]):
        if key[2] in ATTENTION:
            w, v, z = (stages["mix"].panel(symbol).values for symbol in "wvz")
            assert close(w @ v, z)
            assert close(stages["output projection"].panel("[z]").values, np.concatenate(list(z), -1))


@pytest.mark.parametrize("name", NAMES)
def test_every_residual_sum_enters_the_next_sublayer(flows, name):
    """From the embeddings to the final norm, each sub-layer reads what the one before it wrote."""
    flow = flows[name]
    for part in {stage.part for stage in flow.stages} - {"output"}:
        state = flow.find("embedding", part=part).panel("e").values
        placed = [stage for stage in flow.stages if stage.part == part and stage.name == "positions"]
        if placed:
            assert close(state + placed[0].panel("p").values, placed[0].panel("x").values)
            state = placed[0].panel("x").values
        for stage in flow.stages:
            if stage.part == part and stage.name == "embedding norm":
                state = stage.panel("x̂").values
        for key, stages in sublayers(flow):
            if key[0] != part:
                continue
            residual = stages["residual"]
            before, added, *_, after = (panel.values for panel in residual.panels)
            assert close(before, state), key
            total = residual.panels[2].values
            assert close(before + added, total), key
            assert close(added, stages["feed-forward" if key[2] == "feed-forward" else "output projection"].panels[-1].values)
            state = after
        final = [stage for stage in flow.stages if stage.part == part and stage.name == "final norm"]
        assert not final or close(final[0].panel("x").values, state)


@pytest.mark.parametrize("name", NAMES)
def test_the_last_stage_has_the_models_probabilities(flows, token_runs, name):
    run, text = token_runs[name]
    with torch.no_grad():
        p = run._forward(model_inputs(run, text).inputs)[0].softmax(-1)
    candidates = flows[name].stages[-1].candidates
    assert len(candidates.top) == len(p)
    for row, top in zip(p, candidates.top):
        best = row.topk(len(top)).values.tolist()
        assert [probability for _, _, probability in top] == pytest.approx(best, abs=1e-6)
        logits = np.array([logit for _, logit, _ in top])
        assert np.allclose(np.exp(logits - logits[0]), np.array(best) / best[0], atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_every_stage_has_a_sentence_an_equation_and_labelled_rows(flows, name):
    flow = flows[name]
    for stage in flow.stages:
        assert stage.sentence.endswith(".") and stage.equation and (stage.panels or stage.candidates)
        for panel in stage.panels:
            assert panel.values.shape[-2] == len(flow.sides[panel.rows])
            assert not panel.columns or panel.values.shape[-1] == len(flow.sides[panel.columns])
    assert all(stage.title in flow_text(flow) for stage in flow.stages)


def test_the_flow_of_a_translator_goes_through_the_encoder_and_then_the_decoder(flows):
    parts = list(dict.fromkeys(stage.part for stage in flows["translator"].stages))
    assert parts == ["encoder", "decoder", "output"]
    cross = flows["translator"].find("scores", sublayer="cross-attention")
    assert (cross.panels[-1].rows, cross.panels[-1].columns) == ("target", "source")


def test_masked_scores_are_infinite_where_a_token_would_see_the_future(flows):
    s = flows["gpt"].find("scores").panel("s").values
    assert np.isinf(s[:, *np.triu_indices(s.shape[-1], 1)]).all() and np.isfinite(s[:, *np.tril_indices(s.shape[-1])]).all()
    assert "masked" in flows["gpt"].find("scores").sentence and "masked" not in flows["bert"].find("scores").sentence


def test_pages_hold_numbers_to_three_digits_and_words_as_text(token_runs):
    run, _ = token_runs["gpt"]
    flow = record_flow(run, "<img src=x onerror=alert(1)>")
    page = flow_page(flow, title="<img>")
    assert "<img" not in page and "drawFlow(stage, data, {" in page
    values = flow.find("mix").panel("z").values
    halves = np.frombuffer(base64.b64decode(encode_halves(values)), "<f2").reshape(values.shape)
    assert np.allclose(halves, values, rtol=1e-3, atol=1e-6)
    assert len(flow_data(flow)["stages"]) == len(flow.stages)


def test_show_opens_the_flow_at_a_layer_and_refuses_models_without_one(token_runs, image_runs, image_path, tmp_path):
    run, text = token_runs["translator"]
    figure = run.show(text, view="flow", layer=2, kind="cross")
    assert isinstance(figure.data, ModelFlow) and '"at": {"stage": ' in figure.save(tmp_path / "a.html").read_text()
    assert figure.save(tmp_path / "a.svg").stat().st_size > 1000
    with pytest.raises(UserError, match="--layer 9"):
        run.show(text, view="flow", layer=9)
    with pytest.raises(UserError, match="the flow view is for Transformers that predict tokens"):
        image_runs["classify"].show(image_path, view="flow")


def test_the_architecture_is_read_from_the_model(token_runs, image_runs):
    run, _ = token_runs["translator"]
    encoder, decoder = describe_model(run.model).stacks
    assert [box.kind for box in encoder.sublayers] == ["self", "feed_forward"]
    assert [box.kind for box in decoder.sublayers] == ["self", "cross", "feed_forward"]
    assert decoder.layers == run.recipe.model.decoder_layers and decoder.norm_first
    assert decoder.sublayers[-1].shape.startswith("32 → 64 → 32") and "tied" in decoder.above[-1].shape
    (vit,) = describe_model(image_runs["classify"].model).stacks
    assert vit.reads == "patches of the image" and vit.layers == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_embedding_equation_is_what_the_model_computes(flows, token_runs, name):
    """The shown embedding of a token is its row of the table, times the factor of the equation; BERT adds that of a segment."""
    run, flow = token_runs[name][0], flows[name]
    stage = next(stage for stage in flow.stages if stage.name == "embedding")
    side = stage.panels[0].rows
    embedding = getattr(run.model, "source_embedding", None)
    table = (run.model.token_embedding if embedding is None else embedding.table).weight.detach().numpy()
    expected = table[flow.ids[side]] * (run.recipe.model.width**0.5 if "√" in stage.equation else 1)
    if "S[segment]" in stage.equation:
        expected = expected + run.model.encoder.segments.weight.detach().numpy()[0]
    assert close(stage.panel("e").values, expected)


@pytest.mark.parametrize("halting", ["act", "none"])
def test_flow_of_a_universal_transformer_has_its_steps_as_layers(tiny_settings, tmp_path, halting):
    """A step reads the state that the step before left, with position and step added; the end is the model's own output."""
    steps = {"kind": "universal", "encoder_layers": 3, "decoder_layers": 3, "halting": halting}
    short = {**tiny_settings["train"], "steps": 3, "evaluate_every": 3, "save_every": 3}
    settings = {**tiny_settings, "model": {**tiny_settings["model"], **steps}, "train": short}
    run = train(settings, tmp_path / "run", device="cpu")
    text = "the goat sees the cake"
    flow = record_flow(run, text)
    for part in ("encoder", "decoder"):
        stages = [stage for stage in flow.stages if stage.part == part]
        assert max(stage.layer or 0 for stage in stages) == 3
        starts = [stage for stage in stages if stage.name == "positions"]
        x, p, placed = (np.stack([stage.panels[i].values for stage in starts]) for i in range(3))
        np.testing.assert_allclose(x + p, placed, atol=1e-5)
        embedded = next(stage for stage in stages if stage.name == "embedding").panels[0].values
        np.testing.assert_allclose(x[0], embedded, atol=1e-5)
        if halting == "none":  # else a token that has halted keeps its state
            ends = [stage.panels[-1].values for stage in stages if stage.name == "residual" and stage.sublayer == "feed-forward"]
            np.testing.assert_allclose(x[1:], ends[:-1], atol=1e-4)
        assert any(stage.name == "halting" for stage in stages) == (halting == "act")
    inputs = model_inputs(run, text)
    with torch.no_grad():
        own = run._forward(inputs.inputs)[0].softmax(-1).max(-1).values
    found = [top[0][2] for top in flow.stages[-1].candidates.top]
    np.testing.assert_allclose(found, own.numpy(), atol=1e-5)


def test_embeddings_of_a_text_without_segments_are_shown_with_the_first_one():
    """The stack adds it, together with the positions."""
    settings = EncoderModel(kind="transformer", layers=1, width=8, heads=2, feed_forward=16, max_length=9, segments=2)
    model, ids = TextEmbedder(settings, 13).eval(), torch.randint(4, 13, (1, 7))
    [trace] = trace_forward(model, lambda: model(ids, torch.tensor([7]))).stacks
    expected = model.token_embedding(ids)[0] + model.encoder.segments.weight[0]
    torch.testing.assert_close(trace.embedded, expected)
