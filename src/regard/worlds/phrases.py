"""Phrases in two languages at once, word by word.

A word is its text and the meanings it carries, each a number; words of the two languages that share a meaning are aligned.
That is all there is to the gold alignment: "im" carries both meanings of "in the", and "macht … auf" twice that of "opens".
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple, TypeVar

from regard.worlds import english
from regard.worlds.german import ADJECTIVE_ENDINGS, AUXILIARIES, CONTRACTIONS, Verb
from regard.worlds.lexicon import Adjective, Determiner, Lexicon, Noun, Preposition, TimeAdverbial

T = TypeVar("T")
Word = tuple[str, tuple[int, ...]]
Words = list[Word]
UNCOUNTABLE = frozenset({"many", "some", "all"})


class BilingualPhrase(NamedTuple):
    english: Words
    german: Words
    head: int = -1  # the meaning of its noun
    plural: bool = False
    kind: str = ""  # the class of its noun
    genus: str = ""  # m, f, n, or p


class VerbGroup(NamedTuple):
    """A verb with its helpers. English "has switched on" has a tail; German has a finite verb and a right bracket."""

    english: Words
    tail: Words  # the particle of a phrasal verb
    finite: Word
    bracket: Words  # participle or infinitive
    prefix: str  # of a separable verb whose stem is the finite verb


class Clause(NamedTuple):
    """Parts from which each language makes its own order."""

    subject: BilingualPhrase
    group: VerbGroup
    after: Words  # English after the verb
    middle: Words  # German between the finite verb and the bracket
    tense: str = ""
    timed: bool = False  # it holds an adverb of time already


def add_comma(words: Words) -> Words:
    """The same words with a comma after the last."""
    text, meanings = words[-1]
    return words if text.endswith(",") else [*words[:-1], (text + ",", meanings)]


def english_clause(clause: Clause) -> Words:
    return clause.subject.english + clause.group.english + clause.group.tail + clause.after


def main_clause(clause: Clause, front: Words | None = None) -> Words:
    """Verb second: whatever stands in front, the finite verb follows it."""
    group, middle = clause.group, clause.middle
    end = [*group.bracket, (group.prefix, group.finite[1])] if group.prefix else group.bracket
    if front is None:
        return [*clause.subject.german, group.finite, *middle, *end]
    return [*front, group.finite, *clause.subject.german, *middle, *end]


def verb_final_clause(clause: Clause) -> Words:
    """Verb last: the prefix of a separable verb is back on its stem."""
    group, middle = clause.group, clause.middle
    text, meanings = group.finite
    return [*clause.subject.german, *middle, *group.bracket, (group.prefix + text, meanings)]


class PhraseGrammar:
    """Makes phrases of a level's words; every choice is drawn from one stream of random numbers."""

    def __init__(self, words: Lexicon, seed: int):
        self.words = words
        self.random = Random(seed).random
        self.meanings = 0

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def chance(self, share: float) -> bool:
        return self.random() < share

    def meaning(self) -> int:
        self.meanings += 1
        return self.meanings

    def noun_phrase(self, noun: Noun, case: str, *, plural: bool = False, plain: bool = False) -> BilingualPhrase:
        """Determiner, number, adjectives and noun, agreeing; a plain one has an article and no more."""
        genus = "p" if plural else noun.gender
        determiner = self.determiner(noun, plural, plain)
        source: Words = []
        target: Words = []
        if determiner is not None and determiner.english:
            key = (self.meaning(),)
            source.append((determiner.english, key))
            target.append((determiner.forms[case, genus], key))
        if plural and self.numbered(determiner):
            name, number = self.pick(self.words.numbers)
            key = (self.meaning(),)
            source.append((name, key))
            target.append((number, key))
        fitting = self.words.adjectives[noun.kind]
        if fitting and self.chance(0.15 if plain else 0.35):
            adjective = self.pick(fitting)
            key = (self.meaning(),)
            ending = ADJECTIVE_ENDINGS["strong" if determiner is None else determiner.pattern][case, genus]
            source.append((adjective.english, key))
            target.append((adjective.stem + ending, key))
        head = self.meaning()
        source.append((noun.plural if plural else noun.singular, (head,)))
        target.append((noun.forms[case, genus], (head,)))
        if source[0][0] == "a":
            source[0] = (english.indefinite_article(source[1][0]), source[0][1])
        return BilingualPhrase(source, target, head, plural, noun.kind, genus)

    def determiner(self, noun: Noun, plural: bool, plain: bool) -> Determiner | None:
        if not noun.plural:  # a mass noun: the tea, or tea
            return None if self.chance(0.5) and not plain else self.words.singular[0]
        if plural:
            return self.pick(self.words.plural)
        if plain and self.chance(0.8):
            return self.words.singular[0]
        determiner = self.pick(self.words.singular)
        return self.words.singular[0] if plain and determiner.english == "every" else determiner

    def numbered(self, determiner: Determiner | None) -> bool:
        """Three dogs, the three dogs, but not many three dogs."""
        if determiner is None or not determiner.english:
            return self.chance(0.8)
        return determiner.english not in UNCOUNTABLE and self.chance(0.3)

    def some(self, kind: str, case: str, *, plain: bool = False) -> BilingualPhrase:
        """A noun phrase of a class."""
        noun = self.pick(self.words.nouns[kind])
        return self.noun_phrase(noun, case, plural=not plain and noun.plural != "" and self.chance(0.25), plain=plain)

    def verb_group(self, verb: Verb, tense: str, plural: bool, negated: int = 0) -> VerbGroup:
        """Tense and number; `negated` is the meaning of "not", which German says later."""
        act = (self.meaning(),)
        tail: Words = [(particle, act) for particle in verb.particle]
        no: Words = [("not", (negated,))] if negated else []
        if tense in {"present", "past"}:
            finite = (verb.finite[tense, plural], act)
            if negated:
                do = "did" if tense == "past" else "do" if plural else "does"
                return VerbGroup([(do, act), *no, (verb.base, act)], tail, finite, [], verb.prefix)
            text = verb.past if tense == "past" else verb.base if plural else verb.third
            return VerbGroup([(text, act)], tail, finite, [], verb.prefix)
        perfect = tense in {"perfect", "pluperfect"}
        forms = AUXILIARIES[f"{tense} {verb.perfect}" if perfect else tense]
        helper = (self.meaning(),)
        source = [(forms[plural], helper), *no]
        if tense in {"want", "wanted"}:
            source.append(("to", helper))
        source.append((verb.participle if perfect else verb.base, act))
        return VerbGroup(source, tail, (forms[2 + plural], helper), [(verb.partizip if perfect else verb.infinitive, act)], "")

    def copula(
        self, adjective: Adjective, tense: str, plural: bool, degrees: Sequence[tuple[str, str]]
    ) -> tuple[VerbGroup, BilingualPhrase]:
        """To be, and what: "is very old"."""
        forms = AUXILIARIES[f"be {tense}"]
        is_, what = (self.meaning(),), (self.meaning(),)
        phrase = BilingualPhrase([(part, what) for part in adjective.english.split()], [(adjective.german, what)])
        if degrees and self.chance(0.4):
            name, degree = self.pick(degrees)
            key = (self.meaning(),)
            phrase = BilingualPhrase([(name, key), *phrase.english], [(degree, key), *phrase.german])
        return VerbGroup([(forms[plural], is_)], [], (forms[2 + plural], is_), [], ""), phrase

    def when(self, time: TimeAdverbial) -> BilingualPhrase:
        source: Words = []
        target: Words = []
        for ours, theirs in zip(time.english, time.german):
            key = (self.meaning(),)
            source.extend((word, key) for word in ours)
            target.extend((word, key) for word in theirs)
        return BilingualPhrase(source, target)

    def prepositional(self, names: Sequence[str], preposition: str, phrase: BilingualPhrase) -> BilingualPhrase:
        """A preposition before a phrase, melted with its article where German melts them (im, ins)."""
        key = self.meaning()
        source = [*((name, (key,)) for name in names), *phrase.english]
        first, meanings = phrase.german[0]
        melted = CONTRACTIONS.get((preposition, first))
        if melted:
            return phrase._replace(english=source, german=[(melted, (key, *meanings)), *phrase.german[1:]])
        return phrase._replace(english=source, german=[(preposition, (key,)), *phrase.german])

    def where(self, place: Preposition, case: str, moving: bool) -> BilingualPhrase:
        """A place: at rest in the dative, in motion in the accusative."""
        phrase = self.some(self.pick(place.kinds), case, plain=True)
        return self.prepositional(place.motion if moving else place.rest, place.german, phrase)
