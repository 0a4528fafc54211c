"""A trainer of a tiny translation model on a world that fits into a second of training."""

import pytest
import torch

from regard.batches.batches import Batches
from regard.batches.rows import TranslationRows
from regard.batches.token_store import build_token_store
from regard.models.transformer import Transformer
from regard.recipe import Regularization, TextTraining, TokenSettings, TransformerModel
from regard.tokens.tokenizer import train_tokenizer
from regard.training.log import Log
from regard.training.loop import TrainingLoop
from regard.training.losses import CrossEntropy
from regard.worlds import bilingual


@pytest.fixture(scope="session")
def store():
    gold = bilingual.generate(300, 7, level=1)
    sides = [pair.source for pair in gold], [pair.target for pair in gold]
    tokenizer = train_tokenizer(TokenSettings(size=300), sides[0] + sides[1])
    return TranslationRows(*(build_token_store(side, tokenizer) for side in sides))


@pytest.fixture(scope="session")
def trainer():
    """Return a function that builds a trainer."""

    def make(
        store,
        folder,
        objective=None,
        evaluate=lambda model: {"valid_loss": 1.0},
        dropout=0.2,
        width=16,
        norm="layer",
        callbacks=(),
        **settings,
    ):
        settings = TextTraining(
            **{
                "steps": 8,
                "tokens_per_batch": 256,
                "log_every": 2,
                "evaluate_every": 4,
                "save_every": 2,
                "keep_checkpoints": 10,
                **settings,
            }
        )
        torch.manual_seed(5)
        regularize = Regularization(dropout=dropout)
        shape = TransformerModel(preset="tiny", width=width, heads=2, feed_forward=2 * width, norm=norm)
        model = Transformer(shape, 300, 300, regularize)
        folder.mkdir(exist_ok=True)
        log = Log(folder / "log.jsonl", steps=settings.steps)
        return TrainingLoop(
            model,
            objective or CrossEntropy(regularize),
            Batches(store, settings.tokens_per_batch, 1),
            settings,
            seed=1,
            folder=folder / "checkpoints",
            log=log,
            evaluate=evaluate,
            callbacks=callbacks,
        )

    return make
