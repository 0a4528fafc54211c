"""Time one training step on the CPU: forward, backward, clipping and AdamW, in fp32 and in bf16; the base Transformer on 16 pairs
of 32 + 32 tokens, and a tiny one as in the demo.

    python benchmarks/cpu_training.py [--rounds 5] [--threads 2]

Ours is the step of the training loop. The loss of the first step must be within 1e-3 of the peers' in fp32.
"""

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import torch.nn.functional as F
from harness import MismatchError, parse_args, report, time_alternating
from peers import to_transformers
from torch import nn

from regard.batches.batch import Batch
from regard.models.transformer import Transformer
from regard.recipe import PositionSettings, Regularization, TextTraining, TransformerModel
from regard.training.loop import TrainingLoop
from regard.training.losses import CrossEntropy

VOCABULARY = {"base": 32_000, "tiny": 1_000}
PAIRS, LENGTH = {"base": 16, "tiny": 128}, {"base": 32, "tiny": 16}
TOLERANCE = 1e-3


class PlainTransformer(nn.Module):
    """nn.Transformer with embeddings and an output layer."""

    def __init__(self, settings: TransformerModel, vocabulary: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, settings.width)
        self.transformer = nn.Transformer(
            settings.width,
            settings.heads,
            settings.encoder_layers,
            settings.decoder_layers,
            settings.feed_forward,
            dropout=0.0,
            batch_first=True,
        )
        self.output = nn.Linear(settings.width, vocabulary, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        return self.output(self.transformer(self.embedding(source), self.embedding(target), tgt_mask=causal, tgt_is_causal=True))


def build_trainer(model: nn.Module, precision: str) -> TrainingLoop:
    settings = TextTraining(precision=precision, regularize=Regularization(dropout=0.0, label_smoothing=0.0))
    return TrainingLoop(
        model,
        CrossEntropy(settings.regularize),
        None,
        settings,
        seed=1,
        folder=Path(mkdtemp()),
        log=None,  # type: ignore
        evaluate=lambda _: {},
    )


def peer_step(model: nn.Module, inputs: dict[str, Any], labels: torch.Tensor, precision: str):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            output = model(**inputs)
            logits = output if isinstance(output, torch.Tensor) else output.logits
            loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def main() -> None:
    args = parse_args(__doc__, rounds=5, threads=2)
    torch.set_num_threads(args.threads)
    for preset in ("base", "tiny"):
        vocabulary, B, L = VOCABULARY[preset], PAIRS[preset], LENGTH[preset]
        torch.manual_seed(1)
        settings = TransformerModel(preset=preset, output_bias=True, positions=PositionSettings(sines_first=True))
        source, target = torch.randint(4, vocabulary, (2, B, L))
        labels = torch.randint(4, vocabulary, (B, L))
        lengths = torch.full((B,), L)
        engines, first_losses = {}, {}
        for precision in ("fp32", "bf16"):
            torch.manual_seed(1)
            model = Transformer(settings, vocabulary, vocabulary, Regularization(dropout=0.0))
            nn.init.zeros_(model.output.bias)
            peer = to_transformers(model, "translate", vocabulary, dropout=0.0).train()
            step = peer_step(peer, {"input_ids": source, "decoder_input_ids": target}, labels, precision)
            trainer = build_trainer(model, precision)
            batch = Batch({"source": source, "lengths": lengths, "target": target}, labels, rows=None)  # type: ignore[arg-type]
            torch_step = peer_step(
                PlainTransformer(settings, vocabulary), {"source": source, "target": target}, labels, precision
            )

            def ours(trainer: TrainingLoop = trainer, batch: Batch = batch) -> float:
                loss, count = trainer.step([(0, 0, batch)])
                return float(loss) / count

            engines |= {f"regard {precision}": ours, f"transformers {precision}": step, f"nn.Transformer {precision}": torch_step}
            first_losses[precision] = (ours(), step())
        difference = abs(first_losses["fp32"][0] - first_losses["fp32"][1])
        if difference > TOLERANCE:
            raise MismatchError(f"losses {first_losses['fp32']}; no result")
        report(
            f"{preset}, one training step of {B} × {L}+{L}",
            time_alternating(engines, args.rounds),
            amount=B * L,
            unit="target tokens per second",
            against=["transformers fp32", "nn.Transformer fp32", "transformers bf16", "nn.Transformer bf16", "regard fp32"],
            agreement=f"first loss within {difference:.1e} of transformers in fp32",
            threads=args.threads,
        )


if __name__ == "__main__":
    main()
