"""The roles of a run's heads, and what it loses without them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.modules import attention_modules, layer_names
from regard.batches.batches import sequential_batches
from regard.batches.rows import Rows
from regard.corpus.examples import Examples, ImageExamples, LabelledTexts, SentencePairs, TextLines
from regard.errors import UserError
from regard.explain.antecedents import AntecedentHead, find_antecedent_head, word_indices
from regard.explain.explanation import ReportTable
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
from regard.explain.selection import PREDICTED
from regard.explain.text_outputs import aligned_word_outputs, is_foreign, load_examples, select_outputs
from regard.explain.transformers_heads import check_heads_apply, output_loss, relations_of_outputs
from regard.explain.transformers_outputs import example_outputs
from regard.tasks.base import EVALUATE_TOKENS, Run
from regard.tasks.classify import ClassifyRun
from regard.tasks.classify_images import ClassifyImagesRun
from regard.tasks.shared.images import patch_grid
from regard.tasks.transformers_models import TransformersRun
from regard.tasks.translate import TranslateRun
from regard.training.losses import sequence_log_probs
from regard.worlds import bilingual

PRUNED_FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
ModelExamples = Iterator[tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]]
"""Model inputs with the relations of each side."""


@dataclass(frozen=True)
class HeadReport:
    """Every head: its role, and what is lost without it."""

    heads: list[HeadRole]
    importance: dict[HeadId, float]
    """The loss per label that is added without the head."""
    pronoun_importance: dict[HeadId, float]
    """The same of the negative log-probability of the correct pronoun for "it", where a world knows it."""
    pruned: dict[float, float]
    """The loss by the fraction of heads ablated, the least important first."""
    number: int
    unavailable: dict[str, str]
    antecedent_head: AntecedentHead | None = None

    def names(self) -> dict[HeadId, str]:
        """Return the name of each head, counted from 1, as `regard show --head` takes it."""
        layers = layer_names(head.module for head in self.heads)
        return {(head.module, head.head): f"{layers[head.module]}, head {head.head + 1}" for head in self.heads}

    def summary(self) -> list[str]:
        names = self.names()
        lines = [
            f"{names[head.module, head.head]}: {head.role} ({head.weights[head.role][0]:.0%} of its weight; "
            f"chance {head.weights[head.role][1]:.0%})"
            for head in self.heads
            if head.role != MIXED
        ]
        lines += [] if self.antecedent_head is None else self.antecedent_head.summary()
        pruned = ", ".join(f"{fraction:.0%}: {loss:.3f}" for fraction, loss in self.pruned.items())
        return [*lines, f"Loss by the fraction of heads ablated, the least important first: {pruned}."]

    def tables(self) -> list[ReportTable]:
        names = list(dict.fromkeys(name for head in self.heads for name in head.weights))
        accuracy = {} if self.antecedent_head is None else self.antecedent_head.selection_accuracy
        header = ["head", "role", *names, "loss without"]
        header += ['"it" loss without'] * bool(self.pronoun_importance) + ["antecedent accuracy"] * bool(accuracy)
        rows, of_heads = [], self.names()
        for head in self.heads:
            key = (head.module, head.head)
            row = [of_heads[key], head.role]
            row += ["{:.2f} ({:.2f})".format(*head.weights[name]) if name in head.weights else "" for name in names]
            row.append(f"{self.importance[key]:+.4f}")
            row += [f"{self.pronoun_importance[key]:+.3f}"] if self.pronoun_importance else []
            row += [f"{accuracy[key].score:.0f}%" if key in accuracy else ""] if accuracy else []
            rows.append(row)
        return [
            ReportTable(f"heads over {self.number} examples: weight on each relation (chance)", header, rows),
            *([] if self.antecedent_head is None else [self.antecedent_head.table()]),
        ]

    def to_json(self) -> dict[str, Any]:
        accuracy = {} if self.antecedent_head is None else self.antecedent_head.selection_accuracy
        names = self.names()
        return {
            "heads": [
                {
                    "name": names[key],
                    "module": head.module,
                    "head": head.head + 1,
                    "role": head.role,
                    "relations": {name: {"weight": weight, "chance": chance} for name, (weight, chance) in head.weights.items()},
                    "loss_without": self.importance[key],
                    "pronoun_loss_without": self.pronoun_importance.get(key),
                    "antecedent_accuracy": accuracy[key].to_json() if key in accuracy else None,
                }
                for head in self.heads
                for key in [(head.module, head.head)]
            ],
            "antecedent_head": None if self.antecedent_head is None else self.antecedent_head.to_json(),
            "pruned": {str(fraction): loss for fraction, loss in self.pruned.items()},
            "number": self.number,
        }


def explain_heads(
    run: Run, data: str = "valid", *, number: int = 200, reference: Path | None = None, gold: Path | None = None
) -> HeadReport:
    """Assign a role to each head over a set, and measure the loss without it."""
    if not run._attends and not attention_modules(run.model):
        raise UserError(f"{run.folder}: a model without attention has no heads")
    if is_foreign(run):
        check_heads_apply(cast(TransformersRun, run))
        return explain_foreign_heads(cast(TransformersRun, run), load_examples(run, data, reference, gold), number)
    whole = fill_references(run, load_examples(run, data, reference, gold))
    examples = whole.select(range(0, len(whole), max(1, -(-len(whole) // number))))
    images = run.task.explains == "image_label"
    rows = run._encode(examples) if images else run._evaluation_rows(examples)
    per_example = cast(Callable[[Run, Rows, Examples], ModelExamples], image_relations if images else sentence_relations)
    batches = [batch.to(run.device) for batch in sequential_batches(rows, EVALUATE_TOKENS)]
    labels = sum(batch.label_count() for batch in batches)

    def loss() -> float:
        with torch.no_grad():
            return -sum(float(sequence_log_probs(run.model, batch).sum()) for batch in batches) / labels

    heads = assign_roles(run.model, per_example(run, rows, examples))
    head_ids = [(head.module, head.head) for head in heads]
    known = (examples.gold or []) if run.task.explains == "translation" and isinstance(examples, SentencePairs) else []
    targets = [
        selected.target
        for index, pair in enumerate(known)
        if pair.pronouns
        for selected in aligned_word_outputs(cast(TranslateRun, run), pair, index)
    ]

    def pronoun_loss() -> float:
        return -float(torch.cat([target.full_score() for target in targets]).mean())

    importance = head_importance(run.model, head_ids, loss)
    return HeadReport(
        heads,
        importance,
        head_importance(run.model, head_ids, pronoun_loss) if targets else {},
        prune_heads(run.model, importance, PRUNED_FRACTIONS, loss),
        len(examples),
        {},
        select_antecedent_head(run, data, whole, number),
    )


def explain_foreign_heads(run: TransformersRun, examples: Examples, number: int) -> HeadReport:
    """Report the heads of a model of transformers; the loss is that of one output of each example."""
    chosen = range(0, len(examples), max(1, -(-len(examples) // number)))
    outputs = list(example_outputs(run, examples, chosen, PREDICTED, actual=True))
    if not outputs:
        raise UserError(f"{examples.name}: it has nothing to explain")
    heads, loss = assign_roles(run.model, relations_of_outputs(run, outputs)), output_loss(outputs)
    importance = head_importance(run.model, [(head.module, head.head) for head in heads], loss)
    pruned = prune_heads(run.model, importance, PRUNED_FRACTIONS, loss)
    return HeadReport(heads, importance, {}, pruned, len(outputs), {})


def select_antecedent_head(run: Run, data: str, examples: Examples, number: int) -> AntecedentHead | None:
    """Return a translator's head that resolves "it", selected on one set of a world and measured on the first other one."""

    def has_pronouns(found: Examples) -> TypeGuard[SentencePairs]:
        return isinstance(found, SentencePairs) and any(pair.pronouns for pair in found.gold or [])

    if run.task.explains != "translation" or not has_pronouns(examples):
        return None
    for name, found in {"valid": run.data.valid, **run.data.tests}.items():
        if name != data and has_pronouns(found):
            return find_antecedent_head(cast(TranslateRun, run), examples, found, (data, name), number)
    return None


