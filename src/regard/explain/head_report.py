"""What the heads of a run do, and what it loses without them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.modules import places
from regard.batches.batches import in_order
from regard.corpus.examples import Labelled, Lines, Pairs, Pictures
from regard.errors import Mistake
from regard.explain.antecedents import Resolver, find_resolver, words_of
from regard.explain.heads import MIXED, Head, Place, ablate, name_heads, prune, relations_of_patches, relations_within
from regard.explain.image_queries import in_boxes, named_boxes
from regard.explain.report import Table
from regard.explain.text_queries import ask_pair, ask_set, read_set
from regard.tasks.base import EVALUATE_TOKENS, Run
from regard.tasks.classify import Classifier
from regard.tasks.images import PictureClassifier, PictureRun
from regard.tasks.language import LanguageRun
from regard.tasks.translate import Translator
from regard.training.losses import log_probabilities
from regard.worlds import bilingual

PRUNED = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Heads:
    """Every head: what it does, and what is lost without it."""

    heads: list[Head]
    lost: dict[Place, float]
    """In loss a label."""
    pronouns: dict[Place, float]
    """In the log-probability of the right pronoun for "it", where a world knows it."""
    pruned: dict[float, float]
    number: int
    refused: dict[str, str]
    resolver: Resolver | None = None

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

    def tables(self) -> list[Table]:
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
            Table(f"heads over {self.number} examples: share of weight (by lot)", header, rows),
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
) -> Heads:
    """Name the heads of a run over a set, and take each away."""
    if not places(run.model):
        raise Mistake(f"{run.folder}: a model without attention has no heads")
    whole = complete(run, read_set(run, data, reference, gold))
    examples = whole.choose(range(0, len(whole), max(1, -(-len(whole) // number))))
    rows = run.encode(examples) if isinstance(run, PictureClassifier) else run.evaluation_rows(examples)
    batches = [batch.to(run.device) for batch in in_order(rows, EVALUATE_TOKENS)]
    labels = sum(batch.label_count() for batch in batches)

    def loss() -> float:
        with torch.no_grad():
            return -sum(float(log_probabilities(run.model, batch).sum()) for batch in batches) / labels

    heads = name_heads(
        run.model, pictures(run, rows, examples) if isinstance(run, PictureClassifier) else sentences(run, rows, examples)
    )
    where = [(head.place, head.number) for head in heads]
    known = examples.gold if isinstance(examples, Pairs) and examples.gold is not None else []
    asked = [
        one.target
        for index, pair in enumerate(known)
        if pair.pronouns and isinstance(run, Translator)
        for one in ask_pair(run, pair, index)
    ]

    def pronouns() -> float:
        return -float(torch.cat([target.whole() for target in asked]).mean())

    lost = ablate(run.model, where, loss)
    return Heads(
        heads,
        lost,
        ablate(run.model, where, pronouns) if asked else {},
        prune(run.model, lost, PRUNED, loss),
        len(examples),
        {},
        resolver_of(run, data, whole, number),
    )


def resolver_of(run: Run, data: str, examples: Any, number: int) -> Resolver | None:
    """The head that resolves "it", chosen on one set of a world and reported on the first other one; of a translator alone."""

    def riddles(found: Any) -> bool:
        return isinstance(found, Pairs) and any(pair.pronouns for pair in found.gold or [])

    if not isinstance(run, Translator) or not riddles(examples):
        return None
    others = {name: found for name, found in {"valid": run.data.valid, **run.data.tests}.items() if name != data}
    return next(
        (find_resolver(run, examples, found, (data, name), number) for name, found in others.items() if riddles(found)), None
    )


def complete(run: Run, examples: Any) -> Any:
    """Examples with what should be said of them; where nobody has said it, what the run says itself."""
    if isinstance(run, PictureRun):
        if not isinstance(run, PictureClassifier):
            raise Mistake(f"{run.folder} {run.does}; of runs that read pictures, heads are named of those that classify them")
        said = [found[0].label for found in run.classify(examples.pictures)] if not examples.label else examples.label
        return replace(examples, label=said)
    if isinstance(run, LanguageRun) or not isinstance(examples, Lines):
        next(ask_set(run, examples, 1), None)  # refuses what is no text
        return examples
    if isinstance(run, Translator):
        return Pairs(examples.text, [found.text for found in run.best(examples.text)], examples.name, examples.lines)
    if isinstance(run, Classifier):
        return Labelled(
            examples.text, [found[0].label for found in run.classify(examples.text)], examples.name, lines=examples.lines
        )
    raise Mistake(f"{run.folder} {run.does}; heads are named of runs that classify texts, translate or write on")


def sentences(run: Run, rows: Any, examples: Any) -> Iterator[tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]]:
    """Each example as the model reads it, with what is next to what, and what a world knows."""
    known = {*run.marks.before, *run.marks.after, run.marks.begin, run.marks.end}
    for index in range(len(rows)):
        inputs = rows.batch(np.array([index]), 0, 0).to(run.device).inputs
        relations = {
            side: relations_within(inputs[side][0].cpu(), sorted(known), vectors(run, side, inputs[side]))
            for side in ("source", "target")
            if side in inputs
        }
        if isinstance(run, Translator):
            across(run, inputs, examples.gold[index] if examples.gold else None, relations)
        yield inputs, relations


def pictures(
    run: PictureClassifier, rows: Any, examples: Pictures
) -> Iterator[tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]]:
    """Each picture as the model reads it, with what is beside what, and where what its label names is."""
    for index in range(len(rows)):
        named: list[int] = []
        if examples.gold and (boxes := named_boxes(examples.gold[index].scene, examples.label[index])):
            named = sorted(in_boxes(boxes, examples.gold[index], run.grid)["box"].right)
        yield (
            rows.batch(np.array([index]), 0, 0).to(run.device).inputs,
            {"target": relations_of_patches(run.grid, run.recipe.model.marks, named)},
        )


def vectors(run: Run, side: str, ids: Tensor) -> Tensor | None:
    """The word vectors of one side, where the model has its own."""
    table = getattr(run.model, f"{side}_embedding", None) or getattr(run.model, "words", None)
    if table is None:
        return None
    with torch.no_grad():
        return table(ids)[0].cpu()


def across(
    run: Translator, inputs: dict[str, Tensor], pair: bilingual.Pair | None, relations: dict[str, dict[str, Tensor]]
) -> None:
    """Add what each word that is about to be said has to do with the source; and where a world knows it, what an "it" stands for,
    in all three ways of looking."""
    T, S = inputs["target"].size(1), inputs["source"].size(1)
    relations["cross"] = {"separator": relations["source"]["separator"][0].expand(T, S)}
    if pair is None:
        return
    read, heard, said = (torch.tensor(words) for words in words_of(run, inputs, pair))
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
