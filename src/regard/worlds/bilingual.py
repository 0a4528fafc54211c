"""A bilingual world: English and German sentences with known word alignments and the known antecedent of every "it".

The grammar and the words are our own (grammar.py, coreference.py, data/). A sentence is a pure function of the seed; its
English alone determines its German, and also whether it belongs to train, valid or test.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from regard.errors import UserError
from regard.files import atomic_write, writing_into
from regard.progress import track
from regard.worlds import SPLITS, assign_split
from regard.worlds.coreference import Coreference, CoreferenceGrammar
from regard.worlds.grammar import SentenceGrammar
from regard.worlds.lexicon import Noun, lexicon
from regard.worlds.phrases import UNCOUNTABLE, Words

LEVELS = (1, 2, 3)
PRONOUN_FRACTION = 0.32  # of the sentences contain an "it", by default
PRONOUN_GENDER = {"er": "m", "ihn": "m", "sie": "f", "es": "n"}  # German words that here translate "it" and nothing else
MAX_DUPLICATES = 2000  # consecutive repeated sentences after which a level counts as exhausted
ANTECEDENT_HEADER = "line\tsource\ttarget\tantecedent_source\tantecedent_target\tform\tcandidates\tgenders"
README = """# A bilingual world

English and German sentences of level {level}, written by `regard world bilingual --number {number} --seed {seed}`:
{number} training sentences and {held_out} each for valid and test; no sentence is in two splits.

| file | one line per |
|---|---|
| `*.en`, `*.de` | sentence and its translation; words are separated by spaces |
| `*.align` | sentence: Moses alignments; `0-1` aligns the first English word with the second German one |
| `*.antecedents.tsv` | "it", below a header |