def fill_references(run: Run, examples: Examples) -> Examples:
    """Return the examples with references; where there are none, with the run's own outputs."""
    if "image" in run.task.reads and run.task.explains != "image_label":
        raise UserError(f"{run.folder} {run.task.does}; among runs that read images, --heads is for those that classify them")
    if isinstance(examples, ImageExamples) and run.task.explains == "image_label":
        classified = [] if examples.label else cast(ClassifyImagesRun, run).classify(examples.images)
        return replace(examples, label=examples.label or [found.label for found in classified])
    if run.task.explains in ("next_token", "masked_token") or not isinstance(examples, TextLines):
        next(select_outputs(run, examples, 1), None)  # refuses examples without text
        return examples
    if run.task.explains == "translation":
        translations = [found.text for found in cast(TranslateRun, run)._best(examples.text)]
        return SentencePairs(examples.text, translations, name=examples.name, lines=examples.lines)
    if run.task.explains == "label":
        labels = [found.label for found in cast(ClassifyRun, run).classify(examples.text)]
        return LabelledTexts(examples.text, labels, name=examples.name, lines=examples.lines)
    raise UserError(f"{run.folder} {run.task.does}; --heads is for runs that classify texts, translate, or predict words")


def sentence_relations(run: Run, rows: Rows, examples: Examples) -> ModelExamples:
    """Yield the model inputs and the relations of each text, those that a world knows among them."""
    tokens = run._special_tokens
    special = {*tokens.prefix, *tokens.suffix, *tokens.output_start, tokens.eos}
    for index in range(len(rows)):
        inputs = rows.batch(np.array([index]), 0, 0).to(run.device).inputs
        relations: dict[str, dict[str, Tensor]] = {
            side: token_relations(inputs[side][0].cpu(), sorted(special), token_embeddings(run.model, side, inputs[side]))
            for side in ("source", "target")
            if side in inputs
        }
        if run.task.explains == "translation" and isinstance(examples, SentencePairs):
            pair = examples.gold[index] if examples.gold else None
            add_cross_relations(cast(TranslateRun, run), inputs, pair, relations)
        yield inputs, relations


