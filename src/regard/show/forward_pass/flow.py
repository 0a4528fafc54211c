"""The flow view: one text through a model, from the embeddings to the probabilities, as stages with the model's own numbers.

After Transformer Explainer (Cho et al. 2024), which shows GPT-2; here for any decoder, encoder or encoder–decoder of blocks.
"""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.core import repeat_kv
from regard.errors import UserError
from regard.layers.universal import UniversalStack
from regard.show.figures.architecture import architecture_figure
from regard.show.figures.flow_diagram import Candidates, ModelFlow, Panel, Stage, flow_page, flow_text
from regard.show.figures.labels import clean, shorten
from regard.show.forward_pass.forward_trace import (
    AttentionTrace,
    BlockCalls,
    ForwardTrace,
    StackTrace,
    SublayerTrace,
    trace_forward,
)
from regard.show.forward_pass.lens import has_lens, lens_labels
from regard.show.forward_pass.model_structure import describe_model
from regard.show.inline import InlineFigure
from regard.show.recording import ModelInputs, model_inputs
from regard.show.selection import ViewSelection, pluralize
from regard.show.token_choice import choose_token
from regard.tasks.base import Run
from regard.tasks.masked import MaskedRun

MAX_NUMBERS = 6_000_000
"""In a page, 12 MB of them."""
NUM_CANDIDATES = 10
ATTENTION_NAMES = {"self": "self-attention", "cross": "cross-attention", "feed_forward": "feed-forward"}
POSITION_SENTENCE = "Attention itself sees no order, so a vector that depends on the position alone is added to each token."
PROJECT_SENTENCES = {
    "self": "Each head projects every token to a query (what it looks for), a key (what it offers) and a value (what it gives).",
    "cross": "Queries come from the decoder, keys and values from the output of the encoder.",
}


def show_flow(run: Run, text: str, selection: ViewSelection) -> InlineFigure:
    """Draw one text through the model; `data` of the figure is the ModelFlow. A still image is the architecture."""
    flow = record_flow(run, text)
    title = shorten(clean(text), 90)
    head = 0 if selection.head is None else selection.head - 1
    if not 0 <= head < flow.heads:
        raise UserError(f"--head {selection.head}: the model has heads 1 to {flow.heads}")
    stage = first_stage(flow, selection)
    side = flow.stages[-1].candidates
    assert side is not None
    token = None if selection.token is None else choose_token(flow.sides[side.rows], selection.token).place
    return InlineFigure(
        f"flow: {flow.name}, {pluralize(len(flow.stages), 'stage')}",
        lambda: architecture_figure(describe_model(run.model), title=title),
        text=lambda: flow_text(flow),
        page=lambda: flow_page(flow, title=title, stage=stage, head=head, token=token),
        title=title,
        data=flow,
    )


def first_stage(flow: ModelFlow, selection: ViewSelection) -> int:
    """Return the stage at which a page opens: the first, or that of the selected layer and kind of attention."""
    if selection.layer is None and selection.kind is None:
        return 0
    for index, stage in enumerate(flow.stages):
        is_kind = (
            selection.kind is None
            or (selection.kind == "cross" and stage.sublayer == ATTENTION_NAMES["cross"])
            or (selection.kind == stage.part and stage.sublayer == ATTENTION_NAMES["self"])
        )
        if stage.layer == (selection.layer or 1) and is_kind:
            return index
    raise UserError(f"--layer {selection.layer or 1}: this model has no such layer or attention; leave out --layer and --kind")


def has_flow(run: Run) -> bool:
    """Return whether a run's model predicts tokens from blocks that are applied once each."""
    return has_lens(run) and not any(isinstance(module, UniversalStack) for module in run.model.modules())


def record_flow(run: Run, text: str) -> ModelFlow:
    """Run the model on a text, with a translator also on its own output, and return every stage."""
    if not has_flow(run):
        raise UserError(
            f"--view flow: {run.folder} {run.task.does}; the flow view is for Transformers that predict tokens: language models, "
            "masked language models and translators of this package, or Hugging Face folders of its families"
        )
    inputs = model_inputs(run, text)
    trace = trace_forward(run.model, lambda: run._forward(inputs.inputs))
    flow = build_flow(inputs, trace)
    if flow.size > MAX_NUMBERS:
        raise UserError(
            f"--view flow: {flow.size:,} numbers are too many for a page (at most {MAX_NUMBERS:,}); use a shorter text"
        )
    return flow


