"""The head that resolves "it": selected on some sentences; measured on others, with the pronouns that depend on it.

A head's choice for an "it" is correct if, of the candidate nouns, the antecedent gets the most weight: in the encoder from the
"it", in the decoder from the position that predicts its translation. A head is ablated by setting its weights to zero.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from regard.attention.modules import layer_names
from regard.corpus.examples import SentencePairs
from regard.explain.explanation import ReportTable
from regard.explain.faithfulness import mean_score
from regard.explain.heads import HeadId, KeyChoice, ablate_heads, head_choices
from regard.explain.verdict import format_probability
from regard.scoring import Score, accuracy, compare_accuracy
from regard.tasks.translate import TranslateRun
from regard.worlds import bilingual

SIGNIFICANCE_LEVEL = 0.05
PronounExample = tuple[dict[str, Tensor], dict[str, KeyChoice], bilingual.SentencePair]
"""The model inputs of a pair, the noun that each kind of attention should choose, and the pair."""


@dataclass(frozen=True)
class AblationResult:
    """The accuracy of pronouns without some heads."""

    heads: tuple[HeadId, ...]
    accuracy: Score
    p_value: float
    """Of McNemar's exact test against the whole model."""

    def to_json(self) -> dict[str, Any]:
        return {"heads": [head_json(head) for head in self.heads], **self.accuracy.to_json(), "p_value": self.p_value}


@dataclass(frozen=True)
class AntecedentHead:
    """The head that resolves "it", measured on a set on which it was not selected. Scores are in percent."""

    head: HeadId
    runner_up: HeadId
    selected_on: str
    selection_accuracy: dict[HeadId, Score]
    """Antecedent accuracy of each head there; that of the best is biased by the selection."""
    name: str
    number: int
    accuracy: dict[HeadId, Score]
    """Antecedent accuracy of the head and of the runner-up."""
    baselines: dict[str, float]
    """Antecedent accuracy of a random choice and of simple rules."""
    pronouns: Score
    """Correct pronouns of the whole model."""
    ablations: dict[str, AblationResult]
    """The same without the "head", the "runner_up", "both", and two "controls" of their layers."""
    same_layer: list[AblationResult]
    """The same without each other head of its layer."""
    excess: Score | None
    """The points lost without it beyond the mean loss without another head of its layer."""
    unchanged: Score
    """The translations that stay the same without it, except for pronouns."""

    @property
    def head_name(self) -> str:
        """The name of the head, counted from 1."""
        return head_name(self.head)

    @property
    def matters(self) -> bool:
        """Whether pronouns suffer without this head, and more than without the others of its layer."""
        ablated = self.ablations["head"]
        lost = ablated.accuracy.score < self.pronouns.score and ablated.p_value < SIGNIFICANCE_LEVEL
        return lost and self.excess is not None and self.excess.low > 0

    def summary(self) -> list[str]:
        baselines = ", ".join(f"{name} {percent:.1f}%" for name, percent in self.baselines.items())
        correct = {name: format_percent(found.accuracy) for name, found in self.ablations.items()}
        verdict = "The pronouns depend on it" if self.matters else "It is not shown that the pronouns depend on it alone"
        lines = [
            f'"it" is resolved by {head_name(self.head)}: the head with the highest antecedent accuracy on {self.selected_on}.',
            f"On {self.name} its antecedent accuracy is {format_percent(self.accuracy[self.head])} of {self.number} sentences; "
            f"{baselines}; runner-up {head_name(self.runner_up)}: {format_percent(self.accuracy[self.runner_up])}.",
            f"{verdict}: {format_percent(self.pronouns)} of them are correct, {correct['head']} without it; the rest of the "
            f"translation is the same without it in {format_percent(self.unchanged)}.",
        ]
        if self.excess is not None:
            lines.append(
                f"Without it, {format_percent(self.excess)} more are lost than without another head of its layer, on average."
            )
        both, controls = correct["both"], correct["controls"]
        return [*lines, f"Without it and the runner-up, {both} are correct; without two controls of their layers, {controls}."]

    def table(self) -> ReportTable:
        rows = [["none", format_percent(self.pronouns), ""]]
        for found in {one.heads: one for one in [*self.ablations.values(), *self.same_layer]}.values():
            heads = " and ".join(map(head_name, found.heads))
            rows.append([heads, format_percent(found.accuracy), format_probability(found.p_value)])
        return ReportTable(f'"it" in {self.number} sentences of {self.name}', ["ablated heads", "correct pronouns", "p"], rows)

    def to_json(self) -> dict[str, Any]:
        return {
            **head_json(self.head),
            "selected_on": self.selected_on,
            "selection_accuracy": self.selection_accuracy[self.head].to_json(),
            "set": self.name,
            "number": self.number,
            "accuracy": self.accuracy[self.head].to_json(),
            "baselines": self.baselines,
            "runner_up": {**head_json(self.runner_up), "accuracy": self.accuracy[self.runner_up].to_json()},
            "pronouns": self.pronouns.to_json(),
            "ablations": {name: found.to_json() for name, found in self.ablations.items()},
            "same_layer": [found.to_json() for found in self.same_layer],
            "excess": None if self.excess is None else self.excess.to_json(),
            "unchanged": self.unchanged.to_json(),
            "matters": self.matters,
        }


