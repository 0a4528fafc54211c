"""What a decode step without Python would gain: the greedy search of cpu_decoding.py's base Transformer in TorchScript, int8.

    python benchmarks/cpu_scripted_step.py [--rounds 9] [--threads 2]

The scripted search holds no lock and makes no Python object. It is written for this one shape (post-norm, sinusoidal positions,
no padding, no end token), and gives the tokens of our own search. The encoder is our own in both.
"""

import torch
import torch.nn.functional as F
from cpu_decoding import LENGTH, SENTENCES, SPECIAL_TOKENS, VOCABULARY, build
from harness import MismatchError, parse_args, report, time_alternating
from peers import NumberedVocabulary, to_ctranslate2
from torch import Tensor, nn

from regard.decoding.batching import SearchParams, decode_all, single_threaded_pool, text_sources
from regard.layers.block import Block
from regard.layers.quantized import LARGE_BATCH_ENGINE, SMALL_BATCH_ENGINE, Int8Projection, convert_precision
from regard.models.transformer import Transformer
from regard.run.engines import CTranslate2Engine
from regard.tokens.special_tokens import BOS

WIDTH = 512


class PackedLinear(nn.Module):
    """W x + b in int8; several layers with the same input are one."""

    def __init__(self, *layers: nn.Linear, engine: str = SMALL_BATCH_ENGINE):
        super().__init__()
        weight, bias = (torch.cat([getattr(layer, name).detach() for layer in layers]) for name in ("weight", "bias"))
        projection = Int8Projection(weight, bias)
        projection._prepack(engine)
        self.packed = projection.prepacked[engine]

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic(x, self.packed, False)


class ScriptedBlock(nn.Module):
    def __init__(self, block: Block):
        super().__init__()
        own, cross, wide = block.self_attention, block.cross_attention, block.feed_forward
        self.qkv, self.out = PackedLinear(own.q_proj, own.k_proj, own.v_proj), PackedLinear(own.out_proj)
        self.cross_q, self.cross_out = PackedLinear(cross.q_proj), PackedLinear(cross.out_proj)
        self.inner, self.outer = PackedLinear(wide.inner), PackedLinear(wide.outer)
        self.norm1, self.norm2 = block.self_residual.norm, block.cross_residual.norm
        self.norm3 = block.feed_forward_residual.norm

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, t: int, source_keys: Tensor, source_values: Tensor) -> Tensor:
        rows = x.size(0)
        qkv = self.qkv(x).view(rows, 3, 8, 64)
        keys.select(2, t).copy_(qkv.select(1, 1))
        values.select(2, t).copy_(qkv.select(1, 2))
        q = qkv.select(1, 0).unsqueeze(2)  # (B, H, 1, K)
        mixed = F.scaled_dot_product_attention(q, keys.narrow(2, 0, t + 1), values.narrow(2, 0, t + 1))
        x = self.norm1(x + self.out(mixed.reshape(rows, 512)))
        mixed = F.scaled_dot_product_attention(self.cross_q(x).view(rows, 8, 1, 64), source_keys, source_values)
        x = self.norm2(x + self.cross_out(mixed.reshape(rows, 512)))
        return self.norm3(x + self.outer(torch.relu_(self.inner(x))))


class ScriptedGreedy(nn.Module):
    def __init__(self, model: Transformer):
        super().__init__()
        self.blocks = nn.ModuleList([ScriptedBlock(block) for block in model.decoder.layers()])
        (table,) = [buffer for buffer in model.decoder.buffers() if buffer.dim() == 2]
        self.register_buffer("positions", table)
        self.register_buffer("embedding", model.target_embedding.table.weight.detach() * WIDTH**0.5)
        self.output = PackedLinear(model.output, engine=LARGE_BATCH_ENGINE)

    def forward(self, source_keys: list[Tensor], source_values: list[Tensor], steps: int, begin: int) -> Tensor:
        rows = source_keys[0].size(0)
        keys = [torch.zeros(rows, 8, steps, 64) for _ in source_keys]
        values = [torch.zeros(rows, 8, steps, 64) for _ in source_keys]
        tokens = [torch.full((rows,), begin)]
        for t in range(steps):
            x = F.embedding(tokens[-1], self.embedding) + self.positions[t]
            for i, block in enumerate(self.blocks):
                x = block(x, keys[i], values[i], t, source_keys[i], source_values[i])
            tokens.append(self.output(x).argmax(-1))
        return torch.stack(tokens[1:], 1)


@torch.inference_mode()
def main() -> None:
    args = parse_args(__doc__, rounds=9, threads=2)
    torch.set_num_threads(args.threads)
    model = build()
    int8, scripted = convert_precision(model, "int8"), torch.jit.script(ScriptedGreedy(model).eval())
    source, lengths = torch.randint(4, VOCABULARY, (SENTENCES, LENGTH)), torch.full((SENTENCES,), LENGTH)
    rows, cpu = source.tolist(), torch.device("cpu")
    params = SearchParams(beam=1, length_penalty=0.6, batch_tokens=8192, max_tokens=LENGTH - 1)

    def ours():
        inputs = text_sources(rows, device=cpu, max_length=LENGTH, max_tokens=LENGTH - 1, special_tokens=SPECIAL_TOKENS)
        return decode_all(int8, inputs, params, device=cpu, special_tokens=SPECIAL_TOKENS, workers=args.threads)

    def search_part(part: Tensor) -> Tensor:
        with torch.inference_mode():
            encoded = int8.encode(source[part], lengths[part])
            return scripted([kv.keys for kv in encoded], [kv.values for kv in encoded], LENGTH, BOS)

    def without_python():
        with single_threaded_pool(args.threads) as pool:
            return torch.cat(list(pool.map(search_part, torch.arange(SENTENCES).chunk(args.threads))))

    expected = torch.tensor([found[0].tokens for found in ours()])
    same = (without_python()[:, : LENGTH - 1] == expected).float().mean().item()
    if same < 0.95:
        raise MismatchError(f"only {same:.0%} of the tokens are those of our search; no result")
    with to_ctranslate2(model, VOCABULARY) as folder:
        ctranslate2 = CTranslate2Engine(folder, [NumberedVocabulary(VOCABULARY, SPECIAL_TOKENS)] * 2)  # type: ignore[list-item]
        engines = {
            "regard int8": ours,
            "the same search without Python": without_python,
            "CTranslate2 int8": lambda: ctranslate2.decode(rows, params, LENGTH),
        }
        report(
            f"base, {SENTENCES} × {LENGTH} tokens, greedy",
            time_alternating(engines, args.rounds),
            amount=SENTENCES * LENGTH,
            unit="tokens per second",
            against=["CTranslate2 int8", "regard int8"],
            agreement=f"{same:.0%} of the tokens",
            threads=args.threads,
        )


if __name__ == "__main__":
    main()
