"""Training memory: exact for model states (weights, gradients, optimiser), estimated for activations saved for the backward pass.

b is the size of a number inside the layers: 4 bytes in fp32, 2 in bf16, where weights, gradients and optimiser states stay in
float32. With autocast every Linear saves its own copy of its input; in fp32 those that read the same tensor share it.
Bytes saved per position, with D, H, K as in the layers, G the key–value heads, J the value width, F the feed-forward width:

    residual, norm      4D (twice that for RMS norm on a CPU), and a mask of D bytes with dropout
    attention           its inputs; b · (H·K + G·K + G·J + H·J); 4H; and a mask of H·S bytes with dropout on the weights
    score biases        b · H · S, for ALiBi and relative positions in self-attention
    stack output        4D for the encoder output in fp32, b · D for the input of the output layer
    feed-forward        its input; b · F for ReLU, 2b · F for GELU, 3b · F for quick GELU, 4b · F for SwiGLU; and b · F + F
                        with dropout
    patches             their pixels
    convolutions        their input; their output too if a batch norm follows in a residual stem; for the choice of a code, four
                        numbers per code of the codebook (not verified)
    recurrent cells     their input; b · (gates + 2) · h per direction: gates, state and output (not verified)
    logits              b · V, 4V (float32 copy, in bf16), 4V (log-probabilities), 4V (their gradient); R-Drop: 12V more;
                        contrastive models: the batch size instead of V, for both directions

On tiny models these sums are within 4% of what autograd saves (tests/plan/test_plan.py). The allocator's reserve, kernel
workspaces and the batch itself come on top.
"""

from torch import nn

from regard.attention.multihead import MultiHeadAttention
from regard.attention.positions import AlibiPositions, RelativePositions
from regard.layers.convolution import BatchNormConv2d
from regard.layers.feed_forward import FeedForward
from regard.layers.norm import Residual
from regard.layers.stack import Stack
from regard.models.dvae import Dvae
from regard.plan.flops import GATES, sequence_length
from regard.recipe import Training
from regard.training.optimizer import is_hidden_matrix


def training_memory(model: nn.Module, train: Training, precision: str, source: int, target: int) -> dict[str, int]:
    """Return bytes by purpose, for batches of examples of these lengths."""
    parameters = dict(model.named_parameters())
    count = sum(p.numel() for p in parameters.values())
    hidden = sum(p.numel() for name, p in parameters.items() if is_hidden_matrix(name, p))
    muon = hidden if train.optimizer.kind == "muon" else 0
    bf16 = precision == "bf16"
    passes = 2 if train.regularize.r_drop else 1
    examples = passes * train.budget(max(source, target)) / max(source, target)
    memory = {
        "parameters": 4 * count,
        "gradients": 4 * count,
        "optimiser": 4 * (2 * (count - muon) + muon),  # two moments for Adam, one for Muon
        "moving average": 4 * count if train.ema_decay else 0,
        "bf16 weights": 2 * sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear)) if bf16 else 0,
        "activations": round(examples * activation_bytes(model, source, target, bf16)),
        "logits": round(examples * _output_bytes(model, target, round(examples), bf16, r_drop=passes == 2)),
    }
    return {name: size for name, size in memory.items() if size}


def activation_bytes(model: nn.Module, source: int, target: int, bf16: bool) -> int:
    """Return the bytes saved for the backward pass of one example, without the logits."""
    b = 2 if bf16 else 4
    return sum(_saved_bytes(module, name, source, target, b) for name, module in model.named_modules(remove_duplicate=False))


def _saved_bytes(module: nn.Module, name: str, source: int, target: int, b: int) -> int:
    """Return the bytes that one module saves, without its submodules."""
    positions = sequence_length(name, source, target)
    if isinstance(module, Residual):
        if isinstance(module.norm, nn.Identity):  # the first of ModernBERT, whose input the embeddings' norm has saved
            return 0
        assert isinstance(module.norm, nn.LayerNorm | nn.RMSNorm | nn.BatchNorm1d)
        width = module.norm.weight.numel()
        norms = 2 if isinstance(module.output_norm, nn.RMSNorm | nn.LayerNorm) else 1
        return positions * width * (4 * norms + (module.dropout.p > 0) + b * (module.scale is not None))
    if isinstance(module, FeedForward):
        width, inner = module.inner.in_features, module.inner.out_features
        gated, dropout = module.gate is not None, module.dropout.p > 0
        copies = 4 if gated else {"gelu": 2, "quick_gelu": 3}.get(module.activation, 1)
        return positions * (b * width * (2 if gated and b == 2 else 1) + b * inner * copies + (b + 1) * inner * dropout)
    if isinstance(module, MultiHeadAttention):
        keys = source if name.endswith("cross_attention") else positions
        inputs = b * positions * module.q_proj.in_features + (2 * b * keys * module.k_proj.in_features if b == 2 else 0)
        query_side = module.q_proj.out_features + module.out_proj.in_features  # H·K + H·J
        key_side = module.k_proj.out_features + module.v_proj.out_features  # G·K + G·J
        mask = positions * keys * module.heads if module.attend.dropout > 0 else 0
        return inputs + b * (positions * query_side + keys * key_side) + 4 * positions * module.heads + mask
    if isinstance(module, Stack):
        heads = sum(block.self_attention.heads for block in module.blocks)  # type: ignore[union-attr, misc]
        bias = b * positions * positions * heads if isinstance(module.positions, AlibiPositions | RelativePositions) else 0
        normed = not isinstance(module.norm, nn.Identity)
        output = 4 * module.width * (normed + (b == 4 and name == "encoder"))
        dropout = any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in module.dropout.modules())
        return bias + positions * (output + module.width * dropout)
    if isinstance(module, nn.Conv2d):
        if not module.weight.requires_grad:
            return 0
        rows, columns = module.grid  # type: ignore[misc]
        output = module.out_channels if isinstance(module, BatchNormConv2d) else 0
        return b * int(rows) * int(columns) * (module.in_channels * module.stride[0] * module.stride[1] + output)
    if isinstance(module, nn.Conv1d):  # its input, and the input of its gates
        return b * positions * (module.in_channels + module.out_channels)
    if isinstance(module, nn.RNNBase):
        directions, gates = 2 if module.bidirectional else 1, GATES[type(module).__name__.lower()]
        return b * positions * (module.input_size + directions * (gates + 2) * module.hidden_size)
    return b * positions * module.in_features if isinstance(module, nn.Linear) and name == "output" else 0


def _output_bytes(model: nn.Module, target: int, batch: int, bf16: bool, r_drop: bool) -> int:
    """Return the bytes of one example's logits: per position, per example, or over the batch for contrastive models."""
    if isinstance(model, Dvae):
        return target * 16 * model.settings.codebook_size
    output = getattr(model, "output", None)
    if output is None:
        return 2 * _logits_bytes(batch, bf16=False)
    positions = 1 if "output" in getattr(model, "once_per_example", ()) else target * getattr(model, "outputs_per_token", 1)
    return positions * _logits_bytes(output.out_features, bf16, r_drop)


def _logits_bytes(vocabulary: int, bf16: bool, r_drop: bool = False) -> int:
    """Return the bytes of the logits of one position."""
    return vocabulary * ((2 + 4 if bf16 else 4) + 4 + 4 + (12 if r_drop else 0))
