"""One step of training on the CPU: forward, backward, clipping and AdamW; the base Transformer on 16 pairs of 32 + 32 tokens, and
a tiny one as the demonstration has it, in fp32 and in bf16.

    python benchmarks/cpu_training.py [--rounds 5] [--threads 2]

Ours is the step of the training loop. The loss of the first step has to be within 1e-3 of the peers' in fp32.
"""

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import torch.nn.functional as F
from peers import as_transformers, threads
from torch import nn
from turns import Disagreement, asked, report, take_turns

from regard.batches.batch import Batch
from regard.models.transformer import Transformer
from regard.recipe import PositionSettings, Regularization, TextTraining, TransformerModel
from regard.training.loop import Trainer
from regard.training.losses import CrossEntropy

VOCABULARY = {"base": 32_000, "tiny": 1_000}
PAIRS, LENGTH = {"base": 16, "tiny": 128}, {"base": 32, "tiny": 16}
SAME = 1e-3


class Torch(nn.Module):
    """nn.Transformer with embeddings and an output, as one would write it."""

    def __init__(self, settings: TransformerModel, vocabulary: int):
        super().__init__()
        self.table = nn.Embedding(vocabulary, settings.width)
        self.body = nn.Transformer(
            settings.width,
            settings.heads,
            settings.encoder_layers,
            settings.decoder_layers,
            settings.feed_forward,
            dropout=0.0,
            batch_first=True,
        )
        self.output = nn.Linear(settings.width, vocabulary, bias=False)
        self.output.weight = self.table.weight

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        return self.output(self.body(self.table(source), self.table(target), tgt_mask=causal, tgt_is_causal=True))


def trainer(model: nn.Module, precision: str) -> Trainer:
    settings = TextTraining(precision=precision, regularize=Regularization(dropout=0.0, label_smoothing=0.0))
    return Trainer(
        model,
        CrossEntropy(settings.regularize),
        None,
        settings,
        seed=1,
        folder=Path(mkdtemp()),
        log=None,  # type: ignore
        evaluate=lambda _: {},
    )


def theirs_step(model: nn.Module, inputs: dict[str, Any], labels: torch.Tensor, precision: str):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            said = model(**inputs)
            logits = said if isinstance(said, torch.Tensor) else said.logits
            loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def main() -> None:
    given = asked(__doc__, rounds=5, threads=2)
    threads(given.threads)
    for preset in ("base", "tiny"):
        vocabulary, B, L = VOCABULARY[preset], PAIRS[preset], LENGTH[preset]
        torch.manual_seed(1)
        settings = TransformerModel(preset=preset, output_bias=True, positions=PositionSettings(sines_first=True))
        source, target = torch.randint(4, vocabulary, (2, B, L))
        labels = torch.randint(4, vocabulary, (B, L))
        lengths = torch.full((B,), L)
        sides, first = {}, {}
        for precision in ("fp32", "bf16"):
            torch.manual_seed(1)
            model = Transformer(settings, vocabulary, vocabulary, Regularization(dropout=0.0))
            nn.init.zeros_(model.output.bias)
            peer = as_transformers(model, "translate", vocabulary, dropout=0.0).train()
            step = theirs_step(peer, {"input_ids": source, "decoder_input_ids": target}, labels, precision)
            mine = trainer(model, precision)
            batch = Batch({"source": source, "lengths": lengths, "target": target}, labels, rows=None)  # type: ignore[arg-type]
            plain = theirs_step(Torch(settings, vocabulary), {"source": source, "target": target}, labels, precision)

            def ours(mine: Trainer = mine, batch: Batch = batch) -> float:
                loss, count = mine.step([(0, 0, batch)])
                return float(loss) / count

            sides |= {f"regard {precision}": ours, f"transformers {precision}": step, f"nn.Transformer {precision}": plain}
            first[precision] = (ours(), step())
        apart = abs(first["fp32"][0] - first["fp32"][1])
        if apart > SAME:
            raise Disagreement(f"losses {first['fp32']}; nothing is reported")
        report(
            f"{preset}, one training step of {B} × {L}+{L}",
            take_turns(sides, given.rounds),
            amount=B * L,
            unit="target tokens a second",
            against=["transformers fp32", "nn.Transformer fp32", "transformers bf16", "nn.Transformer bf16", "regard fp32"],
            agreement=f"first loss within {apart:.1e} of transformers in fp32",
            threads=given.threads,
        )


if __name__ == "__main__":
    main()
