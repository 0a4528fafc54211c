"""Decode with the base Transformer on the CPU: 32 sentences of 25 tokens, 25 output tokens each, greedy and beam 4, on all cores.

    python benchmarks/cpu_decoding.py [--rounds 7] [--threads 2] [--default]

"regard translate, by default" is what `--engine auto` chooses: CTranslate2 through run/engines.py, ranked by our length penalty.
With --default, it is compared with CTranslate2's best setting alone.
All engines have the same random weights; end tokens are suppressed, so that every engine takes 25 steps. In fp32 the logits must
agree within 2e-3; in int8 the mean log-probability per token of a fixed text must be within 0.1 of fp32.
"""

import torch
from harness import MismatchError, parse_args, report, require_close, time_alternating
from peers import NumberedVocabulary, to_ctranslate2, to_transformers

from regard.decoding.batching import SearchParams, decode_all, text_sources
from regard.interop.ctranslate2 import import_ctranslate2
from regard.layers.quantized import convert_precision
from regard.models.transformer import Transformer
from regard.recipe import PositionSettings, TransformerModel
from regard.run.engines import CTranslate2Engine
from regard.tokens.special_tokens import BOS, EOS, PAD, SpecialTokens

VOCABULARY, SENTENCES, LENGTH = 32_000, 32, 25
SPECIAL_TOKENS = SpecialTokens(suffix=())
LOGIT_TOLERANCE = 2e-3
INT8_TOLERANCE = 0.1


def build() -> Transformer:
    torch.manual_seed(1)
    settings = TransformerModel(preset="base", output_bias=True, max_length=128, positions=PositionSettings(sines_first=True))
    model = Transformer(settings, VOCABULARY, VOCABULARY).eval()
    with torch.no_grad():
        model.output.weight *= 2  # peaked distributions, as in trained models
        model.output.bias.zero_()
        model.output.bias[[EOS, PAD, BOS]] = -1e4
    return model


def token_log_probs(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of each token after the first, (B, T - 1)."""
    return logits[:, :-1].log_softmax(-1).gather(-1, target[:, 1:, None])[..., 0]


@torch.inference_mode()
def main() -> None:
    args = parse_args(__doc__, rounds=7, threads=2, default=False)
    torch.set_num_threads(args.threads)
    model = build()
    int8 = convert_precision(model, "int8")
    peer = to_transformers(model, "translate", VOCABULARY)
    source = torch.randint(4, VOCABULARY, (SENTENCES, LENGTH))
    lengths, rows = torch.full((SENTENCES,), LENGTH), source.tolist()
    target = torch.cat([torch.full((SENTENCES, 1), BOS), torch.randint(4, VOCABULARY, (SENTENCES, LENGTH - 1))], dim=1)

    logits = model(source, lengths, target)
    same = require_close(
        logits, peer(input_ids=source, decoder_input_ids=target).logits, LOGIT_TOLERANCE, "fp32 logits of transformers"
    )
    exact = token_log_probs(logits, target)
    int8_difference = {"regard int8": (token_log_probs(int8(source, lengths, target), target) - exact).abs().mean()}
    with to_ctranslate2(model, VOCABULARY) as folder:
        ct2, vocabulary = import_ctranslate2(), NumberedVocabulary(VOCABULARY)
        chosen = CTranslate2Engine(folder, [NumberedVocabulary(VOCABULARY, SPECIAL_TOKENS)] * 2)  # type: ignore[list-item]
        best = ct2.Translator(str(folder), compute_type="int8", inter_threads=args.threads, intra_threads=1)
        default = ct2.Translator(str(folder), compute_type="int8", inter_threads=1, intra_threads=args.threads)
        source_tokens = [[vocabulary.id_to_token(i) for i in row] for row in source.tolist()]
        target_tokens = [[vocabulary.id_to_token(i) for i in row[1:]] for row in target.tolist()]
        log_probs = torch.tensor([found.log_probs[: LENGTH - 1] for found in best.score_batch(source_tokens, target_tokens)])
        int8_difference["CTranslate2 int8"] = (log_probs - exact).abs().mean()
        for name, difference in int8_difference.items():
            if not difference <= INT8_TOLERANCE:
                raise MismatchError(
                    f"{name}: log-probability {difference:.3f} per token from fp32, more than {INT8_TOLERANCE}; no result"
                )
        agreement = f"{same}; " + ", ".join(
            f"{name} {difference:.3f} nats per token from fp32" for name, difference in int8_difference.items()
        )
        for beam in (1, 4):
            params = SearchParams(beam=beam, length_penalty=0.6, batch_tokens=8192, max_tokens=LENGTH - 1)

            def ours(network: Transformer, params: SearchParams = params):
                cpu = torch.device("cpu")
                return decode_all(
                    network,
                    text_sources(rows, device=cpu, max_length=LENGTH, max_tokens=LENGTH - 1, special_tokens=SPECIAL_TOKENS),
                    params,
                    device=cpu,
                    special_tokens=SPECIAL_TOKENS,
                    workers=args.threads,
                )

            def transformers(beam: int = beam):
                return peer.generate(
                    input_ids=source,
                    attention_mask=torch.ones_like(source),
                    num_beams=beam,
                    do_sample=False,
                    max_new_tokens=LENGTH,
                    min_new_tokens=LENGTH,
                )

            def translate(translator, size: int, beam: int = beam):
                return translator.translate_batch(
                    source_tokens, beam_size=beam, max_decoding_length=LENGTH, min_decoding_length=LENGTH, max_batch_size=size
                )

            assert all(len(found[0].tokens) == LENGTH - 1 for found in ours(model))
            assert all(len(found.hypotheses[0]) == LENGTH for found in translate(best, 16))
            engines = {
                "regard fp32": lambda: ours(model),
                "regard int8": lambda: ours(int8),
                "transformers fp32": transformers,
                "regard translate, by default": lambda params=params: chosen.decode(rows, params, LENGTH),
                "CTranslate2 int8, best setting": lambda: translate(best, SENTENCES // args.threads),
                "CTranslate2 int8, default": lambda: translate(default, 0),
            }
            if args.default:
                engines = {name: engines[name] for name in ("regard translate, by default", "CTranslate2 int8, best setting")}
            times = time_alternating(engines, args.rounds)
            report(
                f"base, {SENTENCES} × {LENGTH} tokens, beam {beam}",
                times,
                amount=SENTENCES * LENGTH,
                unit="tokens per second",
                against=["CTranslate2 int8, best setting", "transformers fp32"],
                agreement=agreement,
                threads=args.threads,
            )


if __name__ == "__main__":
    main()
