"""The halting steps of a Universal Transformer for each token of source and output (Dehghani et al. 2019, sec. 2.2)."""

from collections.abc import Sequence
from itertools import zip_longest
from statistics import mean
from typing import NamedTuple

import numpy as np
import torch

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


class HaltingSteps(NamedTuple):
    """The steps of each token of several sources and of their targets."""

    source: list[list[float]]
    target: list[list[float]]


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


def halting_steps_of_examples(run: TranslateRun, examples: SentencePairs) -> HaltingSteps:
    """Return the steps of every source and target token, end tokens included, with the references as target."""
    require_halting(run)
    found = HaltingSteps([[] for _ in range(len(examples))], [[] for _ in range(len(examples))])
    for batch in sequential_batches(run._encode(examples), run.recipe.decode.batch_tokens):
        batch = batch.to(run.device)
        with torch.no_grad():
            run.model(**batch.inputs)
        lengths = (batch.inputs["lengths"], (batch.labels >= 0).sum(1))  # (B,) each
        for rows, stack, length in zip(found, (run.model.encoder, run.model.decoder), lengths):
            for row, steps, end in zip(batch.rows.tolist(), stack.steps.tolist(), length.tolist()):
                rows[row] = steps[:end]
    return found


def mean_at_positions(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean at each position of rows of different lengths, over those that are long enough."""
    columns = zip_longest(*rows)
    return [mean(value for value in column if value is not None) for column in columns]


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