def head_name(head: HeadId) -> str:
    """Return the name of a translator's head, counted from 1, as `regard show --head` takes it."""
    stacks = layer_names([head[0], "encoder", "decoder.self_attention"])  # a translator has both
    return f"{stacks[head[0]]}, head {head[1] + 1}"


def head_json(head: HeadId) -> dict[str, Any]:
    return {"name": head_name(head), "module": head[0], "head": head[1] + 1}


def format_percent(score: Score) -> str:
    return f"{score.score:.1f}% [{score.low:.1f}, {score.high:.1f}]"


def antecedent_choices(run: TranslateRun, examples: SentencePairs, number: int) -> dict[HeadId, list[bool]]:
    """Return whether each head finds the antecedent of each of up to `number` "it"."""
    return head_choices(run.model, (one[:2] for one in pronoun_examples(run, examples, number)))


def best_antecedent_head(run: TranslateRun, examples: SentencePairs, number: int = 310) -> HeadId:
    """Return the head that finds the antecedent of "it" most often; of equal ones the first."""
    known = antecedent_choices(run, examples, number)
    return max(known, key=lambda head: sum(known[head]))


def find_antecedent_head(
    run: TranslateRun, selection: SentencePairs, reported: SentencePairs, names: tuple[str, str], number: int
) -> AntecedentHead | None:
    """Select a head on one set and measure it on another, on up to `number` "it" of each; None without two heads or any "it"."""
    known, then = antecedent_choices(run, selection, number), list(pronoun_examples(run, reported, number))
    if len(known) < 2 or not then:
        return None
    best, second = sorted(known, key=lambda head: -sum(known[head]))[:2]  # of equal ones the first
    choices = head_choices(run.model, (one[:2] for one in then))
    pairs = [pair for _, _, pair in then]
    translations = translate_without(run, pairs, [])
    correct = pronouns_correct(pairs, translations)

    def ablation(heads: Sequence[HeadId], ablated: Sequence[str]) -> AblationResult:
        found = pronouns_correct(pairs, ablated)
        _, row = compare_accuracy({"whole": correct, "without": found})
        return AblationResult(tuple(heads), accuracy(found, "pronouns"), row["p_value"])

    alone = translate_without(run, pairs, [best])
    ablated = {"runner_up": [second], "both": [best, second], "controls": control_heads(known, [best, second])}
    ablations = {
        "head": ablation([best], alone),
        **{name: ablation(heads, translate_without(run, pairs, heads)) for name, heads in ablated.items()},
    }
    same_layer = {head: translate_without(run, pairs, [head]) for head in choices if head[0] == best[0] and head != best}
    excess = excess_loss(pronouns_correct(pairs, alone), [pronouns_correct(pairs, texts) for texts in same_layer.values()])
    return AntecedentHead(
        best,
        second,
        names[0],
        {head: accuracy(found, "antecedents") for head, found in known.items()},
        names[1],
        len(pairs),
        {head: accuracy(choices[head], "antecedents") for head in (best, second)},
        rule_baselines(pairs),
        accuracy(correct, "pronouns"),
        ablations,
        [ablation([head], texts) for head, texts in same_layer.items()],
        mean_score("excess", excess),
        accuracy([bilingual.equal_except_pronouns(*texts) for texts in zip(translations, alone)], "unchanged"),
    )


