"""Stages of the flow view: each step of a forward pass with its sentence, its equation and its matrices."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.core import repeat_kv
from regard.attention.positions import sinusoids
from regard.layers.universal import UniversalStack
from regard.show.figures.flow_diagram import Panel, Stage
from regard.show.forward_pass.forward_trace import (
    AttentionParts,
    BlockCalls,
    StackTrace,
    SublayerTrace,
)
from regard.show.selection import pluralize

ATTENTION_NAMES = {"self": "self-attention", "cross": "cross-attention", "feed_forward": "feed-forward"}
POSITION_SENTENCE = "Attention itself sees no order, so a vector that depends on the position alone is added to each token."
PROJECT_SENTENCES = {
    "self": "Each head projects every token to a query (what it looks for), a key (what it offers) and a value (what it gives).",
    "cross": "Queries come from the decoder, keys and values from the output of the encoder.",
}


def stack_stages(trace: StackTrace, part: str, side: str, equation: str) -> list[Stage]:
    """Return the stages of one stack: the embeddings, every layer, the final norm."""
    stages = list(embedding_stages(trace, part, side, equation))
    for layer, block in enumerate(trace.blocks, start=1):
        if isinstance(trace.stack, UniversalStack):
            stages.append(step_stage(trace, block, part, layer, side))
        stages += block_stages(block.sublayers(), part, layer, side)
    assert trace.final is not None
    if isinstance(trace.stack, UniversalStack) and trace.stack.steps is not None:
        stages.append(halting_stage(trace, part, side))
    if not isinstance(trace.stack.norm, nn.Identity):
        stages.append(final_norm_stage(trace.stack.norm, trace.final.given[0][0], trace.final.output[0], part, side))
    return stages


def final_norm_stage(norm: nn.Module, before: Tensor, after: Tensor, part: str, side: str) -> Stage:
    sentence = f"After the last layer of the {part}, every vector is normalised once more."
    return Stage(part, None, "final norm", "final norm", sentence, norm_equation(norm), norm_panels(before, after, side))


def step_stage(trace: StackTrace, block: BlockCalls, part: str, layer: int, side: str) -> Stage:
    """Return how a step of a universal block begins: the position and the number of the step are added (Dehghani et al. 2019)."""
    placed = block.calls["self_residual"].given[0]  # (1, T, D)
    positions = torch.arange(placed.size(1), device=placed.device)
    encoding = trace.stack.positions.embed(torch.zeros_like(placed), positions)[0]
    encoding = encoding + sinusoids(torch.tensor(layer - 1, device=placed.device), placed.size(-1)).to(placed.dtype)
    panels = [Panel("x", numbers(placed[0] - encoding), side), Panel("p", numbers(encoding), side, operator="+")]
    panels.append(Panel("x′", numbers(placed[0]), side, operator="="))
    sentence = "The same block is applied at every step: vectors that depend on the position and on the step are added first."
    return Stage(part, layer, "positions", "position and step", sentence, "x′ₜ = xₜ + pₜ + p(step)", panels)


def halting_stage(trace: StackTrace, part: str, side: str) -> Stage:
    """Return the end of a universal block with halting: the mean of a token's states (Graves 2016, eq. 8)."""
    assert isinstance(trace.stack, UniversalStack) and trace.stack.steps is not None and trace.final is not None
    steps = [int(number) for number in trace.stack.steps[0].tolist()]
    sentence = (
        "Each token stops when its halting probabilities add up to one; what leaves the block is the mean of its states, "
        f"weighted by them. Steps of each token: {' '.join(map(str, steps))}."
    )
    panels = [Panel("x̄", numbers(trace.final.given[0][0]), side)]
    return Stage(part, None, "halting", "halting", sentence, "x̄ = Σₙ pₙ xₙ", panels)


def embedding_equation(model: nn.Module, side: str) -> str:
    """Return how the model computes the embeddings of a side, before positions."""
    table: Any = getattr(model, f"{side}_embedding", None)
    settings: Any = getattr(model, "settings", None)
    is_scaled = table.scale != 1 if table is not None else getattr(settings, "scale_embedding", False)
    segments = " + S[segment]" if getattr(getattr(model, "encoder", None), "segments", None) is not None else ""
    return f"eₜ = {f'√{settings.width} · ' if is_scaled else ''}E[iₜ]{segments}"


