"""Encode 64 texts of 32 to 128 tokens with BERT-base on the CPU.

    python benchmarks/cpu_encoding.py [--rounds 5] [--threads 2]

All engines have the same random weights. In fp32 the vectors of all real tokens must be within 1e-3 of those of transformers; in
lower precisions the mean vector of every text must have a cosine of at least 0.98 with that in fp32.
"""

import tempfile
from pathlib import Path

import torch
from harness import MismatchError, parse_args, report, time_alternating
from peers import to_transformers

from regard.batches.ragged import Ragged
from regard.batches.rows import encoder_inputs
from regard.decoding.batching import batches_by_length
from regard.interop.onnx import ONNX_FILE, write_onnx
from regard.layers.quantized import convert_precision
from regard.models.bert import TextEmbedder
from regard.recipe import EncoderModel
from regard.tasks.shared.embedding import EMBED_TOKENS_CPU
from regard.tokens.special_tokens import SpecialTokens

VOCABULARY, TEXTS = 30_522, 64
TOLERANCE, MIN_COSINE = 1e-3, 0.98


def quantize_with_onnxruntime(model: torch.nn.Module, folder: Path, threads: int):
    """Return an onnxruntime session of our model with int8 weights."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    write_onnx(model, {"source": torch.randint(5, VOCABULARY, (2, 16)), "lengths": torch.tensor([16, 9])}, folder / "bert")
    quantize_dynamic(folder / "bert" / ONNX_FILE, folder / "bert8.onnx", weight_type=QuantType.QInt8, per_channel=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(folder / "bert8.onnx", options, providers=["CPUExecutionProvider"])


@torch.no_grad()
def main() -> None:
    args = parse_args(__doc__, rounds=5, threads=2)
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = TextEmbedder(EncoderModel(kind="transformer", preset="bert-base"), VOCABULARY).eval()
    models = {"fp32": model, "bf16": convert_precision(model, "bf16"), "int8": convert_precision(model, "int8")}
    peer = to_transformers(model, "encode", VOCABULARY, attn_implementation="sdpa")
    lengths = torch.linspace(32, 128, TEXTS).round().long()[torch.randperm(TEXTS)]
    texts = [torch.randint(5, VOCABULARY, (int(length),)).tolist() for length in lengths]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    mask = (torch.arange(ids.size(1)) < lengths[:, None]).long()

    nested = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True), 12, enable_nested_tensor=True
    ).eval()
    embedded = torch.randn(*ids.shape, 768)

    @torch.inference_mode()
    def ours(network):
        """Return the vectors of each text, computed as in `regard embed`."""
        found = [None] * TEXTS
        for numbers in batches_by_length([len(text) for text in texts], EMBED_TOKENS_CPU):
            inputs = encoder_inputs(Ragged.from_rows([texts[number] for number in numbers]), SpecialTokens(prefix=(), suffix=()))
            for number, vectors in zip(numbers, network.hidden_states(**inputs)[-1]):
                found[number] = vectors[: len(texts[number])]
        return found

    @torch.inference_mode()
    def transformers():
        return peer(input_ids=ids, attention_mask=mask).last_hidden_state

    with tempfile.TemporaryDirectory() as folder:
        session = quantize_with_onnxruntime(model, Path(folder), args.threads)

        def onnx():
            return session.run(None, {"source": ids.numpy(), "lengths": lengths.numpy()})[0]

        expected = transformers()
        difference, cosines = 0.0, dict.fromkeys(("regard bf16", "regard int8", "onnxruntime int8"), 1.0)
        found = {name: ours(network) for name, network in models.items()}
        onnx_vectors = torch.from_numpy(onnx())
        for row, length in enumerate(lengths.tolist()):
            real = expected[row, :length]
            difference = max(difference, float((found["fp32"][row] - real).abs().max()))
            for name, vectors in (
                ("regard bf16", found["bf16"][row]),
                ("regard int8", found["int8"][row]),
                ("onnxruntime int8", onnx_vectors[row, :length]),
            ):
                cosines[name] = min(cosines[name], float(torch.cosine_similarity(vectors.float().mean(0), real.mean(0), dim=0)))
        if difference > TOLERANCE or min(cosines.values()) < MIN_COSINE:
            raise MismatchError(f"fp32 difference {difference:.1e}, cosines {cosines}; no result")
        agreement = f"fp32 vectors of transformers within {difference:.1e}; minimum cosine " + ", ".join(
            f"{name} {value:.4f}" for name, value in cosines.items()
        )
        engines = {
            **{f"regard {name}": (lambda network=network: ours(network)) for name, network in models.items()},
            "transformers sdpa fp32": transformers,
            "nn.TransformerEncoder, nested, fp32": torch.inference_mode()(
                lambda: nested(embedded, src_key_padding_mask=mask == 0)
            ),
            "onnxruntime int8": onnx,
        }
        report(
            f"BERT-base, {TEXTS} texts of 32 to 128 tokens",
            time_alternating(engines, args.rounds),
            amount=float(lengths.sum()),
            unit="tokens per second",
            against=["transformers sdpa fp32", "onnxruntime int8"],
            agreement=agreement,
            threads=args.threads,
        )


if __name__ == "__main__":
    main()