def build_flow(inputs: ModelInputs, trace: ForwardTrace) -> ModelFlow:
    """Return the stages of a forward pass."""
    run, heads = inputs.run, 1
    sides: dict[str, list[str]] = {}
    ids: dict[str, list[int]] = {}
    stages: list[Stage] = []
    for stack in trace.stacks:
        is_output = stack.stack is run.model.output_stack
        side = ("target" if is_output else "source") if inputs.is_encoder_decoder else "text"
        name = "target" if side == "target" or run.task.decoder_only else "source"
        tokens = inputs.tokens[side]
        assert isinstance(tokens, list)
        sides[side], ids[side] = tokens[0], inputs.inputs[name][0].tolist()
        part = "decoder" if run.task.decoder_only or side == "target" else "encoder"
        stages += stack_stages(stack, part, side, embedding_equation(run.model, side))
        heads = max(heads, *(block.block.self_attention.heads for block in stack.blocks))
    stages.append(output_stage(inputs, trace, side))
    first = trace.stacks[-1].blocks[0].block
    facts = [
        f"{sum(p.numel() for p in run.model.parameters()):,} parameters",
        pluralize(sum(len(stack.blocks) for stack in trace.stacks), "layer"),
        pluralize(first.self_attention.heads, "head"),
        f"width {trace.stacks[-1].entering.size(-1)}",
    ]
    return ModelFlow(", ".join(facts), sides, ids, stages, heads, {side: focus(inputs, side) for side in sides})


def focus(inputs: ModelInputs, side: str) -> int:
    """Return the token to look at first: the mask, the last of a prompt, else the one in the middle."""
    run, tokens = inputs.run, inputs.tokens[side]
    if run.task.explains == "masked_token":
        ids = inputs.inputs["source"][0].tolist()
        mask = cast(MaskedRun, run)._mask_id
        return ids.index(mask) if mask in ids else len(ids) // 2
    assert isinstance(tokens, list)
    return len(tokens[0]) - 1 if run.task.decoder_only else len(tokens[0]) // 2


def stack_stages(trace: StackTrace, part: str, side: str, equation: str) -> list[Stage]:
    """Return the stages of one stack: the embeddings, every layer, the final norm."""
    stages = list(embedding_stages(trace, part, side, equation))
    for layer, block in enumerate(trace.blocks, start=1):
        stages += block_stages(block, part, layer, side)
    if trace.final is not None and not isinstance(trace.stack.norm, nn.Identity):
        stages.append(
            Stage(
                part,
                None,
                "final norm",
                "final norm",
                f"After the last layer of the {part}, every vector is normalised once more.",
                norm_equation(trace.stack.norm),
                norm_panels(trace.final.given[0][0], trace.final.output[0], side),
            )
        )
    return stages


def embedding_equation(model: nn.Module, side: str) -> str:
    """Return how the model computes the embeddings of a side, before positions."""
    table: Any = getattr(model, f"{side}_embedding", None)
    settings: Any = getattr(model, "settings", None)
    is_scaled = table.scale != 1 if table is not None else getattr(settings, "scale_embedding", False)
    segments = " + S[segment]" if getattr(getattr(model, "encoder", None), "segments", None) is not None else ""
    return f"eₜ = {f'√{settings.width} · ' if is_scaled else ''}E[iₜ]{segments}"


