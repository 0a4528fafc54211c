"""Generate with GPT-2 (124M) on the CPU: a prompt of 32 tokens and 32 new tokens, one text at a time, on one thread.

    python benchmarks/cpu_generation.py [--rounds 5] [--threads 1]

All engines have the same random weights. In fp32 the logits must be within 1e-3 of those of transformers; in int8 the mean
log-probability per token of a fixed text must be within 0.1 of fp32.
"""

import torch
from harness import MismatchError, parse_args, report, require_close, time_alternating
from peers import NumberedVocabulary, to_ctranslate2, to_transformers

from regard.decoding.greedy import greedy_or_sample
from regard.interop.ctranslate2 import import_ctranslate2
from regard.layers.quantized import convert_precision
from regard.models.gpt import Gpt
from regard.recipe import DecoderModel
from regard.tokens.special_tokens import NO_TOKEN, SpecialTokens

VOCABULARY, PROMPT_TOKENS, NEW_TOKENS = 50_257, 32, 32
NO_SPECIAL_TOKENS = SpecialTokens(bos=NO_TOKEN, eos=NO_TOKEN, prefix=(), suffix=(), suppressed=())
LOGIT_TOLERANCE, INT8_TOLERANCE = 1e-3, 0.1


def token_log_probs(logits: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    return logits[:, :-1].log_softmax(-1).gather(-1, text[:, 1:, None])[..., 0]


@torch.inference_mode()
def main() -> None:
    args = parse_args(__doc__, rounds=5, threads=1)
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = Gpt(DecoderModel(kind="transformer", preset="gpt2"), VOCABULARY).eval()
    with torch.no_grad():
        for block in model.decoder.layers():
            block.self_attention.out_proj.weight *= 4  # random layers with a visible effect
            block.feed_forward.outer.weight *= 4
    models = {"fp32": model, "bf16": convert_precision(model, "bf16"), "int8": convert_precision(model, "int8")}
    peer = to_transformers(model, "language", VOCABULARY, NO_SPECIAL_TOKENS)
    prompt = torch.randint(0, VOCABULARY, (1, PROMPT_TOKENS))
    text = torch.randint(0, VOCABULARY, (1, 24))
    logits = model(text)
    same = require_close(logits, peer(input_ids=text).logits, LOGIT_TOLERANCE, "fp32 logits of transformers")
    exact = token_log_probs(logits, text)
    log_prob_difference = {
        f"regard {name}": float((token_log_probs(network(text).float(), text) - exact).abs().mean())
        for name, network in models.items()
    }
    with to_ctranslate2(model, VOCABULARY, NO_SPECIAL_TOKENS) as folder:
        ct2, vocabulary = import_ctranslate2(), NumberedVocabulary(VOCABULARY)
        best = ct2.Generator(str(folder), compute_type="int8", inter_threads=1, intra_threads=args.threads)
        log_probs = best.score_batch([[vocabulary.id_to_token(i) for i in text[0].tolist()]])[0].log_probs
        log_prob_difference["CTranslate2 int8"] = float((torch.tensor(log_probs)[-exact.size(1) :] - exact[0]).abs().mean())
        for name, difference in log_prob_difference.items():
            if not difference <= INT8_TOLERANCE:
                raise MismatchError(
                    f"{name}: log-probability {difference:.3f} per token from fp32, more than {INT8_TOLERANCE}; no result"
                )
        agreement = f"{same}; " + ", ".join(
            f"{name} {difference:.3f} nats per token from fp32" for name, difference in log_prob_difference.items()
        )
        prompt_tokens = [[vocabulary.id_to_token(i) for i in prompt[0].tolist()]]

        def ours(network):
            return greedy_or_sample(
                network, None, torch.tensor([NEW_TOKENS + 1]), prefix=prompt, special_tokens=NO_SPECIAL_TOKENS
            )

        def transformers():
            return peer.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS,
                pad_token_id=0,
                eos_token_id=None,
            )

        def generate():
            return best.generate_batch(
                prompt_tokens,
                max_length=NEW_TOKENS,
                min_length=NEW_TOKENS,
                beam_size=1,
                sampling_topk=1,
                include_prompt_in_result=False,
            )

        assert len(ours(model)[0].tokens) == NEW_TOKENS and len(generate()[0].sequences_ids[0]) == NEW_TOKENS
        assert transformers().size(1) == PROMPT_TOKENS + NEW_TOKENS
        engines = {
            **{f"regard {name}": (lambda network=network: ours(network)) for name, network in models.items()},
            "transformers fp32": transformers,
            "CTranslate2 int8": generate,
        }
        report(
            f"GPT-2 124M, {PROMPT_TOKENS} + {NEW_TOKENS} tokens, batch 1",
            time_alternating(engines, args.rounds),
            amount=NEW_TOKENS,
            unit="tokens per second",
            against=["CTranslate2 int8", "transformers fp32"],
            agreement=agreement,
            threads=args.threads,
        )


if __name__ == "__main__":
    main()
