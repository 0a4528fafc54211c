"""The head that resolves "it": chosen by where it looks in some sentences; in others, how often it is right, and what becomes of
the pronouns without it.

A head is right about an "it" if, of the nouns that it might mean, the one that it does mean gets the most weight: in the encoder
from the "it", in the decoder from where its pronoun is about to be said. A head is taken away by zeros in place of its weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from regard.corpus.examples import SentencePairs
from regard.explain.faithfulness import mean_score
from regard.explain.heads import HeadId, KeyChoice, head_choices, without
from regard.explain.report import ReportTable
from regard.scoring import Score, accuracy, compare_accuracy
from regard.tasks.translate import TranslateRun
from regard.worlds import bilingual

SIGNIFICANCE_LEVEL = 0.05
PronounExample = tuple[dict[str, Tensor], dict[str, KeyChoice], bilingual.SentencePair]
"""What the model reads of a pair, which noun each kind of attention should look at, and the pair."""


@dataclass(frozen=True)
class AblationResult:
    """The pronouns without some heads."""

    heads: tuple[HeadId, ...]
    right: Score
    p_value: float
    """That they are as often right as with all heads: McNemar's exact test."""

    def to_json(self) -> dict[str, Any]:
        return {"heads": [head_json(head) for head in self.heads], **self.right.to_json(), "p_value": self.p_value}


@dataclass(frozen=True)
class AntecedentHead:
    """The head that resolves "it", and what a set on which it was not chosen says of it. Scores are in percent."""

    head: HeadId
    second: HeadId
    """The next best."""
    chosen_on: str
    chosen: dict[HeadId, Score]
    """How often each head is right there; of the best, flattered by the choice."""
    name: str
    number: int
    accuracy: dict[HeadId, Score]
    """How often the two are right about the noun."""
    rules: dict[str, float]
    """How often one is right by lot, and by simple rules."""
    whole: Score
    """Pronouns that are right by the world's judge."""
    without: dict[str, AblationResult]
    """The same without the head, without the second, without both, without two others of their layers."""
    beside: list[AblationResult]
    """The same without each other head of its layer."""
    more: Score | None
    """The points lost without it beyond those lost without another head of its layer, on average."""
    otherwise: Score
    """How many translations stay the same without it, but for pronouns."""

    @property
    def matters(self) -> bool:
        """Whether the pronouns suffer without this head, and more than without those beside it."""
        found = self.without["it"]
        lost = found.right.score < self.whole.score and found.p_value < SIGNIFICANCE_LEVEL
        return lost and self.more is not None and self.more.low > 0

    def words(self) -> list[str]:
        rules = ", ".join(f"{name} {share:.1f}%" for name, share in self.rules.items())
        right = {name: format_percent(found.right) for name, found in self.without.items()}
        verdict = "The pronouns depend on it" if self.matters else "That the pronouns depend on it alone is not shown"
        said = [
            f'"it" is resolved by {head_name(self.head)}: of all heads most often right about its noun on {self.chosen_on}.',
            f"On {self.name} it is right in {format_percent(self.accuracy[self.head])} of {self.number} sentences; {rules}; the "
            f"next best head, {head_name(self.second)}, {format_percent(self.accuracy[self.second])}.",
            f"{verdict}: {format_percent(self.whole)} of them are right, {right['it']} without it; "
            f"the rest of the translation is "
            f"the same without it in {format_percent(self.otherwise)}.",
        ]
        if self.more is not None:
            said.append(
                f"Without it, {format_percent(self.more)} more are lost than without another head of its layer, on average."
            )
        return [
            *said,
            f"Without it and the next best, {right['both']} are right; without two others of their layers, {right['others']}.",
        ]

    def table(self) -> ReportTable:
        rows = [["nothing", format_percent(self.whole), ""]]
        for found in {one.heads: one for one in [*self.without.values(), *self.beside]}.values():
            heads = " and ".join(f"{place} {number + 1}" for place, number in found.heads)
            rows.append([heads, format_percent(found.right), f"{found.p_value:.4f}"])
        return ReportTable(f'"it" in {self.number} sentences of {self.name}', ["taken away", "pronouns right", "p"], rows)

    def to_json(self) -> dict[str, Any]:
        return {
            **head_json(self.head),
            "chosen_on": self.chosen_on,
            "chosen": self.chosen[self.head].to_json(),
            "set": self.name,
            "number": self.number,
            "accuracy": self.accuracy[self.head].to_json(),
            "rules": self.rules,
            "second": {**head_json(self.second), "accuracy": self.accuracy[self.second].to_json()},
            "pronouns": self.whole.to_json(),
            "pronouns_without": {name: found.to_json() for name, found in self.without.items()},
            "pronouns_beside": [found.to_json() for found in self.beside],
            "more": None if self.more is None else self.more.to_json(),
            "otherwise": self.otherwise.to_json(),
            "matters": self.matters,
        }


