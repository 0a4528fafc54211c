"""Laws of the attribution methods."""

from dataclasses import replace
from itertools import chain, combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard.attention.watch import watch
from regard.errors import UserError
from regard.explain.attention_graph import attention_graph
from regard.explain.faithfulness import permutation_effect
from regard.explain.methods import METHODS, attribute, flow_edges, integrated_gradients, maximum_flows
from regard.explain.target import TextTarget

DEEP = ("rollout", "flow")


def close(one, other, atol=1e-10):
    torch.testing.assert_close(one, other, atol=atol, rtol=0)


def test_every_method_attributes_each_feature_or_gives_a_reason(target):
    found, unavailable = attribute(target)
    assert found.keys() | unavailable.keys() == METHODS.keys()
    assert {"input-gradient", "integrated-gradients", "occlusion"} <= found.keys()
    assert all(values.shape == target.positions.shape and values.isfinite().all() for values in found.values())
    assert all("\n" not in reason for reason in unavailable.values())


def test_methods_that_do_not_apply_to_recurrent_models(kinds):
    _, unavailable = attribute(kinds["recurrent translator"]())
    assert set(unavailable) == set(DEEP)
    _, unavailable = attribute(kinds["without attention"]())
    assert set(unavailable) == {"attention", "norms", "gradient-attention", *DEEP}
    with pytest.raises(UserError, match="recurrent"):
        attribute(kinds["recurrent translator"](), ["rollout"])


def test_attribution_leaves_outputs_and_gradients_unchanged(target):
    before = target.score(target.input)
    attribute(target)
    assert torch.equal(target.score(target.input), before)
    assert all(p.grad is None for p in target.model.parameters())


