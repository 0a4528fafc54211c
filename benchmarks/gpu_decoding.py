"""Translations and texts written on one GPU in bf16: ours, recorded, beside `transformers`.

    python benchmarks/gpu_decoding.py base|gpt2|bert [--rounds 5] [--rows 64] [--alone]

`base`: the base Transformer (32,000 words) says 25 tokens of each of `rows` sentences of 25, beam 4. `gpt2`: GPT-2 124M reads 128
tokens and writes 256, the likeliest each time; the peer with a static cache. `bert`: BERT-base reads `rows` texts of 512 tokens;
the peer with sdpa. The same random weights on both sides; logits have to agree to a tenth, being in bf16 both.
"""

from collections.abc import Callable
from typing import Any

import torch
from peers import as_transformers
from turns import asked, report, require_close, take_turns

from regard.decoding.beam import beam_search
from regard.decoding.greedy import greedy_or_sample
from regard.layers.quantized import convert_precision
from regard.models.bert import TextEmbedder
from regard.models.gpt import Gpt
from regard.models.transformer import Transformer
from regard.recipe import DecoderModel, EncoderModel, PositionSettings, TransformerModel
from regard.tokens.special_tokens import BOS, EOS, NO_TOKEN, PAD, SpecialTokens

CUDA = torch.device("cuda")
SAME = 0.1
LENGTH = 25
GOES_ON = SpecialTokens(bos=NO_TOKEN, eos=NO_TOKEN, prefix=(), suffix=(), suppressed=())
Sides = dict[str, Callable[[], Any]]


def base(rows: int, alone: bool) -> tuple[Sides, str, int]:
    settings = TransformerModel(preset="base", output_bias=True, max_length=128, positions=PositionSettings(sines_first=True))
    model = Transformer(settings, 32_000, 32_000).to(CUDA).eval()
    with torch.no_grad():
        model.output.weight *= 2  # peaked, as trained ones are
        model.output.bias.zero_()
        model.output.bias[[EOS, PAD, BOS]] = -1e4
    source, lengths = torch.randint(4, 32_000, (rows, LENGTH), device=CUDA), torch.full((rows,), LENGTH, device=CUDA)
    limits, ours = torch.full((rows,), LENGTH + 1, device=CUDA), convert_precision(model, "bf16")
    sides: Sides = {"regard": lambda: beam_search(ours, (source, lengths), limits, beam=4, alpha=0.6)}
    assert all(len(found[0].tokens) == LENGTH for found in sides["regard"]())
    agreement = "alone"
    if not alone:
        theirs = as_transformers(model, "translate", 32_000).to(CUDA, torch.bfloat16)
        agreement = require_close(
            ours(source, lengths, source), theirs(input_ids=source, decoder_input_ids=source).logits, SAME, "logits in bf16"
        )
        sides["transformers"] = lambda: theirs.generate(
            input_ids=source,
            attention_mask=torch.ones_like(source),
            num_beams=4,
            do_sample=False,
            max_new_tokens=LENGTH,
            min_new_tokens=LENGTH,
        ).cpu()
    return sides, agreement, rows * LENGTH


def gpt2(rows: int, alone: bool) -> tuple[Sides, str, int]:
    model = Gpt(DecoderModel(kind="transformer", preset="gpt2"), 50_257).to(CUDA).eval()
    prompt, limits = torch.randint(50_257, (rows, 128), device=CUDA), torch.full((rows,), 257, device=CUDA)
    ours = convert_precision(model, "bf16")
    sides: Sides = {"regard": lambda: greedy_or_sample(ours, None, limits, prefix=prompt, special_tokens=GOES_ON)}
    assert all(len(found.tokens) == 256 for found in sides["regard"]())
    agreement = "alone"
    if not alone:
        theirs = as_transformers(model, "language", 50_257, GOES_ON).to(CUDA, torch.bfloat16)
        agreement = require_close(ours(prompt), theirs(input_ids=prompt).logits, SAME, "logits in bf16")
        sides["transformers"] = lambda: theirs.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=256,
            min_new_tokens=256,
            pad_token_id=0,
            eos_token_id=None,
            cache_implementation="static",
        ).cpu()
    return sides, agreement, rows * 256


def bert(rows: int, alone: bool) -> tuple[Sides, str, int]:
    model = TextEmbedder(EncoderModel(kind="transformer", preset="bert-base"), 30_522).to(CUDA).eval()
    ids, lengths = torch.randint(5, 30_522, (rows, 512), device=CUDA), torch.full((rows,), 512, device=CUDA)
    ours = convert_precision(model, "bf16")
    run = torch.compile(ours)
    sides: Sides = {
        "regard": lambda: (run(ids, lengths), torch.cuda.synchronize()),
        "regard, not compiled": lambda: (ours(ids, lengths), torch.cuda.synchronize()),
    }
    theirs = as_transformers(model, "encode", 30_522, attn_implementation="sdpa").to(CUDA, torch.bfloat16)
    there = torch.ones_like(ids)
    expected = theirs(input_ids=ids, attention_mask=there).last_hidden_state
    agreement = require_close(ours(ids, lengths), expected, SAME, "vectors in bf16")
    sides["transformers"] = lambda: (theirs(input_ids=ids, attention_mask=there), torch.cuda.synchronize())
    return sides, agreement, rows * 512


@torch.inference_mode()
def main() -> None:
    given = asked(__doc__, work=("base", "gpt2", "bert"), rounds=5, rows=64, alone=False)
    torch.manual_seed(1)
    sides, agreement, amount = {"base": base, "gpt2": gpt2, "bert": bert}[given.work](given.rows, given.alone)
    for _ in range(3):  # the first times run as ever, then they are recorded
        sides["regard"]()
    report(
        f"{given.work}, {given.rows} rows",
        take_turns(sides, given.rounds),
        amount=amount,
        unit="tokens a second",
        against=["transformers"],
        agreement=agreement,
    )


if __name__ == "__main__":
    main()