def head_name(head: HeadId) -> str:
    return f"{head[0]}, head {head[1] + 1}"


def head_json(head: HeadId) -> dict[str, Any]:
    return {"place": head[0], "head": head[1] + 1}


def format_percent(score: Score) -> str:
    return f"{score.score:.1f}% [{score.low:.1f}, {score.high:.1f}]"


def find_antecedent_head(
    run: TranslateRun, chosen: SentencePairs, reported: SentencePairs, names: tuple[str, str], number: int
) -> AntecedentHead | None:
    """Choose a head on one set and report it on another, on so many "it" of each; None where there are not two heads to
    choose from, or nothing to ask."""
    first, then = (list(pronoun_examples(run, examples, number)) for examples in (chosen, reported))
    known = head_choices(run.model, (one[:2] for one in first))
    if len(known) < 2 or not then:
        return None
    best, second = sorted(known, key=lambda head: -sum(known[head]))[:2]  # of equals the first
    right = head_choices(run.model, (one[:2] for one in then))
    pairs = [pair for _, _, pair in then]
    whole = translate_without(run, pairs, [])
    judged = pronouns_correct(pairs, whole)

    def tested(heads: Sequence[HeadId], said: Sequence[str]) -> AblationResult:
        found = pronouns_correct(pairs, said)
        _, row = compare_accuracy({"whole": judged, "without": found})
        return AblationResult(tuple(heads), accuracy(found, "pronouns"), row["p_value"])

    alone = translate_without(run, pairs, [best])
    taken = {"second": [second], "both": [best, second], "others": control_heads(known, [best, second])}
    without = {
        "it": tested([best], alone),
        **{name: tested(heads, translate_without(run, pairs, heads)) for name, heads in taken.items()},
    }
    beside = {head: translate_without(run, pairs, [head]) for head in right if head[0] == best[0] and head != best}
    return AntecedentHead(
        best,
        second,
        names[0],
        {head: accuracy(found, "antecedents") for head, found in known.items()},
        names[1],
        len(pairs),
        {head: accuracy(right[head], "antecedents") for head in (best, second)},
        rule_baselines(pairs),
        accuracy(judged, "pronouns"),
        without,
        [tested([head], said) for head, said in beside.items()],
        mean_score(
            "more", excess_loss(pronouns_correct(pairs, alone), [pronouns_correct(pairs, said) for said in beside.values()])
        ),
        accuracy([bilingual.equal_except_pronouns(*texts) for texts in zip(whole, alone)], "otherwise"),
    )


def excess_loss(right: Sequence[bool], others: Sequence[Sequence[bool]]) -> list[float]:
    """By sentence, in points: how much less often right without a head than without another, on average."""
    return [100 * (sum(row) / len(row) - one) for one, row in zip(right, zip(*others))]


