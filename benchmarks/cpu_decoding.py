"""Decoding with the base Transformer on the CPU: 32 sentences of 25 tokens, 25 tokens each, greedy and beam 4, on all cores.

    python benchmarks/cpu_decoding.py [--rounds 7] [--threads 2]

The weights are random and the same on all sides; the end is made unlikely, so that everybody takes 25 steps. In fp32 the logits
have to be within 2e-3 of each other; in 8 bits the log-probabilities of a fixed text within 0.1 a token in the mean.
"""

import torch
from peers import Numbers, as_ctranslate2, as_transformers, threads
from turns import Disagreement, asked, report, require_close, take_turns

from regard.decoding.batching import SearchParams, decode_all, text_sources
from regard.interop.ctranslate2 import import_ctranslate2
from regard.layers.quantized import convert_precision
from regard.models.transformer import Transformer
from regard.recipe import PositionSettings, TransformerModel
from regard.tokens.special_tokens import BOS, EOS, PAD, SpecialTokens

VOCABULARY, SENTENCES, LENGTH = 32_000, 32, 25
MARKS = SpecialTokens(suffix=())
SAME = 2e-3
NEAR = 0.1


def build() -> Transformer:
    torch.manual_seed(1)
    settings = TransformerModel(preset="base", output_bias=True, max_length=128, positions=PositionSettings(sines_first=True))
    model = Transformer(settings, VOCABULARY, VOCABULARY).eval()
    with torch.no_grad():
        model.output.weight *= 2  # peaked, as trained ones are
        model.output.bias.zero_()
        model.output.bias[[EOS, PAD, BOS]] = -1e4
    return model


def log_p(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Of each token after the first: (B, T - 1)."""
    return logits[:, :-1].log_softmax(-1).gather(-1, target[:, 1:, None])[..., 0]


@torch.inference_mode()
def main() -> None:
    given = asked(__doc__, rounds=7, threads=2)
    threads(given.threads)
    model = build()
    eight = convert_precision(model, "int8")
    theirs = as_transformers(model, "translate", VOCABULARY)
    source = torch.randint(4, VOCABULARY, (SENTENCES, LENGTH))
    lengths, rows = torch.full((SENTENCES,), LENGTH), source.tolist()
    target = torch.cat([torch.full((SENTENCES, 1), BOS), torch.randint(4, VOCABULARY, (SENTENCES, LENGTH - 1))], dim=1)

    logits = model(source, lengths, target)
    same = require_close(logits, theirs(input_ids=source, decoder_input_ids=target).logits, SAME, "fp32 logits of transformers")
    exact = log_p(logits, target)
    near = {"regard int8": (log_p(eight(source, lengths, target), target) - exact).abs().mean()}
    with as_ctranslate2(model, VOCABULARY) as folder:
        ct2, numbers = import_ctranslate2(), Numbers(VOCABULARY)
        best = ct2.Translator(str(folder), compute_type="int8", inter_threads=given.threads, intra_threads=1)
        usual = ct2.Translator(str(folder), compute_type="int8", inter_threads=1, intra_threads=given.threads)
        spoken = [[numbers.id_to_token(i) for i in row] for row in source.tolist()]
        wanted = [[numbers.id_to_token(i) for i in row[1:]] for row in target.tolist()]
        scored = torch.tensor([found.log_probs[: LENGTH - 1] for found in best.score_batch(spoken, wanted)])
        near["CTranslate2 int8"] = (scored - exact).abs().mean()
        for name, apart in near.items():
            if not apart <= NEAR:
                raise Disagreement(f"{name}: log p {apart:.3f} a token from fp32, more than {NEAR}; nothing is reported")
        agreement = f"{same}; " + ", ".join(f"{name} {apart:.3f} nats a token from fp32" for name, apart in near.items())
        for beam in (1, 4):

            def ours(said: Transformer, beam: int = beam):
                cpu = torch.device("cpu")
                return decode_all(
                    said,
                    text_sources(rows, device=cpu, max_length=LENGTH, max_tokens=LENGTH - 1, special_tokens=MARKS),
                    SearchParams(beam=beam, length_penalty=0.6, batch_tokens=8192),
                    device=cpu,
                    special_tokens=MARKS,
                    workers=given.threads,
                )

            def transformers(beam: int = beam):
                return theirs.generate(
                    input_ids=source,
                    attention_mask=torch.ones_like(source),
                    num_beams=beam,
                    do_sample=False,
                    max_new_tokens=LENGTH,
                    min_new_tokens=LENGTH,
                )

            def translate(by, size: int, beam: int = beam):
                return by.translate_batch(
                    spoken, beam_size=beam, max_decoding_length=LENGTH, min_decoding_length=LENGTH, max_batch_size=size
                )

            assert all(len(found[0].tokens) == LENGTH - 1 for found in ours(model))
            assert all(len(found.hypotheses[0]) == LENGTH for found in translate(best, 16))
            sides = {
                "regard fp32": lambda: ours(model),
                "regard int8": lambda: ours(eight),
                "transformers fp32": transformers,
                "CTranslate2 int8, best setting": lambda: translate(best, SENTENCES // given.threads),
                "CTranslate2 int8, default": lambda: translate(usual, 0),
            }
            times = take_turns(sides, given.rounds)
            report(
                f"base, {SENTENCES} × {LENGTH} tokens, beam {beam}",
                times,
                amount=SENTENCES * LENGTH,
                unit="tokens a second",
                against=["CTranslate2 int8, best setting", "transformers fp32"],
                agreement=agreement,
                threads=given.threads,
            )


if __name__ == "__main__":
    main()
