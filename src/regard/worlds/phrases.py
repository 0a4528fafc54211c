"""Phrases in English and German at once, word by word.

A word is its text and the concepts that it expresses, each a number; words of the two languages that share a concept are aligned.
That alone defines the gold alignment: "im" expresses both concepts of "in the", and both parts of "macht … auf" that of "opens".
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple, TypeVar

from regard.worlds.inflection import ADJECTIVE_ENDINGS, AUXILIARIES, CONTRACTIONS, Verb, indefinite_article
from regard.worlds.lexicon import Adjective, Determiner, Lexicon, Noun, Pair, Preposition

T = TypeVar("T")
Word = tuple[str, tuple[int, ...]]
Words = list[Word]
UNCOUNTABLE = frozenset({"many", "some", "all"})  # determiners that no number follows


class BilingualPhrase(NamedTuple):
    english: Words
    german: Words
    head: int = -1  # the concept of its noun
    plural: bool = False
    kind: str = ""  # the class of its noun
    genus: str = ""  # m, f, n or p


class VerbGroup(NamedTuple):
    """A verb with its auxiliaries. English "has switched on" has a tail; German has a finite verb and a right bracket."""

    english: Words
    tail: Words  # the particle of a phrasal verb
    finite: Word
    bracket: Words  # participle or infinitive
    prefix: str  # of a separable verb whose stem is the finite verb


class Clause(NamedTuple):
    """The parts from which each language builds its own word order."""

    subject: BilingualPhrase
    group: VerbGroup
    after: Words  # English after the verb
    middle: Words  # German between the finite verb and the bracket
    tense: str = ""
    timed: bool = False  # whether it contains a time adverbial


def add_comma(words: Words) -> Words:
    """Return the words with a comma after the last."""
    text, concepts = words[-1]
    return words if text.endswith(",") else [*words[:-1], (text + ",", concepts)]


def english_clause(clause: Clause) -> Words:
    """Return the English words of a clause in order."""
    return clause.subject.english + clause.group.english + clause.group.tail + clause.after


def main_clause(clause: Clause, front: Words | None = None) -> Words:
    """Return the German words with the verb second: the finite verb follows the front phrase or the subject."""
    group, middle = clause.group, clause.middle
    end = [*group.bracket, (group.prefix, group.finite[1])] if group.prefix else group.bracket
    if front is None:
        return [*clause.subject.german, group.finite, *middle, *end]
    return [*front, group.finite, *clause.subject.german, *middle, *end]


def verb_final_clause(clause: Clause) -> Words:
    """Return the German words with the verb last: a separable prefix rejoins its stem."""
    group, middle = clause.group, clause.middle
    text, concepts = group.finite
    return [*clause.subject.german, *middle, *group.bracket, (group.prefix + text, concepts)]


class PhraseGrammar:
    """Builds phrases from the words of a level; every choice is drawn from one stream of random numbers."""

    def __init__(self, words: Lexicon, seed: int):
        self.lexicon = words
        self.random = Random(seed).random
        self.concepts = 0

    def choose(self, options: Sequence[T]) -> T:
        """Return one of the options, uniformly."""
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random() < probability

    def new_concept(self) -> int:
        """Return the number of a concept not used yet in this sentence."""
        self.concepts += 1
        return self.concepts

    def aligned(self, *pairs: Pair) -> BilingualPhrase:
        """Return words and their translations in order; the words of each pair express one new concept."""
        phrase = BilingualPhrase([], [])
        for english, german in pairs:
            key = (self.new_concept(),)
            phrase.english.extend((word, key) for word in english.split())
            phrase.german.extend((word, key) for word in german.split())
        return phrase

    def noun_phrase(self, noun: Noun, case: str, *, plural: bool = False, plain: bool = False) -> BilingualPhrase:
        """Return a noun with agreeing determiner, number and adjective; a plain one has mostly an article alone."""
        genus = "p" if plural else noun.gender
        determiner = self._determiner(noun, plural, plain)
        pairs: list[Pair] = []
        if determiner is not None and determiner.english:
            pairs.append((determiner.english, determiner.forms[case, genus]))
        if plural and self._takes_number(determiner):
            pairs.append(self.choose(self.lexicon.numbers))
        fitting = self.lexicon.adjectives[noun.kind]
        if fitting and self.chance(0.15 if plain else 0.35):
            adjective = self.choose(fitting)
            ending = ADJECTIVE_ENDINGS["strong" if determiner is None else determiner.pattern][case, genus]
            pairs.append((adjective.english, adjective.stem + ending))
        pairs.append((noun.plural if plural else noun.singular, noun.forms[case, genus]))
        if pairs[0][0] == "a":
            pairs[0] = (indefinite_article(pairs[1][0]), pairs[0][1])
        return self.aligned(*pairs)._replace(head=self.concepts, plural=plural, kind=noun.kind, genus=genus)

    def _determiner(self, noun: Noun, plural: bool, plain: bool) -> Determiner | None:
        if not noun.plural:  # a mass noun: the tea, or tea
            return None if self.chance(0.5) and not plain else self.lexicon.singular[0]
        if plural:
            return self.choose(self.lexicon.plural)
        if plain and self.chance(0.8):
            return self.lexicon.singular[0]
        determiner = self.choose(self.lexicon.singular)
        return self.lexicon.singular[0] if plain and determiner.english == "every" else determiner

    def _takes_number(self, determiner: Determiner | None) -> bool:
        """Decide whether a number follows: three dogs, the three dogs, but not many three dogs."""
        if determiner is None or not determiner.english:
            return self.chance(0.8)
        return determiner.english not in UNCOUNTABLE and self.chance(0.3)

    def sample_noun_phrase(self, kind: str, case: str, *, plain: bool = False) -> BilingualPhrase:
        """Return a noun phrase with a random noun of a class."""
        noun = self.choose(self.lexicon.nouns[kind])
        return self.noun_phrase(noun, case, plural=not plain and noun.plural != "" and self.chance(0.25), plain=plain)

    def verb_group(self, verb: Verb, tense: str, plural: bool, negated: int = 0) -> VerbGroup:
        """Return a verb in a tense and number; `negated` is the concept of "not", which German places later."""
        act = (self.new_concept(),)
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
        forms = AUXILIARIES[f"{tense} {verb.auxiliary}" if perfect else tense]
        auxiliary = (self.new_concept(),)
        source = [(forms[plural], auxiliary), *no]
        if tense in {"want", "wanted"}:
            source.append(("to", auxiliary))
        source.append((verb.participle if perfect else verb.base, act))
        bracket: Words = [(verb.german_participle if perfect else verb.infinitive, act)]
        return VerbGroup(source, tail, (forms[2 + plural], auxiliary), bracket, "")

    def copula(
        self, adjective: Adjective, tense: str, plural: bool, degrees: Sequence[Pair]
    ) -> tuple[VerbGroup, BilingualPhrase]:
        """Return "to be" and its predicate: "is", "very old"."""
        forms = AUXILIARIES[f"be {tense}"]
        be = (self.new_concept(),)
        degree = [self.choose(degrees)] if self.chance(0.4) else []
        phrase = self.aligned(*degree, (adjective.english, adjective.german))
        return VerbGroup([(forms[plural], be)], [], (forms[2 + plural], be), [], ""), phrase

    def prepositional(self, name: str, preposition: str, phrase: BilingualPhrase) -> BilingualPhrase:
        """Return a preposition before a phrase, contracted with its article where German does so (im, ins)."""
        key = self.new_concept()
        source = [*((word, (key,)) for word in name.split()), *phrase.english]
        first, concepts = phrase.german[0]
        contracted = CONTRACTIONS.get((preposition, first))
        if contracted:
            return phrase._replace(english=source, german=[(contracted, (key, *concepts)), *phrase.german[1:]])
        return phrase._replace(english=source, german=[(preposition, (key,)), *phrase.german])

    def place_phrase(self, place: Preposition, moving: bool) -> BilingualPhrase:
        """Return a place: at rest in the dative, in motion in the accusative."""
        phrase = self.sample_noun_phrase(self.choose(place.kinds), "accusative" if moving else "dative", plain=True)
        return self.prepositional(place.motion if moving else place.rest, place.german, phrase)