def control_heads(known: Mapping[HeadId, Sequence[bool]], heads: Sequence[HeadId]) -> list[HeadId]:
    """For each of some heads, another of its layer: the least often right of those that are left."""
    found: list[HeadId] = []
    for place, _ in heads:
        left = [head for head in known if head[0] == place and head not in (*heads, *found)]
        found += sorted(left, key=lambda head: sum(known[head]))[:1]
    return found


def translate_without(run: TranslateRun, pairs: Sequence[bilingual.SentencePair], heads: Sequence[HeadId]) -> list[str]:
    """What the run says without some heads."""
    with without(run.model, heads):
        return [found.text for found in run._best([pair.source for pair in pairs])]


def pronouns_correct(pairs: Sequence[bilingual.SentencePair], said: Sequence[str]) -> list[bool]:
    return [bilingual.pronouns_correct(pair, text) for pair, text in zip(pairs, said)]


def rule_baselines(pairs: Sequence[bilingual.SentencePair]) -> dict[str, float]:
    """How often one is right by lot, and by taking always the nearest noun, or the subject; in percent."""
    meant = [(it.candidates.index(it.antecedent_source), len(it.candidates)) for pair in pairs for it in pair.pronouns]
    found = {
        "by lot": sum(1 / among for _, among in meant),
        "the nearest noun": sum(place == among - 1 for place, among in meant),
        "the subject": sum(place == 0 for place, _ in meant),
    }
    return {name: 100 * right / len(meant) for name, right in found.items()}


def pronoun_examples(run: TranslateRun, examples: SentencePairs, number: int) -> Iterator[PronounExample]:
    """So many pairs that have an "it", spread over the set."""
    riddles = examples.select([index for index, pair in enumerate(examples.gold or []) if pair.pronouns])
    riddles = riddles.select(range(0, len(riddles), max(1, -(-len(riddles) // number))))
    rows = run._evaluation_rows(riddles)
    for row, pair in enumerate(riddles.gold or []):
        inputs, (it,) = rows.batch(np.array([row]), 0, 0).to(run.device).inputs, pair.pronouns
        read, heard, said = word_indices(run, inputs, pair)
        if {it.source, *it.candidates} <= set(read) and it.target in said:  # nothing of it is cut off
            yield inputs, pronoun_choices(pair, it, read, heard, said), pair


def pronoun_choices(
    pair: bilingual.SentencePair, it: bilingual.Pronoun, read: list[int], heard: list[int], said: list[int]
) -> dict[str, KeyChoice]:
    """Which noun is meant, asked of each kind of attention: in the decoder's own of what translates the nouns."""
    right = it.candidates.index(it.antecedent_source)
    nouns = tuple(tokens_of_words({noun}, read) for noun in it.candidates)
    spoken = tuple(tokens_of_words({t for s, t in pair.alignment if s == noun}, heard) for noun in it.candidates)
    return {
        "source": KeyChoice(read.index(it.source), nouns, right),
        "cross": KeyChoice(said.index(it.target), nouns, right),
        "target": KeyChoice(said.index(it.target), spoken, right),
    }


def tokens_of_words(words: set[int], numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(place for place, word in enumerate(numbers) if word in words)


def word_indices(
    run: TranslateRun, inputs: Mapping[str, Tensor], pair: bilingual.SentencePair
) -> tuple[list[int], list[int], list[int]]:
    """Word numbers, -1 for marks: of what is read in the source, and in the target, and of what each place there says next."""
    before, after = [-1] * len(run._special_tokens.prefix), [-1] * len(run._special_tokens.suffix)
    read, spoken = (tokenizer.encode_words([text])[0][1] for tokenizer, text in zip(run.tokenizers, (pair.source, pair.target)))
    read, spoken = read[: inputs["source"].size(1) - len(before) - len(after)], spoken[: inputs["target"].size(1) - 1]
    return [*before, *read, *after], [-1, *spoken], [*spoken, -1]
