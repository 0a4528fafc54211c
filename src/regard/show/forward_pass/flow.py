"""The flow view: one text through a model, from the embeddings to the probabilities, as stages with the model's own numbers.

After Transformer Explainer (Cho et al. 2024), which shows GPT-2; here for any decoder, encoder or encoder–decoder of blocks.
"""

from typing import cast

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.show.figures.architecture import architecture_figure
from regard.show.figures.flow_diagram import Candidates, ModelFlow, Panel, Stage, flow_page, flow_text
from regard.show.figures.labels import clean, shorten
from regard.show.forward_pass.flow_stages import (
    ATTENTION_NAMES,
    block_stages,
    embedding_equation,
    embedding_norm_stage,
    embedding_stage,
    final_norm_stage,
    numbers,
    position_stage,
    stack_stages,
)
from regard.show.forward_pass.forward_trace import (
    ForwardTrace,
    trace_forward,
)
from regard.show.forward_pass.lens import has_lens, lens_labels
from regard.show.forward_pass.model_structure import describe_model
from regard.show.forward_pass.transformers_trace import trace_transformers
from regard.show.inline import InlineFigure
from regard.show.recording import ModelInputs, model_inputs
from regard.show.selection import ViewSelection, pluralize
from regard.show.token_choice import choose_token
from regard.tasks.base import Run
from regard.tasks.masked import MaskedRun
from regard.tasks.transformers_models import TransformersRun

MAX_NUMBERS = 6_000_000
"""In a page, 12 MB of them."""
NUM_CANDIDATES = 10


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
    """Return whether a run's model predicts tokens from the output of blocks; of transformers' models, decoders and encoders."""
    return has_lens(run) and not (isinstance(run, TransformersRun) and run.task.encoder_decoder)


def record_flow(run: Run, text: str) -> ModelFlow:
    """Run the model on a text, with a translator also on its own output, and return every stage."""
    if not has_flow(run):
        raise UserError(
            f"--view flow: {run.folder} {run.task.does}; the flow view is for Transformers that predict tokens: language models, "
            "masked language models, and translators that regard opens without transformers"
        )
    inputs = model_inputs(run, text)
    if isinstance(run, TransformersRun):
        flow = transformers_flow(run, inputs)
    else:
        flow = build_flow(inputs, trace_forward(run.model, lambda: run._forward(inputs.inputs)))
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
    final = trace.stacks[-1].final
    assert final is not None
    stages.append(output_stage(inputs, trace.output[0], final.output[0], side))
    first = trace.stacks[-1].blocks[0].block
    layers = sum(len(stack.blocks) for stack in trace.stacks)
    name = model_name(run.model, layers, first.self_attention.heads, trace.stacks[-1].entering.size(-1))
    return ModelFlow(name, sides, ids, stages, heads, {side: focus(inputs, side) for side in sides})


def model_name(model: nn.Module, layers: int, heads: int, width: int) -> str:
    """Return the size of a model in words."""
    parameters = f"{sum(p.numel() for p in model.parameters()):,} parameters"
    return ", ".join([parameters, pluralize(layers, "layer"), pluralize(heads, "head"), f"width {width}"])


def transformers_flow(run: TransformersRun, inputs: ModelInputs) -> ModelFlow:
    """Return the stages of a decoder or encoder that transformers runs."""
    trace, side = trace_transformers(run, inputs.inputs), "text"
    part = "decoder" if run.task.decoder_only else "encoder"
    stages = [embedding_stage(trace.embedded, part, side, "eₜ = E[iₜ]")]
    if not torch.equal(trace.placed, trace.embedded):
        stages.append(position_stage(trace.embedded, trace.placed, part, side))
    if trace.embedding_norm is not None:
        stages.append(embedding_norm_stage(trace.embedding_norm, trace.placed, trace.entering, part, side))
    for layer, sublayers in enumerate(trace.layers, start=1):
        stages += block_stages(sublayers, part, layer, side)
    if trace.final_norm is not None:
        stages.append(final_norm_stage(trace.final_norm, trace.leaving, trace.final, part, side))
    stages.append(output_stage(inputs, trace.logits, trace.final, side))
    tokens = inputs.tokens[side]
    assert isinstance(tokens, list)
    attention = trace.layers[0][0].attention
    assert attention is not None
    heads = attention.q.size(0)
    name = model_name(run.model, len(trace.layers), heads, trace.entering.size(-1))
    return ModelFlow(name, {side: tokens[0]}, {side: trace.ids}, stages, heads, {side: focus(inputs, side)})


def focus(inputs: ModelInputs, side: str) -> int:
    """Return the token to look at first: the mask, the last of a prompt, else the one in the middle."""
    run, tokens = inputs.run, inputs.tokens[side]
    if run.task.explains == "masked_token":
        foreign = isinstance(run, TransformersRun)
        ids = inputs.inputs["input_ids" if foreign else "source"][0].tolist()
        mask = run._parts.tokenizer.mask_token_id if isinstance(run, TransformersRun) else cast(MaskedRun, run)._mask_id
        return ids.index(mask) if mask in ids else len(ids) // 2
    assert isinstance(tokens, list)
    return len(tokens[0]) - 1 if run.task.decoder_only else len(tokens[0]) // 2


def output_stage(inputs: ModelInputs, logits: Tensor, final: Tensor, side: str) -> Stage:
    """Return the last stage: logits (T, V) and probabilities of the vocabulary, from the last states (T, D)."""
    logits = logits.float().cpu()
    p = logits.softmax(-1)
    tokenizer = inputs.run.tokenizers[-1]
    top = []
    for position in range(len(p)):
        best = p[position].topk(min(NUM_CANDIDATES, p.size(-1))).indices.tolist()
        top.append(list(zip(tokenizer.labels(best), logits[position, best].tolist(), p[position, best].tolist())))
    what = "masked token" if inputs.run.task.explains == "masked_token" else "next token"
    return Stage(
        "output",
        None,
        "probabilities",
        "probabilities",
        f"The last vector of a position is compared with every token of the vocabulary; the softmax gives the probability of "
        f"each to be the {what}.",
        f"p = softmax(x W)   W: {final.size(-1)} × {p.size(-1):,}",
        [Panel("x", numbers(final), side)],
        Candidates(side, top, lens_labels(inputs)[1]),
    )
