"""A bilingual world: English and German sentences, word alignments and the antecedent of every "it", all of them known.

The grammar and the words are our own (see nouns, verbs, words, german, grammar and riddles beside this file). A sentence is
a pure function of the seed; its English alone decides its German, and also whether it belongs to train, valid or test.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from regard.errors import UserError
from regard.worlds.coreference import Coreference, CoreferenceGrammar
from regard.worlds.lexicon import Noun, lexicon
from regard.worlds.phrases import UNCOUNTABLE, Words

LEVELS = (1, 2, 3)
SPLITS = {"train": 14, "valid": 1, "test": 1}  # of sixteen sentences
PRONOUN_FRACTION = 0.32  # of the sentences have an "it", unless asked otherwise
PRONOUN_GENDER = {"er": "m", "ihn": "m", "sie": "f", "es": "n"}  # German words that stand for "it" and, here, for nothing else
MAX_DUPLICATES = 2000  # draws in a row without a new sentence before a level counts as used up
ANTECEDENT_HEADER = "line\tsource\ttarget\tantecedent_source\tantecedent_target\tform\tcandidates\tgenders"
README = """# A bilingual world

English and German sentences of level {level}, as `regard world bilingual --number {number} --seed {seed}` writes them.
{number} sentences to train on, {held_out} each for valid and test; no sentence is in two of them.

| file | line by line |
|---|---|
| `*.en`, `*.de` | a sentence and its translation; words are what spaces separate |
| `*.align` | Moses alignments: `0-1` aligns the first English word with the second German one |
| `*.antecedents.tsv` | one "it" a line, below a header |

The columns of the antecedents: the line of the sentence; the words "it", its German pronoun, and the noun that it stands for in
English and in German; the pronoun's form; the English nouns that it might mean, and their German genders. Every count starts
at 0. The first of these candidates is the subject among them, the last the nearest noun."""


@dataclass(frozen=True, slots=True)
class Pronoun:
    """An "it", by the positions of words. The first candidate is the subject among them, the last the nearest noun."""

    source: int
    target: int
    antecedent_source: int
    antecedent_target: int
    form: str
    candidates: tuple[int, ...]
    genders: tuple[str, ...]  # of the candidates: m, f, n


@dataclass(frozen=True, slots=True)
class SentencePair:
    """A sentence and its translation; words are what spaces separate, punctuation riding on them."""

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]
    pronouns: tuple[Pronoun, ...]
    possible: tuple[tuple[int, int], ...] = ()
    """Links that are neither right nor wrong. A world has none; gold alignments in files may."""


def generate(
    number: int, seed: int, *, level: int = 3, split: str = "train", pronoun_fraction: float = PRONOUN_FRACTION
) -> list[SentencePair]:
    """The first `number` distinct sentences of a seed, `share` of them with an "it"; fewer are always the beginning of more."""
    if number <= 0:
        raise UserError(f"number = {number}: ask for at least one sentence")
    if level not in LEVELS:
        raise UserError(f"level = {level!r}: the levels are 1, 2 and 3")
    if split not in SPLITS:
        raise UserError(f"split = {split!r}: the splits are {', '.join(SPLITS)}")
    promised = count_sentences(level) * SPLITS[split] // 16
    if number > promised:
        raise UserError(
            f"number = {number}: level {level} promises {promised} {split} sentences; ask for fewer, or a higher level"
        )
    pairs: list[SentencePair] = []
    seen: set[str] = set()
    idle = 0
    for ours, theirs, solution in iterate_sentences(level, seed, pronoun_fraction):
        text = sentence_text(ours)
        if assign_split(text) != split:
            continue
        if text in seen:
            idle += 1
            if idle == MAX_DUPLICATES:
                raise UserError(f"number = {number}: level {level} runs dry at {len(pairs)} {split} sentences; ask for fewer")
            continue
        idle = 0
        seen.add(text)
        pairs.append(build_pair(text, ours, theirs, solution))
        if len(pairs) == number:
            break
    return pairs


def iterate_sentences(
    level: int, seed: int, pronoun_fraction: float = PRONOUN_FRACTION
) -> Iterator[tuple[Words, Words, Coreference | None]]:
    """Sentences without end."""
    speaker = CoreferenceGrammar(level, seed)
    while True:
        speaker.meanings = 0
        if speaker.chance(pronoun_fraction):
            sentence, solution = speaker.pronoun_sentence()
            yield *sentence, solution
        else:
            yield *speaker.sentence(), None


def sentence_text(words: Words) -> str:
    """Capital first, full stop last."""
    text = " ".join([word for word, _ in words]).removesuffix(",")
    return text[0].upper() + text[1:] + "."


def assign_split(text: str) -> str:
    """By the English sentence alone, so that no seed and no number puts a test sentence into train."""
    drawn = hashlib.blake2b(text.encode(), digest_size=1).digest()[0] % 16
    return {0: "valid", 1: "test"}.get(drawn, "train")


def build_pair(text: str, ours: Words, theirs: Words, solution: Coreference | None) -> SentencePair:
    places: dict[int, list[int]] = {}
    for place, (_, meanings) in enumerate(theirs):
        for meaning in meanings:
            places.setdefault(meaning, []).append(place)
    links = tuple((at, to) for at, (_, meanings) in enumerate(ours) for m in meanings for to in places.get(m, ()))
    pronouns = (locate_pronoun(ours, theirs, places, solution),) if solution else ()
    return SentencePair(text, sentence_text(theirs), links, pronouns)


def locate_pronoun(ours: Words, theirs: Words, places: dict[int, list[int]], solution: Coreference) -> Pronoun:
    at = {meanings[0]: place for place, (_, meanings) in enumerate(ours)}
    gold = solution.candidates[solution.gold]
    target = places[solution.pronoun][0]
    return Pronoun(
        at[solution.pronoun],
        target,
        at[gold],
        places[gold][0],
        theirs[target][0],
        tuple(at[candidate] for candidate in solution.candidates),
        solution.genders,
    )


def pronoun_baselines(pairs: Iterable[SentencePair]) -> dict[str, float]:
    """The share of pronouns whose form three simple rules get right; they must lose to whoever reads for the meaning."""
    pronouns = [pronoun for pair in pairs for pronoun in pair.pronouns]
    if not pronouns:
        raise UserError("no pair has a pronoun: there is nothing to compare with")
    gold = [PRONOUN_GENDER[pronoun.form] for pronoun in pronouns]
    right = {
        "nearest noun": sum(p.genders[-1] == g for p, g in zip(pronouns, gold)),
        "subject": sum(p.genders[0] == g for p, g in zip(pronouns, gold)),
        "commonest gender": max(Counter(gold).values()),
    }
    return {name: count / len(gold) for name, count in right.items()}


def pronouns_correct(pair: SentencePair, hypothesis: str) -> bool:
    """Whether a translation's er, sie, es and ihn are the gold ones, in order: here they never stand for anything but "it"."""
    return [word for word in normalized_words(hypothesis) if word in PRONOUN_GENDER] == [
        pronoun.form for pronoun in pair.pronouns
    ]