def excess_loss(correct: Sequence[bool], others: Sequence[Sequence[bool]]) -> list[float]:
    """Return, by sentence and in points, the mean correctness without another head minus that without this one."""
    return [100 * (sum(row) / len(row) - one) for one, row in zip(correct, zip(*others))]


def control_heads(known: Mapping[HeadId, Sequence[bool]], heads: Sequence[HeadId]) -> list[HeadId]:
    """Return for each head another one of its layer: the least accurate of those that are left."""
    found: list[HeadId] = []
    for module, _ in heads:
        left = [head for head in known if head[0] == module and head not in (*heads, *found)]
        found += sorted(left, key=lambda head: sum(known[head]))[:1]
    return found


def translate_without(run: TranslateRun, pairs: Sequence[bilingual.SentencePair], heads: Sequence[HeadId]) -> list[str]:
    """Translate the sources with some heads ablated."""
    with ablate_heads(run.model, heads):
        return [found.text for found in run._best([pair.source for pair in pairs])]


def pronouns_correct(pairs: Sequence[bilingual.SentencePair], translations: Sequence[str]) -> list[bool]:
    return [bilingual.pronouns_correct(pair, text) for pair, text in zip(pairs, translations)]


def rule_baselines(pairs: Sequence[bilingual.SentencePair]) -> dict[str, float]:
    """Return the antecedent accuracy of a random choice, and of always choosing the nearest noun or the subject; in percent."""
    known = [(it.candidates.index(it.antecedent_source), len(it.candidates)) for pair in pairs for it in pair.pronouns]
    correct = {
        "random": sum(1 / candidates for _, candidates in known),
        "nearest noun": sum(index == candidates - 1 for index, candidates in known),
        "subject": sum(index == 0 for index, _ in known),
    }
    return {name: 100 * total / len(known) for name, total in correct.items()}


def pronoun_examples(run: TranslateRun, examples: SentencePairs, number: int) -> Iterator[PronounExample]:
    """Yield up to `number` pairs that have an "it", spread over the set."""
    pairs = examples.select([index for index, pair in enumerate(examples.gold or []) if pair.pronouns])
    pairs = pairs.select(range(0, len(pairs), max(1, -(-len(pairs) // number))))
    rows = run._evaluation_rows(pairs)
    for row, pair in enumerate(pairs.gold or []):
        inputs, (it,) = rows.batch(np.array([row]), 0, 0).to(run.device).inputs, pair.pronouns
        source, target, labels = word_indices(run, inputs, pair)
        if {it.source, *it.candidates} <= set(source) and it.target in labels:  # not truncated
            yield inputs, pronoun_choices(pair, it, source, target, labels), pair


def pronoun_choices(
    pair: bilingual.SentencePair, it: bilingual.Pronoun, source: list[int], target: list[int], labels: list[int]
) -> dict[str, KeyChoice]:
    """Return the correct noun for each kind of attention; for the decoder's own, among the translations of the nouns."""
    correct = it.candidates.index(it.antecedent_source)
    nouns = tuple(tokens_of_words({noun}, source) for noun in it.candidates)
    translated = tuple(tokens_of_words({t for s, t in pair.alignment if s == noun}, target) for noun in it.candidates)
    return {
        "source": KeyChoice(source.index(it.source), nouns, correct),
        "cross": KeyChoice(labels.index(it.target), nouns, correct),
        "target": KeyChoice(labels.index(it.target), translated, correct),
    }


def tokens_of_words(words: set[int], word_ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(token for token, word in enumerate(word_ids) if word in words)


def word_indices(
    run: TranslateRun, inputs: Mapping[str, Tensor], pair: bilingual.SentencePair
) -> tuple[list[int], list[int], list[int]]:
    """Return the word index of each token, -1 for special tokens: of the source, of the target, and of the labels (the target
    shifted by one)."""
    prefix, suffix = [-1] * len(run._special_tokens.prefix), [-1] * len(run._special_tokens.suffix)
    source, target = (tokenizer.encode_words([text])[0][1] for tokenizer, text in zip(run.tokenizers, (pair.source, pair.target)))
    source, target = source[: inputs["source"].size(1) - len(prefix) - len(suffix)], target[: inputs["target"].size(1) - 1]
    return [*prefix, *source, *suffix], [-1, *target], [*target, -1]