def image_relations(run: Run, rows: Rows, examples: ImageExamples) -> ModelExamples:
    """Yield the model inputs and the relations of each image, with the patches that show what its label names."""
    for index in range(len(rows)):
        named: list[int] = []
        if examples.gold and (boxes := boxes_with_label(examples.gold[index].scene, examples.label[index])):
            named = sorted(patches_in_boxes(boxes, examples.gold[index], patch_grid(run))["box"].correct)
        inputs = rows.batch(np.array([index]), 0, 0).to(run.device).inputs
        yield inputs, {"target": patch_relations(patch_grid(run), run.recipe.model.prefix_tokens, named)}


@torch.no_grad()
def token_embeddings(model: nn.Module, side: str, ids: Tensor) -> Tensor | None:
    """Return the token embeddings of one side, None where the model has none of its own."""
    table: nn.Module | None = getattr(model, f"{side}_embedding", None) or getattr(model, "token_embedding", None)
    return None if table is None else table(ids)[0].cpu()


def add_cross_relations(
    run: TranslateRun, inputs: dict[str, Tensor], pair: bilingual.SentencePair | None, relations: dict[str, dict[str, Tensor]]
) -> None:
    """Add the relations of the target's next words to the source; where a world knows them, alignments and antecedents too."""
    T, S = inputs["target"].size(1), inputs["source"].size(1)
    relations["cross"] = {"separator": relations["source"]["separator"][0].expand(T, S)}
    if pair is None:
        return
    source, target, labels = (torch.tensor(words) for words in word_indices(run, inputs, pair))
    aligned = torch.zeros(T, S, dtype=torch.bool)
    for s, t in pair.alignment:
        aligned |= (labels[:, None] == t) & (source == s)
    relations["cross"]["aligned word"] = aligned
    for side, queries, keys in (("source", source, source), ("cross", labels, source), ("target", labels, target)):
        holds = torch.zeros(len(queries), len(keys), dtype=torch.bool)
        for it in pair.pronouns:
            pronoun = it.source if side == "source" else it.target
            antecedent = it.antecedent_target if side == "target" else it.antecedent_source
            holds |= (queries[:, None] == pronoun) & (keys == antecedent)
        relations[side]["antecedent"] = holds
