"""GPT-2 (124M) on the CPU: 32 tokens read and 32 written, one text at a time, on one thread.

    python benchmarks/cpu_generation.py [--rounds 5] [--threads 1]

Random weights, the same on all sides. In fp32 the logits have to be within 1e-3 of those of transformers; in 8 bits the
log-probabilities of a fixed text within 0.1 a token in the mean.
"""

import torch
from peers import Numbers, as_ctranslate2, as_transformers, threads
from turns import Disagreement, asked, report, require_close, take_turns

from regard.decoding.greedy import greedy_or_sample
from regard.interop.ctranslate2 import import_ctranslate2
from regard.layers.quantized import convert_precision
from regard.models.gpt import Gpt
from regard.recipe import DecoderModel
from regard.tokens.special_tokens import NO_TOKEN, SpecialTokens

VOCABULARY, READ, WRITTEN = 50_257, 32, 32
MARKS = SpecialTokens(bos=NO_TOKEN, eos=NO_TOKEN, prefix=(), suffix=(), suppressed=())
SAME, NEAR = 1e-3, 0.1


def log_p(logits: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    return logits[:, :-1].log_softmax(-1).gather(-1, text[:, 1:, None])[..., 0]


@torch.inference_mode()
def main() -> None:
    given = asked(__doc__, rounds=5, threads=1)
    threads(given.threads)
    torch.manual_seed(1)
    model = Gpt(DecoderModel(kind="transformer", preset="gpt2"), VOCABULARY).eval()
    with torch.no_grad():
        for block in model.decoder.layers():
            block.self_attention.out_proj.weight *= 4  # random layers that say something
            block.feed_forward.outer.weight *= 4
    ways = {"fp32": model, "bf16": convert_precision(model, "bf16"), "int8": convert_precision(model, "int8")}
    theirs = as_transformers(model, "language", VOCABULARY, MARKS)
    prompt = torch.randint(0, VOCABULARY, (1, READ))
    text = torch.randint(0, VOCABULARY, (1, 24))
    logits = model(text)
    same = require_close(logits, theirs(input_ids=text).logits, SAME, "fp32 logits of transformers")
    exact = log_p(logits, text)
    near = {f"regard {name}": float((log_p(said(text).float(), text) - exact).abs().mean()) for name, said in ways.items()}
    with as_ctranslate2(model, VOCABULARY, MARKS) as folder:
        ct2, numbers = import_ctranslate2(), Numbers(VOCABULARY)
        best = ct2.Generator(str(folder), compute_type="int8", inter_threads=1, intra_threads=given.threads)
        scored = best.score_batch([[numbers.id_to_token(i) for i in text[0].tolist()]])[0].log_probs
        near["CTranslate2 int8"] = float((torch.tensor(scored)[-exact.size(1) :] - exact[0]).abs().mean())
        for name, apart in near.items():
            if not apart <= NEAR:
                raise Disagreement(f"{name}: log p {apart:.3f} a token from fp32, more than {NEAR}; nothing is reported")
        agreement = f"{same}; " + ", ".join(f"{name} {apart:.3f} nats a token from fp32" for name, apart in near.items())
        spoken = [[numbers.id_to_token(i) for i in prompt[0].tolist()]]

        def ours(said):
            return greedy_or_sample(said, None, torch.tensor([WRITTEN + 1]), prefix=prompt, special_tokens=MARKS)

        def transformers():
            return theirs.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                max_new_tokens=WRITTEN,
                min_new_tokens=WRITTEN,
                pad_token_id=0,
                eos_token_id=None,
            )

        def generate():
            return best.generate_batch(
                spoken, max_length=WRITTEN, min_length=WRITTEN, beam_size=1, sampling_topk=1, include_prompt_in_result=False
            )

        assert len(ours(model)[0].tokens) == WRITTEN and len(generate()[0].sequences_ids[0]) == WRITTEN
        assert transformers().size(1) == READ + WRITTEN
        sides = {
            **{f"regard {name}": (lambda said=said: ours(said)) for name, said in ways.items()},
            "transformers fp32": transformers,
            "CTranslate2 int8": generate,
        }
        report(
            f"GPT-2 124M, {READ} + {WRITTEN} tokens, batch 1",
            take_turns(sides, given.rounds),
            amount=WRITTEN,
            unit="tokens a second",
            against=["CTranslate2 int8", "transformers fp32"],
            agreement=agreement,
            threads=given.threads,
        )


if __name__ == "__main__":
    main()