def embedding_stage(x: Tensor, part: str, side: str, equation: str) -> Stage:
    sentence = f"Each token is looked up in a table and becomes a vector of {x.size(-1)} numbers, the same wherever it stands."
    return Stage(part, None, "embedding", "embedding", sentence, equation, [Panel("e", numbers(x), side)])


def position_stage(x: Tensor, placed: Tensor, part: str, side: str) -> Stage:
    panels = [Panel("e", numbers(x), side), Panel("p", numbers(placed - x), side, operator="+")]
    panels.append(Panel("x", numbers(placed), side, operator="="))
    return Stage(part, None, "positions", "positions", POSITION_SENTENCE, "xₜ = eₜ + pₜ", panels)


def embedding_norm_stage(norm: nn.Module, before: Tensor, after: Tensor, part: str, side: str) -> Stage:
    panels = [Panel("x", numbers(before), side), Panel("x̂", numbers(after), side, operator="→")]
    sentence = "The embeddings are normalised, and projected to the width of the layers where that differs."
    return Stage(part, None, "embedding norm", "norm of the embeddings", sentence, norm_equation(norm), panels)


def embedding_stages(trace: StackTrace, part: str, side: str, equation: str) -> Iterator[Stage]:
    x, stack = trace.embedded, trace.stack
    assert x is not None
    yield embedding_stage(x, part, side, equation)
    if isinstance(stack, UniversalStack):  # it adds positions at every step
        return
    positions = torch.arange(len(x), device=x.device)
    placed = stack.positions.embed(x[None], positions)[0]
    if not torch.equal(placed, x):
        yield position_stage(x, placed, part, side)
    if not isinstance(stack.embedding_norm, nn.Identity) or not isinstance(stack.projection, nn.Identity):
        yield embedding_norm_stage(stack.embedding_norm, placed, trace.entering, part, side)


def block_stages(sublayers: Iterable[SublayerTrace], part: str, layer: int, side: str) -> Iterator[Stage]:
    """Yield the stages of one layer: each sub-layer from its norm to its residual connection."""
    for sublayer in sublayers:
        name = ATTENTION_NAMES[sublayer.kind]

        def stage(key: str, title: str, sentence: str, equation: str, panels: list[Panel], name: str = name) -> Stage:
            return Stage(part, layer, key, title, sentence, equation, panels, sublayer=name)

        if sublayer.normed is not None:
            sentence = "Each vector is brought to a standard scale before the sub-layer reads it; learned factors follow."
            equation = norm_equation(sublayer.norm)
            yield stage("norm", "norm", sentence, equation, norm_panels(sublayer.x, sublayer.normed, side))
        if sublayer.attention is not None:
            for key, title, sentence, equation, panels in attention_stages(sublayer, sublayer.attention, side):
                yield stage(key, title, sentence, equation, panels)
        else:
            sentence = "Every token goes, by itself, through a wider layer with a nonlinearity, and back: here tokens do not mix."
            yield stage("feed-forward", "feed-forward", sentence, *feed_forward_panels(sublayer, side))
        yield stage("residual", "residual connection", *residual_parts(sublayer, side))


AttentionStage = tuple[str, str, str, str, list[Panel]]


