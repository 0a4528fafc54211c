"""Explanations: what each piece that the model reads has to do with its answer, one number a token or patch.

    attention               the weights themselves: the last layer that looks at the pieces, the mean of its heads
    rollout                 Abnar & Zuidema 2020: half of what each layer sees, half of what comes past it
    flow                    the same paper: the greatest flow from the answer to each piece, weights as capacities
    gradient-attention      Chefer et al. 2021: R ← R + (∇A ⊙ A)⁺ R, without their normalisation of what decoders see
    norms                   Kobayashi et al. 2020: ‖Σ_h A_h f_h(x)‖, what is seen by its length; in the layer of `attention`
    input-gradient          x · ∇x, of word vectors or normalised pixels
    integrated-gradients    Sundararajan et al. 2017: the same on the way from the stand-ins' numbers to the pieces' own
    occlusion               how much less probable (in log) the answer is when the stand-in takes the piece's place

In an encoder–decoder, paths lead through both sides, and the explanation is what they have to do with the source.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from regard.attention.core import repeat_kv
from regard.attention.modules import layer_index
from regard.attention.multihead import MultiHeadAttention
from regard.attention.watch import watch
from regard.errors import UserError
from regard.explain.attention_graph import AttentionGraph, attention_graph, gradient_attention_graph
from regard.explain.flow import FlowNetwork
from regard.explain.target import AttributionTarget

QUADRATURE_POINTS = 64
"""Points on the way from the stand-in to the pieces."""
MAX_FLOW_FEATURES = 64
"""A flow is computed for each piece through all layers: more take too long."""


def attention(target: AttributionTarget) -> Tensor:
    paths = attention_graph(target)
    return weights_of_features(paths.last.weights.mean(0), paths, target)


def rollout(target: AttributionTarget) -> Tensor:
    paths = attention_graph(target, deep="rollout")
    return paths.answer(paths.climb(lambda weights, seen, own: (weights @ seen + own) / 2))


def flow(target: AttributionTarget) -> Tensor:
    if len(target.places) > MAX_FLOW_FEATURES:
        raise UserError(f"flow is for at most {MAX_FLOW_FEATURES} {target.pieces}, here are {len(target.places)}; use: rollout")
    paths = attention_graph(target, deep="flow")
    network, inputs = flow_network(paths)
    return torch.tensor([network.flow(0, inputs[column]) for column in paths.columns.tolist()], dtype=torch.float64)


def gradient_attention(target: AttributionTarget) -> Tensor:
    paths = gradient_attention_graph(target)
    if layer_index(paths.last.name) is None:
        return weights_of_features(paths.last.weights.mean(0), paths, target)  # one attention over recurrent states
    return paths.answer(paths.climb(lambda weights, seen, own: own + weights @ seen))


def norms(target: AttributionTarget) -> Tensor:
    name = attention_graph(target).last.name
    with torch.no_grad(), watch(target.model, values=True, kinds=rf"^{re.escape(name)}$") as seen:
        target.said(target.read)
    weights = seen[name][0].double().cpu()  # (H, T, S)
    values = repeat_kv(seen.values[name][-1], len(weights))[0].double().cpu()  # (H, S, J)
    place = target.model.get_submodule(name)
    if isinstance(place, MultiHeadAttention):
        out = place.out_proj.weight.detach().double().cpu().unflatten(1, (len(weights), -1))  # (D, H, J)
        values = torch.einsum("hsj,dhj->hsd", values, out)
    lengths = torch.stack([torch.einsum("hs,hsd->sd", row, values).norm(dim=-1) for row in weights.unbind(1)])  # (T, S)
    return weights_of_features(lengths, attention_graph(target), target)


def input_gradient(target: AttributionTarget) -> Tensor:
    vectors = target.vectors(target.read)
    return target.summed(vectors * target.gradients(vectors))


def integrated_gradients(target: AttributionTarget, points: int = QUADRATURE_POINTS) -> Tensor:
    """∫ ∇f(x₀ + a (x − x₀)) da · (x − x₀), by Gauss and Legendre; their sum is f(x) − f(x₀). With a = t³ points are closer near
    the stand-in, where norms are steep: of what is all alike, they make much of the first difference."""
    begin, end = target.vectors(fully_masked_input(target)), target.vectors(target.read)
    shape = [-1] + [1] * (end.dim() - 1)
    at, weight = (torch.from_numpy(part).to(end).view(shape) for part in np.polynomial.legendre.leggauss(points))
    total = torch.zeros_like(end)
    for t, w in zip(((at + 1) / 2).split(target.at_once), (weight / 2).split(target.at_once)):
        total += (3 * t**2 * w * target.gradients(begin + t**3 * (end - begin))).sum(0, keepdim=True)
    return target.summed(total * (end - begin))


def occlusion(target: AttributionTarget) -> Tensor:
    hidden = torch.cat([torch.zeros(1, len(target.places), dtype=torch.bool), torch.eye(len(target.places), dtype=torch.bool)])
    said = target.without(hidden)
    return said[0] - said[1:]


METHODS: dict[str, Callable[[AttributionTarget], Tensor]] = {
    "attention": attention,
    "rollout": rollout,
    "flow": flow,
    "gradient-attention": gradient_attention,
    "norms": norms,
    "input-gradient": input_gradient,
    "integrated-gradients": integrated_gradients,
    "occlusion": occlusion,
}


def attribute(target: AttributionTarget, methods: Sequence[str] = tuple(METHODS)) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The numbers (N,) by method, and why some methods do not apply; what is asked for alone has to."""
    found, refused = {}, {}
    for name in methods:
        try:
            found[name] = METHODS[name](target)
        except UserError as mistake:
            if len(methods) == 1:
                raise
            refused[name] = str(mistake)
    return found, refused


def fully_masked_input(target: AttributionTarget) -> Tensor:
    return target.hide(torch.ones(1, len(target.places), dtype=torch.bool))


def weights_of_features(rows: Tensor, paths: AttentionGraph, target: AttributionTarget) -> Tensor:
    """The answer's share of what one place says of its keys: (T, S) -> (N,)."""
    return (paths.asks @ rows)[target.places.cpu()]


def flow_network(paths: AttentionGraph) -> tuple[FlowNetwork, list[int]]:
    """The stages as a network, from node 0 (the answer) to the node of each input; capacities as in rollout."""
    T, S = paths.stages[0].weights.size(-2), paths.source_size + paths.unseen
    below, above = list(range(1 + T, 1 + T + S)), list(range(1, 1 + T))
    inputs, nodes = above + below, 1 + T + S
    edges: list[tuple[int, int, float]] = []

    def raise_by(weights: Tensor, seen: list[int], own: list[int]) -> list[int]:
        nonlocal nodes
        new = list(range(nodes, nodes + len(own)))
        nodes += len(new)
        edges.extend((a, b, w / 2) for a, row in zip(new, weights.tolist()) for b, w in zip(seen, row))
        edges.extend((a, b, 0.5) for a, b in zip(new, own))
        return new

    for stage in paths.source:
        below = raise_by(stage.weights.mean(0), below, below)
    for stage in paths.stages:
        above = raise_by(stage.weights.mean(0), below[paths.unseen :] if stage.across else above, above)
    network = FlowNetwork(nodes)
    for a, b, capacity in [*((0, node, part) for node, part in zip(above, paths.asks.tolist())), *edges]:
        network.add(a, b, capacity)
    return network, inputs