def embedding_stages(trace: StackTrace, part: str, side: str, equation: str) -> Iterator[Stage]:
    x, stack = trace.embedded, trace.stack
    assert x is not None
    yield Stage(
        part,
        None,
        "embedding",
        "embedding",
        f"Each token is looked up in a table and becomes a vector of {x.size(-1)} numbers, the same wherever it stands.",
        equation,
        [Panel("e", numbers(x), side)],
    )
    positions = torch.arange(len(x), device=x.device)
    placed = stack.positions.embed(x[None], positions)[0]
    if not torch.equal(placed, x):
        panels = [Panel("e", numbers(x), side), Panel("p", numbers(placed - x), side, operator="+")]
        panels.append(Panel("x", numbers(placed), side, operator="="))
        yield Stage(part, None, "positions", "positions", POSITION_SENTENCE, "xₜ = eₜ + pₜ", panels)
    if not isinstance(stack.embedding_norm, nn.Identity) or not isinstance(stack.projection, nn.Identity):
        panels = [Panel("x", numbers(placed), side), Panel("x̂", numbers(trace.entering), side, operator="→")]
        sentence = "The embeddings are normalised, and projected to the width of the layers where that differs."
        yield Stage(part, None, "embedding norm", "norm of the embeddings", sentence, norm_equation(stack.embedding_norm), panels)


def block_stages(block: BlockCalls, part: str, layer: int, side: str) -> Iterator[Stage]:
    """Yield the stages of one layer: each sub-layer from its norm to its residual connection."""
    for sublayer in block.sublayers():
        name = ATTENTION_NAMES[sublayer.kind]

        def stage(key: str, title: str, sentence: str, equation: str, panels: list[Panel], name: str = name) -> Stage:
            return Stage(part, layer, key, title, sentence, equation, panels, sublayer=name)

        if sublayer.normed is not None:
            sentence = "Each vector is brought to a standard scale before the sub-layer reads it; learned factors follow."
            equation = norm_equation(sublayer.residual.norm)
            yield stage("norm", "norm", sentence, equation, norm_panels(sublayer.x, sublayer.normed, side))
        if sublayer.attention is not None:
            for key, title, sentence, equation, panels in attention_stages(sublayer, sublayer.attention, side):
                yield stage(key, title, sentence, equation, panels)
        else:
            sentence = "Every token goes, by itself, through a wider layer with a nonlinearity, and back: here tokens do not mix."
            yield stage("feed-forward", "feed-forward", sentence, *feed_forward_panels(sublayer, side))
        yield stage("residual", "residual connection", *residual_parts(sublayer, side))


AttentionStage = tuple[str, str, str, str, list[Panel]]


def attention_stages(sublayer: SublayerTrace, trace: AttentionTrace, side: str) -> Iterator[AttentionStage]:
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
    if sublayer.residual.norm_first:
        panels.append(Panel("x′", numbers(sublayer.sum), side, operator="="))
        sentence = "The result is added to what was there before: a layer changes the vector, and does not replace it."
        return sentence, f"x′ = x + {symbol}", panels
    panels += [Panel("x + " + symbol, numbers(sublayer.sum), side, operator="=")]
    panels += [Panel("x′", numbers(sublayer.result), side, operator="→")]
    return "The result is added to what was there before, and the sum is normalised.", f"x′ = norm(x + {symbol})", panels


def output_stage(inputs: ModelInputs, trace: ForwardTrace, side: str) -> Stage:
    """Return the last stage: logits and probabilities of the vocabulary."""
    logits = trace.output[0].float().cpu()  # (T, V)
    p = logits.softmax(-1)
    tokenizer = inputs.run.tokenizers[-1]
    top = []
    for position in range(len(p)):
        best = p[position].topk(min(NUM_CANDIDATES, p.size(-1))).indices.tolist()
        top.append(list(zip(tokenizer.labels(best), logits[position, best].tolist(), p[position, best].tolist())))
    final = trace.stacks[-1].final
    assert final is not None
    what = "masked token" if inputs.run.task.explains == "masked_token" else "next token"
    return Stage(
        "output",
        None,
        "probabilities",
        "probabilities",
        f"The last vector of a position is compared with every token of the vocabulary; the softmax gives the probability of "
        f"each to be the {what}.",
        f"p = softmax(x W)   W: {final.output.size(-1)} × {p.size(-1):,}",
        [Panel("x", numbers(final.output[0]), side)],
        Candidates(side, top, lens_labels(inputs)[1]),
    )


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
