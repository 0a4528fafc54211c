"""BERT-base over 64 texts of 32 to 128 tokens, mixed, on the CPU.

    python benchmarks/cpu_encoding.py [--rounds 5] [--threads 2]

Random weights, the same on all sides. In fp32 the vectors of all real tokens have to be within 1e-3 of those of transformers; in
lower precisions the mean vector of every text must be like that in fp32 (cosine 0.98).
"""

import tempfile
from pathlib import Path

import torch
from peers import as_transformers, threads
from turns import Disagreement, asked, report, take_turns

from regard.interop.onnx import ONNX_FILE, write_onnx
from regard.layers.quantized import convert_precision
from regard.models.bert import TextEmbedder
from regard.recipe import EncoderModel
from regard.tasks.base import iterate_layers
from regard.tokens.special_tokens import SpecialTokens

VOCABULARY, TEXTS = 30_522, 64
SAME, ALIKE = 1e-3, 0.98


def eight_bits_by_onnxruntime(model: torch.nn.Module, place: Path, number: int):
    """Our model written as ONNX, its matrices in 8 bits."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    write_onnx(model, {"source": torch.randint(5, VOCABULARY, (2, 16)), "lengths": torch.tensor([16, 9])}, place / "bert")
    quantize_dynamic(place / "bert" / ONNX_FILE, place / "bert8.onnx", weight_type=QuantType.QInt8, per_channel=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = number
    return onnxruntime.InferenceSession(place / "bert8.onnx", options, providers=["CPUExecutionProvider"])


@torch.no_grad()
def main() -> None:
    given = asked(__doc__, rounds=5, threads=2)
    threads(given.threads)
    torch.manual_seed(1)
    model = TextEmbedder(EncoderModel(kind="transformer", preset="bert-base"), VOCABULARY).eval()
    ways = {"fp32": model, "bf16": convert_precision(model, "bf16"), "int8": convert_precision(model, "int8")}
    theirs = as_transformers(model, "encode", VOCABULARY, attn_implementation="sdpa")
    lengths = torch.linspace(32, 128, TEXTS).round().long()[torch.randperm(TEXTS)]
    texts = [torch.randint(5, VOCABULARY, (int(length),)).tolist() for length in lengths]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    mask = (torch.arange(ids.size(1)) < lengths[:, None]).long()

    nested = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True), 12, enable_nested_tensor=True
    ).eval()
    embedded = torch.randn(*ids.shape, 768)

    @torch.inference_mode()
    def ours(said):
        """The vectors of each text, by the way that `regard embed` goes."""
        found = [None] * TEXTS
        for numbers, layers in iterate_layers(said, texts, SpecialTokens(prefix=(), suffix=()), torch.device("cpu")):
            for number, vectors in zip(numbers, layers[-1]):
                found[number] = vectors[: len(texts[number])]
        return found

    @torch.inference_mode()
    def transformers():
        return theirs(input_ids=ids, attention_mask=mask).last_hidden_state

    with tempfile.TemporaryDirectory() as place:
        session = eight_bits_by_onnxruntime(model, Path(place), given.threads)

        def onnx():
            return session.run(None, {"source": ids.numpy(), "lengths": lengths.numpy()})[0]

        expected = transformers()
        apart, alike = 0.0, dict.fromkeys(("regard bf16", "regard int8", "onnxruntime int8"), 1.0)
        found = {name: ours(said) for name, said in ways.items()}
        theirs8 = torch.from_numpy(onnx())
        for row, length in enumerate(lengths.tolist()):
            real = expected[row, :length]
            apart = max(apart, float((found["fp32"][row] - real).abs().max()))
            for name, vectors in (
                ("regard bf16", found["bf16"][row]),
                ("regard int8", found["int8"][row]),
                ("onnxruntime int8", theirs8[row, :length]),
            ):
                alike[name] = min(alike[name], float(torch.cosine_similarity(vectors.float().mean(0), real.mean(0), dim=0)))
        if apart > SAME or min(alike.values()) < ALIKE:
            raise Disagreement(f"fp32 {apart:.1e} apart, cosines {alike}; nothing is reported")
        agreement = f"fp32 vectors of transformers within {apart:.1e}; least cosine " + ", ".join(
            f"{name} {value:.4f}" for name, value in alike.items()
        )
        sides = {
            **{f"regard {name}": (lambda said=said: ours(said)) for name, said in ways.items()},
            "transformers sdpa fp32": transformers,
            "nn.TransformerEncoder, nested, fp32": torch.inference_mode()(
                lambda: nested(embedded, src_key_padding_mask=mask == 0)
            ),
            "onnxruntime int8": onnx,
        }
        report(
            f"BERT-base, {TEXTS} texts of 32 to 128 tokens",
            take_turns(sides, given.rounds),
            amount=float(lengths.sum()),
            unit="tokens a second",
            against=["transformers sdpa fp32", "onnxruntime int8"],
            agreement=agreement,
            threads=given.threads,
        )


if __name__ == "__main__":
    main()