def attention_stages(sublayer: SublayerTrace, trace: AttentionParts, side: str) -> Iterator[AttentionStage]:
    """Yield projections, scores, softmax, mix and output projection; heads are the first dimension of their panels."""
    keys = "source" if sublayer.kind == "cross" else side
    heads = trace.q.size(0)
    q, k, v = (numbers(part) for part in (trace.q, *(repeat_kv(x[None], heads)[0] for x in (trace.k, trace.v))))
    scores, weights, mixed = numbers(trace.scores), numbers(trace.weights), numbers(trace.mixed)
    x = sublayer.x if sublayer.normed is None else sublayer.normed
    masked = bool(np.isinf(scores).any())
    symbol, source = (
        ("x" if sublayer.normed is None else "x̂"),
        ("h" if sublayer.kind == "cross" else "x̂" if sublayer.normed is not None else "x"),
    )
    yield (
        "projections",
        "queries, keys, values",
        PROJECT_SENTENCES[sublayer.kind],
        f"q = {symbol} W_Q   k = {source} W_K   v = {source} W_V",
        [
            Panel(symbol, numbers(x), side),
            Panel("q", q, side, operator="→"),
            Panel("k", k, keys),
            Panel("v", v, keys),
        ],
    )
    hidden = " Later tokens are masked: their score is −∞." if masked else ""
    bias = " + bias" if trace.has_bias else ""
    yield (
        "scores",
        "scores",
        "Every query is compared with every key by a dot product: the better they match, the higher the score." + hidden,
        f"s = {trace.formula}{bias}",
        [Panel("q", q, side), Panel("k", k, keys, operator="×"), Panel("s", scores, side, keys, "=", "scores")],
    )
    yield (
        "softmax",
        "softmax",
        "The softmax turns each row of scores into attention weights, which are positive and add up to one.",
        "w = softmax(s)",
        [Panel("s", scores, side, keys, kind="scores"), Panel("w", weights, side, keys, "→", "weights")],
    )
    yield (
        "mix",
        "weighted mean of the values",
        "Each token receives the mean of the values, weighted by its row of attention: information moves between tokens.",
        "z = w v",
        [
            Panel("w", weights, side, keys, kind="weights"),
            Panel("v", v, keys, operator="×"),
            Panel("z", mixed, side, operator="="),
        ],
    )
    joined = numbers(trace.mixed.transpose(0, 1).flatten(1))
    yield (
        "output projection",
        "output projection",
        f"The outputs of the {pluralize(heads, 'head')} are joined and projected back to the width of the model.",
        f"a = [{'z₁; …; z' + subscript(heads) if heads > 1 else 'z₁'}] W_O",
        [Panel("[z]", joined, side), Panel("a", numbers(trace.output), side, operator="→")],
    )


def feed_forward_panels(sublayer: SublayerTrace, side: str) -> tuple[str, list[Panel]]:
    assert sublayer.inner is not None
    normed = sublayer.normed is not None
    x, symbol = (sublayer.x, "x") if sublayer.normed is None else (sublayer.normed, "x̂")
    name = sublayer.activation.replace("_", " ")
    panels = [Panel(symbol, numbers(x), side), Panel("h", numbers(sublayer.inner), side, operator="→")]
    panels.append(Panel("y", numbers(sublayer.added), side, operator="→"))
    return f"h = {name}({'x̂' if normed else 'x'} W₁)   y = h W₂", panels


def residual_parts(sublayer: SublayerTrace, side: str) -> tuple[str, str, list[Panel]]:
    """Return the sentence, the equation and the panels of a residual connection."""
    symbol = "y" if sublayer.kind == "feed_forward" else "a"
    before = sublayer.sum - sublayer.added
    panels = [Panel("x", numbers(before), side), Panel(symbol, numbers(sublayer.added), side, operator="+")]
    if sublayer.norm_first:
        panels.append(Panel("x′", numbers(sublayer.sum), side, operator="="))
        sentence = "The result is added to what was there before: a layer changes the vector, and does not replace it."
        return sentence, f"x′ = x + {symbol}", panels
    panels += [Panel("x + " + symbol, numbers(sublayer.sum), side, operator="=")]
    panels += [Panel("x′", numbers(sublayer.result), side, operator="→")]
    return "The result is added to what was there before, and the sum is normalised.", f"x′ = norm(x + {symbol})", panels


def norm_panels(before: Tensor, after: Tensor, side: str) -> list[Panel]:
    return [Panel("x", numbers(before), side), Panel("x̂", numbers(after), side, operator="→")]


def norm_equation(norm: nn.Module) -> str:
    if isinstance(norm, nn.Identity):
        return "x̂ = x W"
    return "x̂ = γ x / √mean(x²)" if isinstance(norm, nn.RMSNorm) else "x̂ = γ (x − μ) / σ + β"


def numbers(x: Tensor) -> np.ndarray:
    return x.detach().float().cpu().numpy()


def subscript(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
