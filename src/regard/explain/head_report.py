"""What the heads of a run do, and what it loses without them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.modules import attention_modules
from regard.batches.batches import sequential_batches
from regard.corpus.examples import ImageExamples, LabelledTexts, SentencePairs, TextLines
from regard.errors import UserError
from regard.explain.antecedents import AntecedentHead, find_antecedent_head, word_indices
from regard.explain.heads import (
    MIXED,
    HeadId,
    HeadRole,
    assign_roles,
    head_importance,
    patch_relations,
    prune_heads,
    token_relations,
)
from regard.explain.image_outputs import boxes_with_label, patches_in_boxes
from regard.explain.report import ReportTable
from regard.explain.text_outputs import aligned_word_outputs, load_examples, select_outputs
from regard.tasks.base import EVALUATE_TOKENS, Run
from regard.tasks.classify_images import ClassifyImagesRun
from regard.tasks.shared.images import patch_grid
from regard.tasks.translate import TranslateRun
from regard.training.losses import sequence_log_probs
from regard.worlds import bilingual

PRUNED_FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class HeadReport:
    """Every head: what it does, and what is lost without it."""

    heads: list[HeadRole]
    lost: dict[HeadId, float]
    """In loss a label."""
    pronouns: dict[HeadId, float]
    """In the log-probability of the right pronoun for "it", where a world knows it."""
    pruned: dict[float, float]
    number: int
    refused: dict[str, str]
    resolver: AntecedentHead | None = None

    def words(self) -> list[str]:
        said = [
            f"{head.place}, head {head.number + 1}: {head.does} ({head.shares[head.does][0]:.0%} of its weight; "
            f"by lot {head.shares[head.does][1]:.0%})"
            for head in self.heads
            if head.does != MIXED
        ]
        said += [] if self.resolver is None else self.resolver.words()
        pruned = ", ".join(f"{share:.0%}: {loss:.3f}" for share, loss in self.pruned.items())
        return [*said, f"The loss without so many of the heads, the least important first: {pruned}."]

    def tables(self) -> list[ReportTable]:
        names = list(dict.fromkeys(name for head in self.heads for name in head.shares))
        right = {} if self.resolver is None else {head: f"{score.score:.0f}%" for head, score in self.resolver.chosen.items()}
        header = [
            "head",
            "does",
            *names,
            "loss without it",
            *(['"it" without it'] if self.pronouns else []),
            *(["right noun"] if right else []),
        ]
        rows = [
            [
                f"{head.place} {head.number + 1}",
                head.does,
                *("{:.2f} ({:.2f})".format(*head.shares[name]) if name in head.shares else "" for name in names),
                f"{self.lost[head.place, head.number]:+.4f}",
                *([f"{self.pronouns[head.place, head.number]:+.3f}"] if self.pronouns else []),
                *([right.get((head.place, head.number), "")] if right else []),
            ]
            for head in self.heads
        ]
        return [
            ReportTable(f"heads over {self.number} examples: share of weight (by lot)", header, rows),
            *([] if self.resolver is None else [self.resolver.table()]),
        ]

    def to_json(self) -> dict[str, Any]:
        right = {} if self.resolver is None else self.resolver.chosen
        return {
            "heads": [
                {
                    "place": head.place,
                    "head": head.number + 1,
                    "does": head.does,
                    "shares": {name: {"share": share, "by_lot": lot} for name, (share, lot) in head.shares.items()},
                    "loss_without": self.lost[head.place, head.number],
                    "pronoun_without": self.pronouns.get((head.place, head.number)),
                    "right_noun": right[head.place, head.number].to_json() if (head.place, head.number) in right else None,
                }
                for head in self.heads
            ],
            "resolver": None if self.resolver is None else self.resolver.to_json(),
            "pruned": {str(share): loss for share, loss in self.pruned.items()},
            "number": self.number,
        }


def explain_heads(
    run: Run, data: str = "valid", *, number: int = 200, reference: Path | None = None, gold: Path | None = None
) -> HeadReport:
    """Name the heads of a run over a set, and take each away."""
    if not attention_modules(run.model):
        raise UserError(f"{run.folder}: a model without attention has no heads")
    whole = fill_references(run, load_examples(run, data, reference, gold))
    examples = whole.select(range(0, len(whole), max(1, -(-len(whole) // number))))
    rows = run._encode(examples) if run.task.explains == "image_label" else run._evaluation_rows(examples)
    batches = [batch.to(run.device) for batch in sequential_batches(rows, EVALUATE_TOKENS)]
    labels = sum(batch.label_count() for batch in batches)

    def loss() -> float:
        with torch.no_grad():
            return -sum(float(sequence_log_probs(run.model, batch).sum()) for batch in batches) / labels

    heads = assign_roles(
        run.model,
        image_relations(run, rows, examples) if run.task.explains == "image_label" else sentence_relations(run, rows, examples),
    )
    where = [(head.place, head.number) for head in heads]
    known = examples.gold if isinstance(examples, SentencePairs) and examples.gold is not None else []
    asked = [
        one.target
        for index, pair in enumerate(known)
        if pair.pronouns and run.task.explains == "translation"
        for one in aligned_word_outputs(run, pair, index)
    ]

    def pronouns() -> float:
        return -float(torch.cat([target.whole() for target in asked]).mean())

    lost = head_importance(run.model, where, loss)
    return HeadReport(
        heads,
        lost,
        head_importance(run.model, where, pronouns) if asked else {},
        prune_heads(run.model, lost, PRUNED_FRACTIONS, loss),
        len(examples),
        {},
        antecedent_head(run, data, whole, number),
    )


def antecedent_head(run: Run, data: str, examples: Any, number: int) -> AntecedentHead | None:
    """The head that resolves "it", chosen on one set of a world and reported on the first other one; of a translator alone."""

    def riddles(found: Any) -> bool:
        return isinstance(found, SentencePairs) and any(pair.pronouns for pair in found.gold or [])

    if run.task.explains != "translation" or not riddles(examples):
        return None
    others = {name: found for name, found in {"valid": run.data.valid, **run.data.tests}.items() if name != data}
    return next(
        (find_antecedent_head(run, examples, found, (data, name), number) for name, found in others.items() if riddles(found)),
        None,
    )


def fill_references(run: Run, examples: Any) -> Any:
    """Examples with what should be said of them; where nobody has said it, what the run says itself."""
    if "image" in run.task.reads:
        if run.task.explains != "image_label":
            raise UserError(f"{run.folder} {run.task.does}; of runs that read pictures, heads are named of those that classify them")
        said = [found[0].label for found in run.classify(examples.images)] if not examples.label else examples.label
        return replace(examples, label=said)
    if run.task.decoder_only or not isinstance(examples, TextLines):
        next(select_outputs(run, examples, 1), None)  # refuses what is no text
        return examples
    if run.task.explains == "translation":
        return SentencePairs(examples.text, [found.text for found in run._best(examples.text)], examples.name, examples.lines)
    if run.task.explains == "label":
        return LabelledTexts(
            examples.text, [found[0].label for found in run.classify(examples.text)], examples.name, lines=examples.lines
        )
    raise UserError(f"{run.folder} {run.task.does}; heads are named of runs that classify texts, translate or write on")


def sentence_relations(run: Run, rows: Any, examples: Any) -> Iterator[tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]]:
    """Each example as the model reads it, with what is next to what, and what a world knows."""
    known = {*run._special_tokens.prefix, *run._special_tokens.suffix, run._special_tokens.bos, run._special_tokens.eos}
    for index in range(len(rows)):
        inputs = rows.batch(np.array([index]), 0, 0).to(run.device).inputs
        relations = {
            side: token_relations(inputs[side][0].cpu(), sorted(known), token_embeddings(run, side, inputs[side]))
            for side in ("source", "target")
            if side in inputs
        }
        if run.task.explains == "translation":
            add_cross_relations(run, inputs, examples.gold[index] if examples.gold else None, relations)
        yield inputs, relations


def image_relations(
    run: ClassifyImagesRun, rows: Any, examples: ImageExamples
) -> Iterator[tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]]:
    """Each picture as the model reads it, with what is beside what, and where what its label names is."""
    for index in range(len(rows)):
        named: list[int] = []
        if examples.gold and (boxes := boxes_with_label(examples.gold[index].scene, examples.label[index])):
            named = sorted(patches_in_boxes(boxes, examples.gold[index], patch_grid(run))["box"].right)
        yield (
            rows.batch(np.array([index]), 0, 0).to(run.device).inputs,
            {"target": patch_relations(patch_grid(run), run.recipe.model.num_prefix_tokens, named)},
        )


def token_embeddings(run: Run, side: str, ids: Tensor) -> Tensor | None:
    """The word vectors of one side, where the model has its own."""
    table = getattr(run.model, f"{side}_embedding", None) or getattr(run.model, "token_embedding", None)
    if table is None:
        return None
    with torch.no_grad():
        return table(ids)[0].cpu()


def add_cross_relations(
    run: TranslateRun, inputs: dict[str, Tensor], pair: bilingual.SentencePair | None, relations: dict[str, dict[str, Tensor]]
) -> None:
    """Add what each word that is about to be said has to do with the source; and where a world knows it, what an "it" stands for,
    in all three ways of looking."""
    T, S = inputs["target"].size(1), inputs["source"].size(1)
    relations["cross"] = {"separator": relations["source"]["separator"][0].expand(T, S)}
    if pair is None:
        return
    read, heard, said = (torch.tensor(words) for words in word_indices(run, inputs, pair))
    aligned = torch.zeros(T, S, dtype=torch.bool)
    for s, t in pair.alignment:
        aligned |= (said[:, None] == t) & (read == s)
    relations["cross"]["aligned word"] = aligned
    for side, queries, keys in (("source", read, read), ("cross", said, read), ("target", said, heard)):
        holds = torch.zeros(len(queries), len(keys), dtype=torch.bool)
        for it in pair.pronouns:
            asking, meant = (
                (it.source, it.antecedent_source)
                if side == "source"
                else (it.target, it.antecedent_source if side == "cross" else it.antecedent_target)
            )
            holds |= (queries[:, None] == asking) & (keys == meant)
        relations[side]["antecedent"] = holds
