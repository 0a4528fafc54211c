"""The structure of a model, read from its modules, for the diagram of its architecture."""

from torch import nn

from regard.attention.multihead import MultiHeadAttention
from regard.errors import UserError
from regard.layers.block import Block
from regard.layers.stack import Stack
from regard.show.figures.architecture import Box, ModelDiagram, StackDiagram, architecture_figure
from regard.show.inline import InlineFigure
from regard.show.selection import pluralize
from regard.tasks.base import Run

POSITIONS = {
    "SinusoidalPositions": "sinusoidal positions, added",
    "LearnedPositions": "learned positions, added",
    "RotaryPositions": "rotary positions, in q and k",
    "AlibiPositions": "ALiBi, a bias of the scores",
    "RelativePositions": "relative positions, a bias of the scores",
    "PositionEncoding": "no positions",
}


def show_architecture(run: Run) -> InlineFigure:
    """Draw the architecture of a run's model, from its own modules."""
    diagram = describe_model(run.model, run.task.does)
    title = f"{type(run.model).__name__}, {run.folder.name}"
    return InlineFigure(f"{title}: {diagram.facts}", lambda: architecture_figure(diagram, title=title), title=title, data=diagram)


def describe_model(model: nn.Module, does: str = "") -> ModelDiagram:
    """Return the stacks of a model, with the shapes of their weights."""
    stacks = [(name, module) for name, module in model.named_modules() if isinstance(module, Stack)]
    if not stacks:
        raise UserError(f"{type(model).__name__} has no stack of Transformer blocks to draw")
    parameters = f"{sum(p.numel() for p in model.parameters()):,} parameters"
    return ModelDiagram(
        [describe_stack(model, name, stack, is_last=stack is stacks[-1][1]) for name, stack in stacks],
        "probabilities" if hasattr(model, "output_stack") else does,
        parameters,
    )


def describe_stack(model: nn.Module, name: str, stack: Stack, *, is_last: bool) -> StackDiagram:
    first = next(stack.layers())
    is_decoder = name.startswith("decoder")
    table = embedding_table(model, is_decoder)
    below = []
    if table is None:
        reads = "patches of the image"
        below.append(Box("embedding", "patch embedding", f"width {first.self_attention.q_proj.in_features}"))
    else:
        reads = "target tokens" if is_decoder and hasattr(first, "cross_attention") else "tokens"
        below.append(Box("embedding", "token embedding", f"{table.num_embeddings:,} × {table.embedding_dim}"))
    below.append(Box("embedding", POSITIONS.get(type(stack.positions).__name__, "positions, added")))
    if not isinstance(stack.embedding_norm, nn.Identity):
        below.append(Box("norm", "norm"))
    above = [] if isinstance(stack.norm, nn.Identity) else [Box("norm", "norm")]
    output = getattr(model, "output", None)
    if is_last and isinstance(output, nn.Linear):
        tied = table is not None and output.weight is table.weight
        shape = f"{output.in_features} × {output.out_features:,}" + (", tied to the embedding" if tied else "")
        above.append(Box("output", "output layer and softmax", shape))
    kind = "decoder" if is_decoder else "encoder"
    return StackDiagram(kind, reads, below, describe_block(first), len(stack.blocks), first.self_residual.norm_first, above)


def describe_block(block: Block) -> list[Box]:
    found = [Box("self", "self-attention", describe_attention(block.self_attention))]
    if hasattr(block, "cross_attention"):
        found.append(Box("cross", "cross-attention", describe_attention(block.cross_attention)))
    layer = block.feed_forward
    shape = f"{layer.inner.in_features} → {layer.inner.out_features} → {layer.outer.out_features}, {layer.activation}"
    return [*found, Box("feed_forward", "feed-forward", shape.replace("_", " "))]


def describe_attention(attention: MultiHeadAttention) -> str:
    width = attention.q_proj.out_features // attention.heads
    shared = f" on {attention.kv_heads} keys" if attention.kv_heads != attention.heads else ""
    return f"{pluralize(attention.heads, 'head')}{shared} of width {width}"


def embedding_table(model: nn.Module, is_decoder: bool) -> nn.Embedding | None:
    """Return the table of the tokens that a stack reads; None where it reads an image."""
    names = ("target_embedding", "token_embedding") if is_decoder else ("source_embedding", "token_embedding")
    found = next((getattr(model, name) for name in names if hasattr(model, name)), None)
    table = getattr(found, "table", found)
    return table if isinstance(table, nn.Embedding) else None
