"""Attribution methods: one number per input feature (token or patch) for one output.

    attention               the weights of the last layer that attends to the features, mean over heads, or of the chosen one
    rollout                 Abnar & Zuidema 2020: half of what each layer attends to, half residual
    flow                    the same paper: the maximum flow from the output to each feature, weights as capacities
    gradient-attention      Chefer et al. 2021: R ← R + (∇A ⊙ A)⁺ R, without their normalization in decoders
    norms                   Kobayashi et al. 2020: ‖Σ_h A_h f_h(x)‖, weighted values by their norm; in the layer of `attention`
    input-gradient          x · ∇x, of token embeddings or normalized pixels
    integrated-gradients    Sundararajan et al. 2017: the same, integrated from the fully masked input to the input
    occlusion               the drop of the output's log-probability when the feature is masked

In an encoder–decoder, paths lead through both sides, and the attributions are those of the source.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import networkx as nx
import numpy as np
import torch
from networkx.algorithms.flow import build_residual_network, shortest_augmenting_path
from torch import Tensor, nn

from regard.attention.core import repeat_kv
from regard.attention.modules import attention_modules, layer_index
from regard.attention.multihead import MultiHeadAttention
from regard.attention.watch import watch
from regard.errors import UserError
from regard.explain.attention_graph import AttentionGraph, attention_graph, check_keys, gradient_attention_graph
from regard.explain.target import AttributionTarget

QUADRATURE_POINTS = 64
"""Points between the masked input and the input, of integrated gradients."""
MAX_FLOW_FEATURES = 64
"""The flow is computed for each feature through all layers: more take too long."""
MIN_CAPACITY = 1e-12


def attention(target: AttributionTarget) -> Tensor:
    graph = attention_graph(target)
    return weights_of_features(graph.shown_weights(target), graph, target)


def rollout(target: AttributionTarget) -> Tensor:
    graph = attention_graph(target, method="rollout")
    return graph.output_relevance(lambda weights, attended, residual: (weights @ attended + residual) / 2)


def flow(target: AttributionTarget) -> Tensor:
    if len(target.positions) > MAX_FLOW_FEATURES:
        raise UserError(
            f"flow is for at most {MAX_FLOW_FEATURES} {target.wording.features}, here are {len(target.positions)}; use: rollout"
        )
    graph = attention_graph(target, method="flow")
    edges, inputs = flow_edges(graph)
    return torch.tensor(maximum_flows(edges, 0, [inputs[column] for column in graph.columns.tolist()]), dtype=torch.float64)


def gradient_attention(target: AttributionTarget) -> Tensor:
    graph = gradient_attention_graph(target)
    if layer_index(graph.last.name) is None:
        return weights_of_features(graph.last.weights.mean(0), graph, target)  # one attention over recurrent states
    check_keys(graph, target, "gradient-attention")
    return graph.output_relevance(lambda weights, attended, residual: residual + weights @ attended)


def norms(target: AttributionTarget) -> Tensor:
    graph = attention_graph(target)
    shown = graph.shown(target)
    name, found = shown.name, list[nn.Module]()

    def find_projection(module: nn.Module, args: tuple[Any, ...]) -> None:
        """Keep the first linear layer after the attention that reads its heads side by side."""
        if found or name not in seen.values or not args or not isinstance(args[0], Tensor):
            return
        if args[0].size(-1) == len(shown.weights) * seen.values[name][-1].size(-1):
            found.append(module)

    with torch.no_grad(), ExitStack() as stack:
        seen = stack.enter_context(watch(target.model, values=True, kinds=rf"^{re.escape(name)}$"))
        own = attention_modules(target.model)
        for module in target.model.modules():
            if not own and is_linear(module):
                stack.callback(module.register_forward_pre_hook(find_projection).remove)
        target.score(target.input)
    if name not in seen.values:
        raise UserError(f"norms needs the values of {name}, which the model multiplies in a layout of its own; use: attention")
    weights = shown.weights  # (H, T, S)
    values = repeat_kv(seen.values[name][graph.call_from_the_end(shown)], len(weights))[0]  # (H, S, J)
    if own and isinstance(attention := target.model.get_submodule(name), MultiHeadAttention):
        found.append(attention.out_proj)
    values = project_heads(found[0], values) if found else values
    values = values.double().cpu()
    if target.head is not None:
        weights, values = weights[[target.head - 1]], values[[target.head - 1]]
    lengths = torch.stack([torch.einsum("hs,hsd->sd", row, values).norm(dim=-1) for row in weights.unbind(1)])  # (T, S)
    return weights_of_features(lengths, graph, target)


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is a matrix: nn.Linear, or what other libraries have in its place."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() == 2 and not isinstance(module, nn.Embedding)


@torch.no_grad()
def project_heads(projection: nn.Module, values: Tensor) -> Tensor:
    """Return what an affine layer makes of the values of each head alone, without its bias: (H, S, J) -> (H, S, D)."""
    H, S, J = values.shape
    alone = torch.zeros(H, S, H, J, dtype=values.dtype, device=values.device)
    alone[range(H), :, range(H)] = values
    projected: Tensor = projection(torch.cat([alone.view(H * S, H * J), alone.new_zeros(1, H * J)]))
    return (projected[:-1] - projected[-1]).view(H, S, -1)


def input_gradient(target: AttributionTarget) -> Tensor:
    vectors = target.embed(target.input)
    return target.sum_features(vectors * target.gradients(vectors))


def integrated_gradients(target: AttributionTarget, points: int = QUADRATURE_POINTS) -> Tensor:
    """Return ∫ ∇f(x₀ + a (x − x₀)) da · (x − x₀) by Gauss–Legendre quadrature; the sum is f(x) − f(x₀).

    With a = t³, points are denser near the masked input x₀, where norm layers are steep: its features are all equal, and the
    first difference between them counts most."""
    masked = target.mask(torch.ones(1, len(target.positions), dtype=torch.bool))
    start, end = target.embed(masked), target.embed(target.input)
    shape = [-1] + [1] * (end.dim() - 1)
    nodes, weights = (torch.from_numpy(part).to(end).view(shape) for part in np.polynomial.legendre.leggauss(points))
    total = torch.zeros_like(end)
    for t, w in zip(torch.split((nodes + 1) / 2, target.batch_size), torch.split(weights / 2, target.batch_size)):
        total += (3 * t**2 * w * target.gradients(start + t**3 * (end - start))).sum(0, keepdim=True)
    return target.sum_features(total * (end - start))


def occlusion(target: AttributionTarget) -> Tensor:
    number = len(target.positions)
    scores = target.masked_scores(torch.cat([torch.zeros(1, number, dtype=torch.bool), torch.eye(number, dtype=torch.bool)]))
    return scores[0] - scores[1:]


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
    """Return the attributions (N,) by method, and why some methods do not apply; a single method that does not apply raises."""
    found, unavailable = {}, {}
    for name in methods:
        try:
            found[name] = METHODS[name](target)
        except UserError as error:
            if len(methods) == 1:
                raise
            unavailable[name] = str(error)
    return found, unavailable


def weights_of_features(rows: Tensor, graph: AttentionGraph, target: AttributionTarget) -> Tensor:
    """Return the output's weights on the features in one attention module: (T, S) -> (N,)."""
    return (graph.query_weights @ rows)[target.positions.cpu()]