The columns of the antecedents: the line of the sentence; the word indices of "it", of its German pronoun, and of its
antecedent in English and in German; the form of the pronoun; the English nouns that it could refer to, and their German
genders. All indices start at 0. The first candidate is the subject among them, the last is the nearest noun."""


@dataclass(frozen=True, slots=True)
class Pronoun:
    """An "it", by word indices. The first candidate is the subject among them, the last is the nearest noun."""

    source: int
    target: int
    antecedent_source: int
    antecedent_target: int
    form: str
    candidates: tuple[int, ...]
    genders: tuple[str, ...]  # of the candidates: m, f, n


@dataclass(frozen=True, slots=True)
class SentencePair:
    """A sentence and its translation; words are separated by spaces, with punctuation attached."""

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]
    pronouns: tuple[Pronoun, ...]
    possible: tuple[tuple[int, int], ...] = ()
    """Links that count neither as right nor as wrong: never in this world, but in gold alignments read from files."""


def generate(
    number: int, seed: int, *, level: int = 3, split: str = "train", pronoun_fraction: float = PRONOUN_FRACTION
) -> list[SentencePair]:
    """Return the first `number` distinct sentences of a seed; a smaller number gives a prefix of a larger one."""
    if number <= 0:
        raise UserError(f"number = {number}: ask for at least one sentence")
    if level not in LEVELS:
        raise UserError(f"level = {level!r}: the levels are 1, 2 and 3")
    if split not in SPLITS:
        raise UserError(f"split = {split!r}: the splits are {', '.join(SPLITS)}")
    available = count_sentences(level) * SPLITS[split] // 16
    if number > available:
        raise UserError(f"number = {number}: level {level} has {available} {split} sentences; ask for fewer, or a higher level")
    return list(track(islice(_distinct_pairs(number, seed, level, split, pronoun_fraction), number), number))


def _distinct_pairs(number: int, seed: int, level: int, split: str, pronoun_fraction: float) -> Iterator[SentencePair]:
    """Yield the distinct sentences of a split, in the order of the seed."""
    seen: set[str] = set()
    duplicates = 0
    for source, target, coreference in iterate_sentences(level, seed, pronoun_fraction):
        text = sentence_text(source)
        if assign_split(text) != split:
            continue
        if text in seen:
            duplicates += 1
            if duplicates == MAX_DUPLICATES:
                raise UserError(
                    f"number = {number}: level {level} is exhausted after {len(seen)} {split} sentences; ask for fewer"
                )
            continue
        duplicates = 0
        seen.add(text)
        yield _build_pair(text, source, target, coreference)


def iterate_sentences(
    level: int, seed: int, pronoun_fraction: float = PRONOUN_FRACTION
) -> Iterator[tuple[Words, Words, Coreference | None]]:
    """Yield sentences without end: English words, German words, and the coreference of an "it"."""
    grammar = SentenceGrammar(lexicon(level), seed)
    coreference_grammar = CoreferenceGrammar(level, grammar)
    while True:
        grammar.concepts = 0
        if grammar.chance(pronoun_fraction):
            sentence, coreference = coreference_grammar.pronoun_sentence()
            yield *sentence, coreference
        else:
            yield *grammar.sentence(), None


def sentence_text(words: Words) -> str:
    """Return the words as text with a capital letter and a full stop."""
    text = " ".join([word for word, _ in words]).removesuffix(",")
    return text[0].upper() + text[1:] + "."


def _build_pair(text: str, source: Words, target: Words, coreference: Coreference | None) -> SentencePair:
    """Return a pair with the alignment that the shared concepts define."""
    positions: dict[int, list[int]] = {}
    for j, (_, concepts) in enumerate(target):
        for concept in concepts:
            positions.setdefault(concept, []).append(j)
    links = tuple((i, j) for i, (_, concepts) in enumerate(source) for concept in concepts for j in positions.get(concept, ()))
    pronouns = (_locate_pronoun(source, target, positions, coreference),) if coreference else ()
    return SentencePair(text, sentence_text(target), links, pronouns)


def _locate_pronoun(source: Words, target: Words, positions: dict[int, list[int]], coreference: Coreference) -> Pronoun:
    index = {concepts[0]: i for i, (_, concepts) in enumerate(source)}
    gold = coreference.candidates[coreference.gold]
    pronoun_target = positions[coreference.pronoun][0]
    return Pronoun(
        source=index[coreference.pronoun],
        target=pronoun_target,
        antecedent_source=index[gold],
        antecedent_target=positions[gold][0],
        form=target[pronoun_target][0],
        candidates=tuple(index[candidate] for candidate in coreference.candidates),
        genders=coreference.genders,
    )


def pronoun_baselines(pairs: Iterable[SentencePair]) -> dict[str, float]:
    """Return the fraction of pronouns that three simple rules get right; a model that understands must beat them."""
    pronouns = [pronoun for pair in pairs for pronoun in pair.pronouns]
    if not pronouns:
        raise UserError("no pair has a pronoun: there is nothing to compare with")
    gold = [PRONOUN_GENDER[pronoun.form] for pronoun in pronouns]
    correct = {
        "nearest noun": sum(p.genders[-1] == g for p, g in zip(pronouns, gold)),
        "subject": sum(p.genders[0] == g for p, g in zip(pronouns, gold)),
        "commonest gender": max(Counter(gold).values()),
    }
    return {name: count / len(gold) for name, count in correct.items()}


def pronouns_correct(pair: SentencePair, hypothesis: str) -> bool:
    """Return whether the er, sie, es and ihn of a translation are the gold ones, in order; here they only translate "it"."""
    words = [word for word in _normalized_words(hypothesis) if word in PRONOUN_GENDER]
    return words == [pronoun.form for pronoun in pair.pronouns]


def equal_except_pronouns(one: str, other: str) -> bool:
    """Return whether two translations differ in nothing but their er, sie, es and ihn."""
    first, second = ([word for word in _normalized_words(text) if word not in PRONOUN_GENDER] for text in (one, other))
    return first == second


def _normalized_words(text: str) -> list[str]:
    return [word.strip(',.;:!?"').lower() for word in text.split()]


def count_sentences(level: int) -> int:
    """Return the number of distinct English sentences in the simplest construction alone: "The old queen buys seven apples."

    It is one main clause in the present or the past with a singular subject and an object. Every slot is visible in the sentence,
    so two derivations never give the same words and the product is exact; all other constructions come on top.
    """
    words = lexicon(level)
    subjects = {kind: sum(_count_singular(level, noun) for noun in words.nouns[kind]) for kind in ("person", "animal")}
    objects = {
        kind: sum(_count_singular(level, noun) + _count_plural(level, noun) for noun in nouns)
        for kind, nouns in words.nouns.items()
    }
    return sum(
        2 * subjects[kind] * objects[thing]
        for kind in subjects
        for verb in words.acting["transitive", kind]
        for thing in verb.objects
    )


def _count_singular(level: int, noun: Noun) -> int:
    """Return the number of singular phrases of a noun: determiners × adjectives."""
    words = lexicon(level)
    choices = len({determiner.english for determiner in words.singular}) if noun.plural else 2
    return choices * (1 + len(words.adjectives[noun.kind]))


def _count_plural(level: int, noun: Noun) -> int:
    """Return the number of plural phrases of a noun: determiners, with a number where one may follow, × adjectives."""
    if not noun.plural:
        return 0
    words = lexicon(level)
    names = {determiner.english for determiner in words.plural}
    countable = len(names - UNCOUNTABLE)
    return (len(names) + countable * len(words.numbers)) * (1 + len(words.adjectives[noun.kind]))


def write(folder: Path, number: int, seed: int, level: int = 3) -> None:
    """Write plain files: `number` training sentences, and a twentieth of that, at least 200, each for valid and test."""
    held_out = max(200, number // 20)
    for split in SPLITS:
        pairs = generate(number if split == "train" else held_out, seed, level=level, split=split)
        _write_lines(folder / f"{split}.en", [pair.source for pair in pairs])
        _write_lines(folder / f"{split}.de", [pair.target for pair in pairs])
        _write_lines(folder / f"{split}.align", [" ".join(f"{a}-{b}" for a, b in pair.alignment) for pair in pairs])
        _write_lines(folder / f"{split}.antecedents.tsv", [ANTECEDENT_HEADER, *_antecedent_lines(pairs)])
    _write_lines(folder / "README.md", [README.format(number=number, held_out=held_out, seed=seed, level=level)])


def _antecedent_lines(pairs: Iterable[SentencePair]) -> Iterator[str]:
    for line, pair in enumerate(pairs):
        for p in pair.pronouns:
            indices = (line, p.source, p.target, p.antecedent_source, p.antecedent_target)
            yield "\t".join([*map(str, indices), p.form, ",".join(map(str, p.candidates)), ",".join(p.genders)])


def _write_lines(path: Path, lines: list[str]) -> None:
    with writing_into(path.parent):
        atomic_write(path, "".join(line + "\n" for line in lines))
