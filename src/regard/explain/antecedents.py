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

from regard.corpus.examples import Pairs
from regard.explain.faithfulness import mean
from regard.explain.heads import Choice, Place, answers, without
from regard.explain.report import Table
from regard.scoring import Score, accuracy, compare_right
from regard.tasks.translate import Translator
from regard.worlds import bilingual

CERTAIN = 0.05
Asked = tuple[dict[str, Tensor], dict[str, Choice], bilingual.Pair]
"""What the model reads of a pair, which noun each kind of attention should look at, and the pair."""


@dataclass(frozen=True)
class Without:
    """The pronouns without some heads."""

    heads: tuple[Place, ...]
    right: Score
    p_value: float
    """That they are as often right as with all heads: McNemar's exact test."""

    def to_json(self) -> dict[str, Any]:
        return {"heads": [as_json(head) for head in self.heads], **self.right.to_json(), "p_value": self.p_value}


@dataclass(frozen=True)
class Resolver:
    """The head that resolves "it", and what a set on which it was not chosen says of it. Scores are in percent."""

    head: Place
    second: Place
    """The next best."""
    chosen_on: str
    chosen: dict[Place, Score]
    """How often each head is right there; of the best, flattered by the choice."""
    name: str
    number: int
    accuracy: dict[Place, Score]
    """How often the two are right about the noun."""
    rules: dict[str, float]
    """How often one is right by lot, and by simple rules."""
    whole: Score
    """Pronouns that are right by the world's judge."""
    without: dict[str, Without]
    """The same without the head, without the second, without both, without two others of their layers."""
    beside: list[Without]
    """The same without each other head of its layer."""
    more: Score | None
    """The points lost without it beyond those lost without another head of its layer, on average."""
    otherwise: Score
    """How many translations stay the same without it, but for pronouns."""

    @property
    def matters(self) -> bool:
        """Whether the pronouns suffer without this head, and more than without those beside it."""
        found = self.without["it"]
        lost = found.right.score < self.whole.score and found.p_value < CERTAIN
        return lost and self.more is not None and self.more.low > 0

    def words(self) -> list[str]:
        rules = ", ".join(f"{name} {share:.1f}%" for name, share in self.rules.items())
        right = {name: percent(found.right) for name, found in self.without.items()}
        verdict = "The pronouns depend on it" if self.matters else "That the pronouns depend on it alone is not shown"
        said = [
            f'"it" is resolved by {named(self.head)}: of all heads most often right about its noun on {self.chosen_on}.',
            f"On {self.name} it is right in {percent(self.accuracy[self.head])} of {self.number} sentences; {rules}; the "
            f"next best head, {named(self.second)}, {percent(self.accuracy[self.second])}.",
            f"{verdict}: {percent(self.whole)} of them are right, {right['it']} without it; the rest of the translation is "
            f"the same without it in {percent(self.otherwise)}.",
        ]
        if self.more is not None:
            said.append(f"Without it, {percent(self.more)} more are lost than without another head of its layer, on average.")
        return [
            *said,
            f"Without it and the next best, {right['both']} are right; without two others of their layers, {right['others']}.",
        ]

    def table(self) -> Table:
        rows = [["nothing", percent(self.whole), ""]]
        for found in {one.heads: one for one in [*self.without.values(), *self.beside]}.values():
            heads = " and ".join(f"{place} {number + 1}" for place, number in found.heads)
            rows.append([heads, percent(found.right), f"{found.p_value:.4f}"])
        return Table(f'"it" in {self.number} sentences of {self.name}', ["taken away", "pronouns right", "p"], rows)

    def to_json(self) -> dict[str, Any]:
        return {
            **as_json(self.head),
            "chosen_on": self.chosen_on,
            "chosen": self.chosen[self.head].to_json(),
            "set": self.name,
            "number": self.number,
            "accuracy": self.accuracy[self.head].to_json(),
            "rules": self.rules,
            "second": {**as_json(self.second), "accuracy": self.accuracy[self.second].to_json()},
            "pronouns": self.whole.to_json(),
            "pronouns_without": {name: found.to_json() for name, found in self.without.items()},
            "pronouns_beside": [found.to_json() for found in self.beside],
            "more": None if self.more is None else self.more.to_json(),
            "otherwise": self.otherwise.to_json(),
            "matters": self.matters,
        }


def named(head: Place) -> str:
    return f"{head[0]}, head {head[1] + 1}"


def as_json(head: Place) -> dict[str, Any]:
    return {"place": head[0], "head": head[1] + 1}


def percent(score: Score) -> str:
    return f"{score.score:.1f}% [{score.low:.1f}, {score.high:.1f}]"