def flow_edges(graph: AttentionGraph) -> tuple[list[tuple[int, int, float]], list[int]]:
    """Return the graph as edges (from, to, capacity), from node 0 (the output) down to the node of each input."""
    inputs = list(range(1, 1 + graph.input_size))
    nodes = itertools.count(1 + graph.input_size)
    edges: list[tuple[int, int, float]] = []

    def add_stage(weights: Tensor, attended: list[int], residual: list[int]) -> list[int]:
        new = list(itertools.islice(nodes, len(residual)))
        edges.extend((a, b, w / 2) for a, row in zip(new, weights.tolist()) for b, w in zip(attended, row))
        edges.extend((a, b, 0.5) for a, b in zip(new, residual))
        return new

    above = graph.propagate(inputs, add_stage)
    return [*((0, node, part) for node, part in zip(above, graph.query_weights.tolist())), *edges], inputs


def maximum_flows(edges: Iterable[tuple[int, int, float]], source: int, sinks: Sequence[int]) -> list[float]:
    """Return the maximum flow from the source to each sink.

    networkx's shortest augmenting path on one residual network for all sinks is its fastest algorithm here: 12 layers of 40
    tokens take about 3 s, where a Dinic of our own took 1 s; the default, preflow-push, takes 5 to 8 s."""
    network = nx.DiGraph()
    network.add_nodes_from([source, *sinks])
    for a, b, capacity in edges:
        if capacity > MIN_CAPACITY:
            before = network.edges[a, b]["capacity"] if network.has_edge(a, b) else 0.0
            network.add_edge(a, b, capacity=before + capacity)
    residual = build_residual_network(network, "capacity")
    flows = (shortest_augmenting_path(network, source, sink, residual=residual, value_only=True) for sink in sinks)
    return [round(float(result.graph["flow_value"]), 12) for result in flows]  # equal flows tie, whatever their rounding errors
