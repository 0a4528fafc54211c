"""Decode on one GPU in bf16: regard with CUDA graphs, and `transformers`.

    python benchmarks/gpu_decoding.py base|gpt2|bert [--rounds 5] [--rows 64] [--alone] [--profile]

`base`: the base Transformer (vocabulary 32,000) generates 25 tokens for each of `rows` sentences of 25, beam 4. `gpt2`: GPT-2
124M reads 128 tokens and generates 256, greedily; the peer uses a static cache. `bert`: BERT-base encodes `rows` texts of 512
tokens; the peer uses sdpa. Both sides have the same random weights; bf16 logits must agree within 0.2. `--alone` leaves the
peer out; `--profile` also prints the kernels of one search, by their total time.
"""

from collections.abc import Callable
from typing import Any

import torch
from harness import parse_args, report, require_close, time_alternating
from peers import to_transformers

from regard.decoding.beam import beam_search
from regard.decoding.greedy import greedy_or_sample
from regard.layers.quantized import convert_precision
from regard.models.bert import TextEmbedder
from regard.models.gpt import Gpt
from regard.models.transformer import Transformer
from regard.recipe import DecoderModel, EncoderModel, PositionSettings, TransformerModel
from regard.tokens.special_tokens import BOS, EOS, NO_TOKEN, PAD, SpecialTokens

CUDA = torch.device("cuda")
TOLERANCE = 0.2  # each side's logits in bf16 are within 0.1 of those in fp32
LENGTH = 25
NO_SPECIAL_TOKENS = SpecialTokens(bos=NO_TOKEN, eos=NO_TOKEN, prefix=(), suffix=(), suppressed=())
Engines = dict[str, Callable[[], Any]]


def base(rows: int, alone: bool) -> tuple[Engines, str, int]:
    settings = TransformerModel(preset="base", output_bias=True, max_length=128, positions=PositionSettings(sines_first=True))
    model = Transformer(settings, 32_000, 32_000).to(CUDA).eval()
    with torch.no_grad():
        model.output.weight *= 2  # peaked distributions, as in trained models
        model.output.bias.zero_()
        model.output.bias[[EOS, PAD, BOS]] = -1e4
    source, lengths = torch.randint(4, 32_000, (rows, LENGTH), device=CUDA), torch.full((rows,), LENGTH, device=CUDA)
    limits, ours = torch.full((rows,), LENGTH + 1, device=CUDA), convert_precision(model, "bf16")
    engines: Engines = {"regard": lambda: beam_search(ours, (source, lengths), limits, beam=4, alpha=0.6)}
    assert all(len(found[0].tokens) == LENGTH for found in engines["regard"]())
    agreement = "alone"
    if not alone:
        peer = to_transformers(model, "translate", 32_000).to(CUDA, torch.bfloat16)
        agreement = require_close(
            ours(source, lengths, source), peer(input_ids=source, decoder_input_ids=source).logits, TOLERANCE, "logits in bf16"
        )
        engines["transformers"] = lambda: peer.generate(
            input_ids=source,
            attention_mask=torch.ones_like(source),
            num_beams=4,
            do_sample=False,
            max_new_tokens=LENGTH,
            min_new_tokens=LENGTH,
        ).cpu()
    return engines, agreement, rows * LENGTH


def gpt2(rows: int, alone: bool) -> tuple[Engines, str, int]:
    model = Gpt(DecoderModel(kind="transformer", preset="gpt2"), 50_257).to(CUDA).eval()
    prompt, limits = torch.randint(50_257, (rows, 128), device=CUDA), torch.full((rows,), 257, device=CUDA)
    ours = convert_precision(model, "bf16")
    engines: Engines = {"regard": lambda: greedy_or_sample(ours, None, limits, prefix=prompt, special_tokens=NO_SPECIAL_TOKENS)}
    assert all(len(found.tokens) == 256 for found in engines["regard"]())
    agreement = "alone"
    if not alone:
        peer = to_transformers(model, "language", 50_257, NO_SPECIAL_TOKENS).to(CUDA, torch.bfloat16)
        agreement = require_close(ours(prompt), peer(input_ids=prompt).logits, TOLERANCE, "logits in bf16")
        engines["transformers"] = lambda: peer.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=256,
            min_new_tokens=256,
            pad_token_id=0,
            eos_token_id=None,
            cache_implementation="static",
        ).cpu()
    return engines, agreement, rows * 256


def bert(rows: int, alone: bool) -> tuple[Engines, str, int]:
    model = TextEmbedder(EncoderModel(kind="transformer", preset="bert-base"), 30_522).to(CUDA).eval()
    ids, lengths = torch.randint(5, 30_522, (rows, 512), device=CUDA), torch.full((rows,), 512, device=CUDA)
    ours = convert_precision(model, "bf16")
    compiled = torch.compile(ours)
    engines: Engines = {
        "regard": lambda: (compiled(ids, lengths), torch.cuda.synchronize()),
        "regard, not compiled": lambda: (ours(ids, lengths), torch.cuda.synchronize()),
    }
    peer = to_transformers(model, "encode", 30_522, attn_implementation="sdpa").to(CUDA, torch.bfloat16)
    attention_mask = torch.ones_like(ids)
    expected = peer(input_ids=ids, attention_mask=attention_mask).last_hidden_state
    agreement = require_close(ours(ids, lengths), expected, TOLERANCE, "vectors in bf16")
    engines["transformers"] = lambda: (peer(input_ids=ids, attention_mask=attention_mask), torch.cuda.synchronize())
    return engines, agreement, rows * 512


def print_kernels(work: Callable[[], Any], most: int = 40) -> None:
    """Print the kernels of one run: how often, and how many microseconds in all."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    kernels = sorted(profile.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    total, number = sum(kernel.self_device_time_total for kernel in kernels), sum(kernel.count for kernel in kernels)
    print(f"{total:10.0f} {number:7d}  all: microseconds, calls")
    for kernel in kernels[:most]:
        print(f"{kernel.self_device_time_total:10.0f} {kernel.count:7d}  {kernel.key[:110]}")


@torch.inference_mode()
def main() -> None:
    args = parse_args(__doc__, work=("base", "gpt2", "bert"), rounds=5, rows=64, alone=False, profile=False)
    torch.manual_seed(1)
    engines, agreement, amount = {"base": base, "gpt2": gpt2, "bert": bert}[args.work](args.rows, args.alone)
    for _ in range(3):  # warm-up, then the CUDA graphs are captured
        engines["regard"]()
    report(
        f"{args.work}, {args.rows} rows",
        time_alternating(engines, args.rounds),
        amount=amount,
        unit="tokens per second",
        against=["transformers"],
        agreement=agreement,
    )
    if args.profile:
        print_kernels(engines["regard"])


if __name__ == "__main__":
    main()
