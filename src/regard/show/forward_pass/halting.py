"""The halting steps of a Universal Transformer for each token of source and output (Dehghani et al. 2019, sec. 2.2)."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.batches.batches import sequential_batches
from regard.batches.ragged import Ragged
from regard.batches.rows import TranslationRows
from regard.batches.token_store import TokenStore
from regard.corpus.examples import SentencePairs
from regard.errors import UserError
from regard.show.figures.halting_steps import HaltingColumn, halting_figure, halting_text
from regard.show.inline import InlineFigure
from regard.tasks.translate import TranslateRun
from regard.tokens.special_tokens import EOS


class HaltingMeans(NamedTuple):
    """The mean steps of source tokens, of target tokens, and of those at each position."""

    source: float
    target: float
    source_positions: list[float]
    target_positions: list[float]


def show_halting_steps(run: TranslateRun, text: str) -> InlineFigure:
    """Translate a text and draw the steps of every token. It is described by the translation."""
    translation, columns = count_halting_steps(run, text)
    return InlineFigure(
        translation,
        lambda: halting_figure(columns, title="halting steps of each token"),
        text=lambda: halting_text(columns),
        title=translation,
    )


def count_halting_steps(run: TranslateRun, text: str) -> tuple[str, list[HaltingColumn]]:
    """Return the translation, and the steps of each source and output token, end tokens included."""
    require_halting(run)
    found, (source,) = run._best([text])[0], run._ids([text])
    if not source:
        raise UserError("there is nothing to show in an empty sentence")
    batch = (
        TranslationRows(TokenStore(Ragged.from_rows([source])), TokenStore(Ragged.from_rows([found.tokens])))
        .batch(np.array([0]), 0, 0)
        .to(run.device)
    )
    with torch.no_grad():
        run.model(**batch.inputs)
    columns = []
    for name, tokenizer, ids, stack in zip(
        ("source", "output"), run.tokenizers, (source, found.tokens), (run.model.encoder, run.model.decoder)
    ):
        columns.append(HaltingColumn(name, tokenizer.labels([*ids, EOS]), stack.steps[0].long().tolist(), len(stack.blocks)))
    return found.text, columns


def halting_steps_by_position(run: TranslateRun, examples: SentencePairs) -> HaltingMeans:
    """Return the mean steps of source and target tokens, end tokens included, with the references as target."""
    require_halting(run)
    steps, tokens = ([torch.zeros(0), torch.zeros(0)] for _ in range(2))
    for batch in sequential_batches(run._encode(examples), run.recipe.decode.batch_tokens):
        batch = batch.to(run.device)
        with torch.no_grad():
            run.model(**batch.inputs)
        source, lengths = batch.inputs["source"], batch.inputs["lengths"]
        real = torch.arange(source.size(1), device=lengths.device) < lengths[:, None]
        for side, (stack, counted) in enumerate(((run.model.encoder, real), (run.model.decoder, batch.labels >= 0))):
            steps[side] = _add_padded(steps[side], (stack.steps * counted).sum(0).cpu())
            tokens[side] = _add_padded(tokens[side], counted.sum(0).cpu())
    source_mean, target_mean = (float(one.sum() / number.sum()) for one, number in zip(steps, tokens))
    return HaltingMeans(source_mean, target_mean, *((one / number).tolist() for one, number in zip(steps, tokens)))


def _add_padded(total: Tensor, part: Tensor) -> Tensor:
    """Add vectors of different lengths, the shorter one filled with zeros."""
    length = max(len(total), len(part))
    return F.pad(total, (0, length - len(total))) + F.pad(part, (0, length - len(part)))


def require_halting(run: TranslateRun) -> None:
    model = run.recipe.model
    if model.kind != "universal":
        raise UserError(
            f"{run.folder}: model.kind = {model.kind!r} has no halting steps: all tokens pass all its layers; "
            "--halting is for model.kind = 'universal'"
        )
    if model.halting == "none":
        raise UserError(
            f"{run.folder}: every token takes all {model.encoder_layers} steps (model.halting = 'none'); "
            "train with model.halting = 'act'"
        )