def test_occlusion_equals_the_score_difference(target):
    values = METHODS["occlusion"](target)
    for number, position in enumerate(target.positions):
        masked = target.input.clone()
        if target.wording.features == "tokens":
            masked[0, position] = target.replacement
        else:
            y, x = 4 * (number // 2), 4 * (number % 2)
            masked[0, :, y : y + 4, x : x + 4] = target.input[0].mean((1, 2))[:, None, None]
        close(values[number], (target.score(target.input) - target.score(masked))[0].detach())


def test_integrated_gradients_are_complete(target):
    """Their sum is f(x) − f(fully masked), up to quadrature error, which falls with more points."""
    masked = target.mask(torch.ones(1, len(target.positions), dtype=torch.bool))
    whole = (target.score(target.input) - target.score(masked))[0].detach()
    gaps = [float((integrated_gradients(target, points).sum() - whole).abs()) for points in (1, 256)]
    assert gaps[1] < 2e-2 * max(1.0, float(whole.abs())) and gaps[1] <= gaps[0] + 1e-9


class Linear(nn.Module):
    """The logits are a sum over tokens, so that attribution is exact."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.output = nn.Linear(4, 2)

    def forward(self, source, lengths):
        return self.output(self.words(source)).sum(1)


class Plain(TextTarget):
    """The logit itself, without the softmax."""

    def scores(self, inputs):
        return self.model(source=inputs, lengths=None)


def test_on_a_linear_model_input_gradient_and_integrated_gradients_are_exact():
    model = Linear().double()
    target = Plain(model, {"source": torch.tensor([[4, 5, 6, 7]]), "lengths": torch.tensor([4])}, "source", torch.arange(4), 1, 3)
    contribution = model.words.weight @ model.output.weight[1]  # (V,)
    close(METHODS["input-gradient"](target), contribution[target.input[0]].detach())
    exact = (contribution[target.input[0]] - contribution[3]).detach()
    close(METHODS["integrated-gradients"](target), exact)
    close(METHODS["occlusion"](target), exact)


@pytest.mark.parametrize("name", ["classifier", "mean classifier", "GPT", "translator"])
def test_rollout_rows_sum_to_one(name, kinds):
    graph = attention_graph(kinds[name]())
    rolled = graph.propagate(
        torch.eye(graph.input_size, dtype=torch.float64), lambda weights, attended, residual: (weights @ attended + residual) / 2
    )
    close(rolled.sum(-1), torch.ones(len(rolled), dtype=torch.float64))
    assert (rolled >= 0).all()


def test_rollout_is_the_product_of_the_layers(kinds):
    target = kinds["classifier"]()
    with torch.no_grad(), watch(target.model) as seen:
        target.score(target.input)
    one, two = seen.stack().mean(2)[:, 0]  # (L, B, H, T, T)
    eye = torch.eye(len(one), dtype=one.dtype)
    close(METHODS["rollout"](target), ((two + eye) / 2 @ (one + eye) / 2)[0, target.positions])


def test_language_model_gives_later_tokens_no_attribution(kinds):
    target = replace(kinds["GPT"](), step=2)
    for values in attribute(target)[0].values():
        close(values[2:], torch.zeros_like(values[2:]))  # positions 3, 4, 5
        assert values[:2].abs().sum() > 0


def test_flow_is_bounded_by_the_capacity_into_each_token(kinds):
    target = kinds["translator"]()
    edges, inputs = flow_edges(attention_graph(target))
    into = [sum(capacity for _, b, capacity in edges if b == node) for node in inputs]
    values = METHODS["flow"](target)
    assert (values <= 1 + 1e-9).all() and (values > 0).all()
    assert all(value <= into[column] + 1e-9 for value, column in zip(values.tolist(), attention_graph(target).columns.tolist()))
    with pytest.raises(UserError, match="at most 64 tokens, here are 65"):
        METHODS["flow"](replace(target, positions=torch.arange(65)))


@given(st.integers(3, 6), st.data())
def test_maximum_flow_equals_minimum_cut(nodes, data):
    edges = data.draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1), st.integers(1, 9)), max_size=14))
    edges = [(a, b, float(capacity)) for a, b, capacity in edges if a != b]
    inner = range(1, nodes - 1)
    cuts = [{0, *some} for some in chain.from_iterable(combinations(inner, n) for n in range(nodes - 1))]
    least = min(sum(c for a, b, c in edges if a in cut and b not in cut) for cut in cuts)
    flows = maximum_flows(edges, 0, [nodes - 1, 1, nodes - 1])
    assert flows[0] == flows[2] == pytest.approx(least)  # nothing is left over from the first


def test_maximum_flow_reroutes_the_shortest_path():
    edges = [(a, b, 1.0) for a, b in [(0, 1), (1, 2), (2, 7), (1, 3), (3, 4), (4, 7), (0, 5), (5, 6), (6, 2)]]
    assert maximum_flows(edges, 0, [7]) == [2]  # the shortest path, 0 1 2 7, blocks both others


@pytest.mark.parametrize("name", ["classifier", "mean classifier", "recurrent classifier"])
def test_padding_does_not_change_attributions(name, kinds):
    torch.manual_seed(0)
    target = kinds[name]()
    padded = torch.cat([target.input, torch.full((1, 3), 7)], dim=1)
    wider = replace(target, inputs={**target.inputs, "source": padded})
    for (method, values), other in zip(attribute(target)[0].items(), attribute(wider)[0].values()):
        torch.testing.assert_close(values, other, atol=1e-9, rtol=0, msg=method)


def test_norms_are_the_lengths_of_the_weighted_values(kinds):
    """With every value but one token's at zero, only that token is seen."""
    target = kinds["classifier"]()
    name = attention_graph(target).last.name
    place = target.model.get_submodule(name)
    x = METHODS["norms"](target)
    with torch.no_grad():
        place.out_proj.weight.mul_(3)
    close(METHODS["norms"](target), 3 * x)
    with torch.no_grad():
        place.out_proj.weight.zero_()
    assert METHODS["attention"](target).sum() > 0 and METHODS["norms"](target).sum() == 0


@pytest.mark.parametrize("name", ["classifier", "translator", "GPT", "ViT"])
def test_layer_and_head_choose_the_attention_that_is_tested(name, kinds):
    target = kinds[name]()
    with torch.no_grad(), watch(target.model) as seen:
        target.score(target.input)
    pattern = "cross" if name == "translator" else "self_attention"
    names = [one for one in seen.names() if pattern in one and not (name == "translator" and "encoder" in one.split("."))]
    whole = METHODS["attention"](target)
    maps = [seen[one][0].double().cpu() for one in names]  # (H, T, S) each
    query = target.query_weights(maps[0].size(1))
    for layer, weights in enumerate(maps, 1):
        for head, of_head in enumerate(weights, 1):
            found = METHODS["attention"](replace(target, layer=layer, head=head))
            torch.testing.assert_close(found, (query @ of_head)[target.positions])
        torch.testing.assert_close(
            METHODS["attention"](replace(target, layer=layer)), (query @ weights.mean(0))[target.positions]
        )
    torch.testing.assert_close(METHODS["attention"](replace(target, layer=len(maps))), whole)
    effects = {permutation_effect(replace(target, layer=layer, head=head)) for layer in (1, 2) for head in (None, 1, 2)}
    assert len(effects) == 6  # each permutes other weights
    for wrong in ({"layer": 3}, {"layer": 1, "head": 3}):
        with pytest.raises(UserError, match="use 1 to 2"):
            METHODS["attention"](replace(target, **wrong))
