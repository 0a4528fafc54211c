"""The memory that training takes: exact for what belongs to the weights, an estimate for what is kept for the backward pass.

b is the width of a number inside the layers: 4 bytes in fp32, 2 in bf16, where weights, gradients and optimiser stay in
float32. With autocast every Linear keeps its own copy of its input; in fp32 those that read the same vector share it.
Kept a position, with D, H, G, K, J, F as in the layers (G the heads of keys and values):

    residual, norm      4D (twice that for RMS norm on a CPU), and a mask of D bytes with dropout
    attention           its inputs; b · (H·K + G·K + G·J + H·J); 4H; and a mask of H·S bytes with dropout on the weights
    score biases        b · H · S, for ALiBi and relative positions in self-attention
    the end             4D for what the encoder hands on in fp32, b · D for the input of the output
    feed-forward        its input; b · F for ReLU, 2b · F for GELU, 3b · F for its quick form, 4b · F for SwiGLU; and b · F + F
                        with dropout
    patches             their pixels
    convolutions        their input; of the choice of a code, four numbers for each code of the book (neither is checked)
    recurrent cells     their input; b · (gates + 2) · h for each direction: gates, state and what is passed on (not checked)
    logits              b · V, 4V (the copy in float32, in bf16), 4V (log-probabilities), 4V (their gradient); R-Drop: 12V more;
                        of pairs, all of the batch instead of V, for both sides

On tiny models these sums are within 4% of what autograd keeps (tests/test_plan.py). An allocator's reserve, the kernels'
workspace and the batch itself come on top.
"""

from torch import nn

from regard.attention.multihead import MultiHeadAttention
from regard.attention.positions import AlibiPositions, RelativePositions
from regard.layers.feed_forward import FeedForward
from regard.layers.norm import Residual
from regard.layers.stack import Stack
from regard.models.dvae import Dvae
from regard.plan.flops import GATES, sequence_length
from regard.recipe import Training


def training_memory(model: nn.Module, train: Training, precision: str, source: int, target: int) -> dict[str, int]:
    """Bytes by purpose, for the recipe's batches made of examples of these lengths."""
    parameters = dict(model.named_parameters())
    count = sum(p.numel() for p in parameters.values())
    hidden = sum(p.numel() for name, p in parameters.items() if ".blocks." in name and p.dim() == 2)
    muon = hidden if train.optimizer.kind == "muon" else 0
    bf16 = precision == "bf16"
    passes = 2 if train.regularize.r_drop else 1
    sentences = passes * train.budget(max(source, target)) / max(source, target)
    kept = {
        "parameters": 4 * count,
        "gradients": 4 * count,
        "optimiser": 4 * (2 * (count - muon) + muon),  # Adam two moments, Muon one
        "moving average": 4 * count if train.ema_decay else 0,
        "bf16 weights": 2 * sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear)) if bf16 else 0,
        "activations": round(sentences * activation_bytes(model, source, target, bf16)),
        "logits": round(sentences * output_bytes(model, target, round(sentences), bf16, r_drop=passes == 2)),
    }
    return {name: size for name, size in kept.items() if size}


def activation_bytes(model: nn.Module, source: int, target: int, bf16: bool) -> int:
    """Bytes kept for the backward pass of one sentence pair, logits apart."""
    b = 2 if bf16 else 4
    return sum(saved_bytes(module, name, source, target, b) for name, module in model.named_modules())


def saved_bytes(module: nn.Module, name: str, source: int, target: int, b: int) -> int:
    rows = sequence_length(name, source, target)
    if isinstance(module, Residual):
        assert isinstance(module.norm, nn.LayerNorm | nn.RMSNorm | nn.BatchNorm1d)
        width = module.norm.weight.numel()
        return rows * width * (4 + (module.dropout.p > 0) + b * (module.scale is not None))
    if isinstance(module, FeedForward):
        width, inner = module.inner.in_features, module.inner.out_features
        gated, dropped = module.gate is not None, module.dropout.p > 0
        copies = 4 if gated else {"gelu": 2, "quick_gelu": 3}.get(module.activation, 1)
        return rows * (b * width * (2 if gated and b == 2 else 1) + b * inner * copies + (b + 1) * inner * dropped)
    if isinstance(module, MultiHeadAttention):
        cross = name.endswith("cross_attention")
        keys = source if cross else rows
        queried, looked_at = module.q_proj.in_features, module.k_proj.in_features
        inputs = b * rows * queried + (2 * b * keys * looked_at if b == 2 else 0)
        asked = module.q_proj.out_features + module.out_proj.in_features  # H·K + H·J
        answering = module.k_proj.out_features + module.v_proj.out_features  # G·K + G·J
        mask = rows * keys * module.heads if module.attend.dropout > 0 else 0
        return inputs + b * (rows * asked + keys * answering) + 4 * rows * module.heads + mask
    if isinstance(module, Stack):
        heads = sum(block.self_attention.heads for block in module.blocks)  # type: ignore[union-attr, misc]
        bias = b * rows * rows * heads if isinstance(module.positions, AlibiPositions | RelativePositions) else 0
        normed = not isinstance(module.norm, nn.Identity)
        ends = 4 * module.width * (normed + (b == 4 and name == "encoder"))
        dropped = any(isinstance(part, nn.Dropout) and part.p > 0 for part in module.dropout.modules())
        return bias + rows * (ends + module.width * dropped)
    if isinstance(module, nn.Conv2d):
        if not module.weight.requires_grad:
            return 0
        rows, columns = module.grid  # type: ignore[misc]
        return b * int(rows) * int(columns) * module.in_channels * module.stride[0] * module.stride[1]
    if isinstance(module, nn.Conv1d):  # and what its gates are of
        return b * rows * (module.in_channels + module.out_channels)
    if isinstance(module, nn.RNNBase):
        directions = 2 if module.bidirectional else 1
        return b * rows * (module.input_size + directions * (GATES[type(module)] + 2) * module.hidden_size)
    return b * rows * module.in_features if isinstance(module, nn.Linear) and name == "output" else 0


def output_bytes(model: nn.Module, target: int, batch: int, bf16: bool, r_drop: bool) -> int:
    """Bytes of what is said of one example: of every position, of the whole, or, of a pair, of all in the batch, both ways."""
    if isinstance(model, Dvae):
        return target * 16 * model.settings.codebook_size
    output = getattr(model, "output", None)
    if output is None:
        return 2 * logits_bytes(batch, bf16=False)
    said = 1 if "output" in getattr(model, "once_per_example", ()) else target * getattr(model, "outputs_per_token", 1)
    return said * logits_bytes(output.out_features, bf16, r_drop)


def logits_bytes(vocabulary: int, bf16: bool, r_drop: bool = False) -> int:
    """Bytes a target position."""
    return vocabulary * ((2 + 4 if bf16 else 4) + 4 + 4 + (12 if r_drop else 0))
