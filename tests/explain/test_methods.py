"""The laws of explanations."""

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
from regard.explain.flow import FlowNetwork
from regard.explain.methods import METHODS, attribute, flow_network, fully_masked_input, integrated_gradients
from regard.explain.target import TextTarget

DEEP = ("rollout", "flow")


def close(one, other, atol=1e-10):
    torch.testing.assert_close(one, other, atol=atol, rtol=0)


def test_every_method_gives_a_number_a_token_or_refuses_in_a_line(target):
    found, refused = attribute(target)
    assert found.keys() | refused.keys() == METHODS.keys()
    assert {"input-gradient", "integrated-gradients", "occlusion"} <= found.keys()
    assert all(values.shape == target.places.shape and values.isfinite().all() for values in found.values())
    assert all("\n" not in reason for reason in refused.values())


def test_what_does_not_apply(kinds):
    _, refused = attribute(kinds["recurrent translator"]())
    assert set(refused) == set(DEEP)
    _, refused = attribute(kinds["without attention"]())
    assert set(refused) == {"attention", "norms", "gradient-attention", *DEEP}
    with pytest.raises(UserError, match="recurrent"):
        attribute(kinds["recurrent translator"](), ["rollout"])


def test_explaining_leaves_no_trace(target):
    before = target.said(target.read)
    attribute(target)
    assert torch.equal(target.said(target.read), before)
    assert all(p.grad is None for p in target.model.parameters())


def test_occlusion_is_the_written_out_difference(target):
    values = METHODS["occlusion"](target)
    for number, place in enumerate(target.places):
        read = target.read.clone()
        if target.pieces == "tokens":
            read[0, place] = target.stand_in
        else:
            y, x = 4 * (number // 2), 4 * (number % 2)
            read[0, :, y : y + 4, x : x + 4] = target.read[0].mean((1, 2))[:, None, None]
        close(values[number], (target.said(target.read) - target.said(read))[0].detach())


def test_integrated_gradients_are_complete(target):
    """Their sum is f(x) − f(everything hidden), as near as the points allow: nearer with more."""
    whole = (target.said(target.read) - target.said(fully_masked_input(target)))[0].detach()
    gaps = [float((integrated_gradients(target, points).sum() - whole).abs()) for points in (1, 256)]
    assert gaps[1] < 2e-2 * max(1.0, float(whole.abs())) and gaps[1] <= gaps[0] + 1e-9


class Linear(nn.Module):
    """The logits are a sum over the tokens of something of each: attribution is exact."""

    def __init__(self):
        super().__init__()
        self.token_embedding = nn.Embedding(9, 4)
        self.output = nn.Linear(4, 2)

    def forward(self, source, lengths):
        return self.output(self.token_embedding(source)).sum(1)


class Plain(TextTarget):
    """The logit itself, without the softmax."""

    def scores(self, read):
        return self.model(source=read, lengths=None)


def test_on_a_linear_model_input_gradient_and_integrated_gradients_are_exact():
    model = Linear().double()
    target = Plain(model, {"source": torch.tensor([[4, 5, 6, 7]]), "lengths": torch.tensor([4])}, "source", torch.arange(4), 1, 3)
    contribution = model.token_embedding.weight @ model.output.weight[1]  # (V,)
    close(METHODS["input-gradient"](target), contribution[target.read[0]].detach())
    exact = (contribution[target.read[0]] - contribution[3]).detach()
    close(METHODS["integrated-gradients"](target), exact)
    close(METHODS["occlusion"](target), exact)


@pytest.mark.parametrize("name", ["classifier", "mean classifier", "GPT", "translator"])
def test_rollout_rows_sum_to_one(name, kinds):
    paths = attention_graph(kinds[name]())
    rolled = paths.climb(lambda weights, seen, own: (weights @ seen + own) / 2)
    close(rolled.sum(-1), torch.ones(len(rolled), dtype=torch.float64))
    assert (rolled >= 0).all()


def test_rollout_is_the_product_of_the_layers(kinds):
    target = kinds["classifier"]()
    with torch.no_grad(), watch(target.model) as seen:
        target.said(target.read)
    one, two = seen.stack().mean(2)[:, 0]  # (L, B, H, T, T)
    eye = torch.eye(len(one), dtype=one.dtype)
    close(METHODS["rollout"](target), ((two + eye) / 2 @ (one + eye) / 2)[0, target.places])


def test_a_language_model_is_not_explained_by_what_it_has_not_read(kinds):
    """At an earlier step the later tokens have nothing to do with it."""
    target = replace(kinds["GPT"](), step=2)
    for values in attribute(target)[0].values():
        close(values[2:], torch.zeros_like(values[2:]))  # places 3, 4, 5
        assert values[:2].abs().sum() > 0


def test_flow_is_at_most_what_leaves_the_answer_and_enters_a_token(kinds):
    target = kinds["translator"]()
    network, inputs = flow_network(attention_graph(target))
    into = [sum(c for e, c in zip(network.to, network.capacity) if e == node) for node in inputs]
    values = METHODS["flow"](target)
    assert (values <= 1 + 1e-9).all() and (values > 0).all()
    assert all(value <= into[column] + 1e-9 for value, column in zip(values.tolist(), attention_graph(target).columns.tolist()))
    with pytest.raises(UserError, match="at most 64 tokens, here are 65"):
        METHODS["flow"](replace(target, places=torch.arange(65)))


@given(st.integers(3, 6), st.data())
def test_the_greatest_flow_is_the_least_cut(nodes, data):
    edges = data.draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1), st.integers(1, 9)), max_size=14))
    network = FlowNetwork(nodes)
    for a, b, capacity in edges:
        if a != b:
            network.add(a, b, float(capacity))
    inner = range(1, nodes - 1)
    cuts = [{0, *some} for some in chain.from_iterable(combinations(inner, n) for n in range(nodes - 1))]
    least = min(sum(c for a, b, c in edges if a in cut and b not in cut) for cut in cuts)
    assert network.flow(0, nodes - 1) == pytest.approx(least)
    assert network.flow(0, nodes - 1) == pytest.approx(least)  # nothing is left over from the first


def test_a_flow_is_taken_back_where_another_way_lets_more_through():
    network = FlowNetwork(8)
    for a, b in [(0, 1), (1, 2), (2, 7), (1, 3), (3, 4), (4, 7), (0, 5), (5, 6), (6, 2)]:
        network.add(a, b, 1.0)
    assert network.flow(0, 7) == 2  # the shortest way, 0 1 2 7, is in the way of both others


@pytest.mark.parametrize("name", ["classifier", "mean classifier", "recurrent classifier"])
def test_padding_changes_nothing(name, kinds):
    torch.manual_seed(0)
    target = kinds[name]()
    padded = torch.cat([target.read, torch.full((1, 3), 7)], dim=1)
    wider = replace(target, inputs={**target.inputs, "source": padded})
    for (method, values), other in zip(attribute(target)[0].items(), attribute(wider)[0].values()):
        torch.testing.assert_close(values, other, atol=1e-9, rtol=0, msg=method)


def test_norms_are_the_lengths_of_what_is_seen(kinds):
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