def find_resolver(run: Translator, chosen: Pairs, reported: Pairs, names: tuple[str, str], number: int) -> Resolver | None:
    """Choose a head on one set and report it on another, on so many "it" of each; None where there are not two heads to
    choose from, or nothing to ask."""
    first, then = (list(ask_pronouns(run, examples, number)) for examples in (chosen, reported))
    known = answers(run.model, (one[:2] for one in first))
    if len(known) < 2 or not then:
        return None
    best, second = sorted(known, key=lambda head: -sum(known[head]))[:2]  # of equals the first
    right = answers(run.model, (one[:2] for one in then))
    pairs = [pair for _, _, pair in then]
    whole = translated(run, pairs, [])
    judged = judge(pairs, whole)

    def tested(heads: Sequence[Place], said: Sequence[str]) -> Without:
        found = judge(pairs, said)
        _, row = compare_right({"whole": judged, "without": found})
        return Without(tuple(heads), accuracy(found, "pronouns"), row["p_value"])

    alone = translated(run, pairs, [best])
    taken = {"second": [second], "both": [best, second], "others": least_right(known, [best, second])}
    without = {
        "it": tested([best], alone),
        **{name: tested(heads, translated(run, pairs, heads)) for name, heads in taken.items()},
    }
    beside = {head: translated(run, pairs, [head]) for head in right if head[0] == best[0] and head != best}
    return Resolver(
        best,
        second,
        names[0],
        {head: accuracy(found, "antecedents") for head, found in known.items()},
        names[1],
        len(pairs),
        {head: accuracy(right[head], "antecedents") for head in (best, second)},
        by_rule(pairs),
        accuracy(judged, "pronouns"),
        without,
        [tested([head], said) for head, said in beside.items()],
        mean("more", lost_more(judge(pairs, alone), [judge(pairs, said) for said in beside.values()])),
        accuracy([bilingual.same_but_for_pronouns(*texts) for texts in zip(whole, alone)], "otherwise"),
    )


def lost_more(right: Sequence[bool], others: Sequence[Sequence[bool]]) -> list[float]:
    """By sentence, in points: how much less often right without a head than without another, on average."""
    return [100 * (sum(row) / len(row) - one) for one, row in zip(right, zip(*others))]


def least_right(known: Mapping[Place, Sequence[bool]], heads: Sequence[Place]) -> list[Place]:
    """For each of some heads, another of its layer: the least often right of those that are left."""
    found: list[Place] = []
    for place, _ in heads:
        left = [head for head in known if head[0] == place and head not in (*heads, *found)]
        found += sorted(left, key=lambda head: sum(known[head]))[:1]
    return found


def translated(run: Translator, pairs: Sequence[bilingual.Pair], heads: Sequence[Place]) -> list[str]:
    """What the run says without some heads."""
    with without(run.model, heads):
        return [found.text for found in run.best([pair.source for pair in pairs])]


def judge(pairs: Sequence[bilingual.Pair], said: Sequence[str]) -> list[bool]:
    return [bilingual.pronouns_right(pair, text) for pair, text in zip(pairs, said)]


def by_rule(pairs: Sequence[bilingual.Pair]) -> dict[str, float]:
    """How often one is right by lot, and by taking always the nearest noun, or the subject; in percent."""
    meant = [(it.candidates.index(it.antecedent_source), len(it.candidates)) for pair in pairs for it in pair.pronouns]
    found = {
        "by lot": sum(1 / among for _, among in meant),
        "the nearest noun": sum(place == among - 1 for place, among in meant),
        "the subject": sum(place == 0 for place, _ in meant),
    }
    return {name: 100 * right / len(meant) for name, right in found.items()}


def ask_pronouns(run: Translator, examples: Pairs, number: int) -> Iterator[Asked]:
    """So many pairs that have an "it", spread over the set."""
    riddles = examples.choose([index for index, pair in enumerate(examples.gold or []) if pair.pronouns])
    riddles = riddles.choose(range(0, len(riddles), max(1, -(-len(riddles) // number))))
    rows = run.evaluation_rows(riddles)
    for row, pair in enumerate(riddles.gold or []):
        inputs, (it,) = rows.batch(np.array([row]), 0, 0).to(run.device).inputs, pair.pronouns
        read, heard, said = words_of(run, inputs, pair)
        if {it.source, *it.candidates} <= set(read) and it.target in said:  # nothing of it is cut off
            yield inputs, questions(pair, it, read, heard, said), pair


def questions(
    pair: bilingual.Pair, it: bilingual.Pronoun, read: list[int], heard: list[int], said: list[int]
) -> dict[str, Choice]:
    """Which noun is meant, asked of each kind of attention: in the decoder's own of what translates the nouns."""
    right = it.candidates.index(it.antecedent_source)
    nouns = tuple(tokens_of({noun}, read) for noun in it.candidates)
    spoken = tuple(tokens_of({t for s, t in pair.alignment if s == noun}, heard) for noun in it.candidates)
    return {
        "source": Choice(read.index(it.source), nouns, right),
        "cross": Choice(said.index(it.target), nouns, right),
        "target": Choice(said.index(it.target), spoken, right),
    }


def tokens_of(words: set[int], numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(place for place, word in enumerate(numbers) if word in words)


def words_of(run: Translator, inputs: Mapping[str, Tensor], pair: bilingual.Pair) -> tuple[list[int], list[int], list[int]]:
    """Word numbers, -1 for marks: of what is read in the source, and in the target, and of what each place there says next."""
    before, after = [-1] * len(run.marks.before), [-1] * len(run.marks.after)
    read, spoken = (tokenizer.encode_words([text])[0][1] for tokenizer, text in zip(run.tokenizers, (pair.source, pair.target)))
    read, spoken = read[: inputs["source"].size(1) - len(before) - len(after)], spoken[: inputs["target"].size(1) - 1]
    return [*before, *read, *after], [-1, *spoken], [*spoken, -1]