def equal_except_pronouns(one: str, other: str) -> bool:
    """Whether two translations differ in nothing but their er, sie, es and ihn."""
    ours, theirs = ([word for word in normalized_words(text) if word not in PRONOUN_GENDER] for text in (one, other))
    return ours == theirs


def normalized_words(text: str) -> list[str]:
    return [word.strip(',.;:!?"').lower() for word in text.split()]


def pronoun_accuracy(pairs: Iterable[SentencePair], hypotheses: Iterable[str]) -> tuple[int, int]:
    """How many of the sentences with a pronoun have it right, and how many there are."""
    right = [pronouns_correct(pair, text) for pair, text in zip(pairs, hypotheses, strict=True) if pair.pronouns]
    return sum(right), len(right)


def count_sentences(level: int) -> int:
    """Distinct English sentences of a level, counted in its simplest construction alone: "The old queen buys seven apples."

    One main clause in the present or the past with a singular subject and an object. Each slot of it shows in the sentence,
    so two derivations never give the same words, and the product is exact; everything else comes on top.
    """
    words = lexicon(level)
    subjects = {kind: sum(count_singular_phrases(level, noun) for noun in words.nouns[kind]) for kind in ("person", "animal")}
    objects = {
        kind: sum(count_singular_phrases(level, noun) + count_plural_phrases(level, noun) for noun in words.nouns[kind])
        for kind in words.nouns
    }
    return sum(
        2 * subjects[kind] * objects[thing]
        for kind in subjects
        for verb in words.acting["transitive", kind]
        for thing in verb.objects
    )


def count_singular_phrases(level: int, noun: Noun) -> int:
    """The singular phrases around a noun: determiners by adjectives."""
    words = lexicon(level)
    choices = len({determiner.english for determiner in words.singular}) if noun.plural else 2
    return choices * (1 + len(words.adjectives[noun.kind]))


def count_plural_phrases(level: int, noun: Noun) -> int:
    """The plural phrases around a noun: determiners, with a number where it may follow, by adjectives."""
    if not noun.plural:
        return 0
    words = lexicon(level)
    names = {determiner.english for determiner in words.plural}
    counted = len(names - UNCOUNTABLE)
    return (len(names) + counted * len(words.numbers)) * (1 + len(words.adjectives[noun.kind]))


def write(folder: Path, number: int, seed: int, level: int = 3) -> None:
    """Plain files: `number` sentences to train on and a twentieth of that, at least 200, for valid and for test each."""
    folder.mkdir(parents=True, exist_ok=True)
    held_out = max(200, number // 20)
    for split in SPLITS:
        pairs = generate(number if split == "train" else held_out, seed, level=level, split=split)
        write_lines(folder, f"{split}.en", [pair.source for pair in pairs])
        write_lines(folder, f"{split}.de", [pair.target for pair in pairs])
        write_lines(folder, f"{split}.align", [" ".join(f"{a}-{b}" for a, b in pair.alignment) for pair in pairs])
        write_lines(folder, f"{split}.antecedents.tsv", [ANTECEDENT_HEADER, *antecedent_lines(pairs)])
    write_lines(folder, "README.md", [README.format(number=number, held_out=held_out, seed=seed, level=level)])


def antecedent_lines(pairs: Iterable[SentencePair]) -> Iterator[str]:
    for line, pair in enumerate(pairs):
        for p in pair.pronouns:
            places = (line, p.source, p.target, p.antecedent_source, p.antecedent_target)
            yield "\t".join([*map(str, places), p.form, ",".join(map(str, p.candidates)), ",".join(p.genders)])


def write_lines(folder: Path, name: str, lines: list[str]) -> None:
    (folder / name).write_bytes("".join(line + "\n" for line in lines).encode())
