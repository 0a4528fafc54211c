"""The sentences with "it": two or three nouns of three genders, and a second clause that fits one of them alone.

"The fox dragged the jacket behind the castle because it was hungry": only the fox (der Fuchs) can be hungry, and so German says
"weil er hungrig war". Were it knitted, it would be the jacket (sie), and dilapidated, the castle (es). Nothing in the first
clause tells which: each of its nouns is the antecedent about equally often, and has each gender equally often.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from regard.worlds.german import IT_FORMS, Verb
from regard.worlds.grammar import Sentence, SentenceGrammar
from regard.worlds.lexicon import GROUPS, Adjective, Lexicon, Preposition, lexicon
from regard.worlds.phrases import BilingualPhrase, Clause, Words, add_comma, english_clause, main_clause, verb_final_clause

DEGREES = (("already", "schon"), ("really", "wirklich"))
CONNECTIVES = (("because", "weil"), ("because", "weil"), ("although", "obwohl"), ("but", "aber"))
BETWEEN = ("animal", *(kind for kind in GROUPS["thing"] if kind not in {"part", "room"}))
# How often each place among the candidates holds the antecedent; the middle of three is neither nearest nor subject.
POSITIONS = {2: (0, 1), 3: (0, 0, 0, 1, 1, 1, 1, 2, 2, 2)}
ORDERS = ("mfn", "mnf", "fmn", "fnm", "nmf", "nfm")


class ClauseFrame(NamedTuple):
    """A first clause: its verb, its place if it has one, and the classes that each candidate may come from."""

    verb: Verb
    agent: bool  # a person is the subject and no candidate
    place: Preposition | None  # None: "between X and Y"
    slots: tuple[tuple[str, ...], ...]


class PronounTemplate(NamedTuple):
    frame: ClauseFrame
    gold: int  # the slot of the antecedent
    predicate: Adjective | Verb
    passive: bool  # "it" is the object of the predicate
    slots: tuple[tuple[str, ...], ...]  # the classes left: fitting ones for the antecedent, unfitting ones for its rivals


class Coreference(NamedTuple):
    """The meanings of "it" and of the candidates, in their English order; which of these is meant, and the genders."""

    pronoun: int
    candidates: tuple[int, ...]
    gold: int
    genders: tuple[str, ...]


def fitting_classes(predicate: Adjective | Verb) -> tuple[str, ...]:
    """The classes a predicate fits well: those of an adjective, or of a verb's table."""
    return predicate.kinds if isinstance(predicate, Adjective) else predicate.subjects


def clause_frames(words: Lexicon) -> Iterator[ClauseFrame]:
    known = tuple(kind for kind in BETWEEN if words.nouns[kind])
    for verb in words.verbs["handling"]:
        for subject in verb.subjects:
            agent = subject == "person"
            first = () if agent else (("animal",),)
            yield from (ClauseFrame(verb, agent, place, (*first, verb.objects, place.kinds)) for place in words.places)
            if verb.place == "at" and agent:
                yield ClauseFrame(verb, True, None, (verb.objects, known, known))
    for verb in words.verbs["resting"]:
        if "animal" in verb.subjects:
            yield from (ClauseFrame(verb, False, place, (("animal",), place.kinds)) for place in words.places)
            yield ClauseFrame(verb, False, None, (("animal",), known, known))


@cache
def pronoun_templates(level: int) -> dict[tuple[int, int], tuple[PronounTemplate, ...]]:
    """Every frame, antecedent and predicate that make a sentence with one reading, by number of candidates and antecedent."""
    words = lexicon(level)
    said: list[tuple[Adjective | Verb, bool]] = [(a, False) for a in words.predicates if a.kinds != ("person",)]
    said += [(v, False) for v in words.verbs["it_does"]] + [(v, True) for v in words.verbs["it_undergoes"]]
    found: dict[tuple[int, int], list[PronounTemplate]] = {}
    for frame in clause_frames(words):
        for gold in range(len(frame.slots)):
            for predicate, passive in said:
                good = fitting_classes(predicate)
                slots = tuple(
                    tuple(kind for kind in slot if (kind in good if at == gold else kind not in good + predicate.pinch))
                    for at, slot in enumerate(frame.slots)
                )
                if all(slots):
                    found.setdefault((len(slots), gold), []).append(PronounTemplate(frame, gold, predicate, passive, slots))
    return {key: tuple(made) for key, made in found.items()}


class CoreferenceGrammar(SentenceGrammar):
    """A grammar that also speaks of "it"."""

    def __init__(self, level: int, seed: int):
        super().__init__(lexicon(level), seed)
        self.riddles = pronoun_templates(level)

    def pronoun_sentence(self) -> tuple[Sentence, Coreference]:
        number = 3 if self.chance(0.7) else 2
        riddle = self.pick(self.riddles[number, self.pick(POSITIONS[number])])
        tense = self.pick(("present", "past"))
        genders = self.pick(ORDERS)[:number]
        first, candidates = self.first_clause(riddle, tense, genders)
        pronoun = self.meaning()
        second = self.second_clause(riddle, tense, genders[riddle.gold], pronoun)
        name, conjunction = self.pick(CONNECTIVES)
        key = (self.meaning(),)
        ours = english_clause(first)
        theirs = add_comma(main_clause(first))
        ours = [*(ours if name == "because" else add_comma(ours)), (name, key), *self.english_second(second, riddle)]
        theirs = [*theirs, (conjunction, key), *(main_clause if name == "but" else verb_final_clause)(second)]
        return (ours, theirs), Coreference(pronoun, candidates, riddle.gold, tuple(genders))

    def first_clause(self, riddle: PronounTemplate, tense: str, genders: str) -> tuple[Clause, tuple[int, ...]]:
        frame = riddle.frame
        moving = frame.verb.place in {"into", "put"}
        case = "accusative" if moving else "dative"
        spots = [] if frame.agent else ["nominative"]
        spots += ["accusative"] if frame.verb.objects else []
        spots += [case] * (len(genders) - len(spots))
        nouns = [self.pick(self.words.gendered[self.pick(kinds), gender]) for kinds, gender in zip(riddle.slots, genders)]
        phrases = [self.noun_phrase(noun, spot, plain=True) for noun, spot in zip(nouns, spots)]
        heads = tuple(phrase.head for phrase in phrases)
        subject = self.some("person", "nominative", plain=True) if frame.agent else phrases.pop(0)
        thing = phrases.pop(0) if frame.verb.objects else BilingualPhrase([], [])
        where = self.between(phrases) if frame.place is None else self.at(frame, phrases[0])
        group = self.verb_group(frame.verb, tense, subject.plural)
        return Clause(subject, group, thing.english + where.english, thing.german + where.german), heads

    def at(self, frame: ClauseFrame, phrase: BilingualPhrase) -> BilingualPhrase:
        assert frame.place is not None
        names = frame.place.motion if frame.verb.place == "into" else frame.place.rest
        return self.prepositional(names, frame.place.german, phrase)

    def between(self, phrases: list[BilingualPhrase]) -> BilingualPhrase:
        """Between X and Y."""
        key = (self.meaning(),)
        left, right = phrases
        joined = BilingualPhrase([*left.english, ("and", key), *right.english], [*left.german, ("und", key), *right.german])
        return self.prepositional(("between",), "zwischen", joined)

    def second_clause(self, riddle: PronounTemplate, tense: str, gender: str, pronoun: int) -> Clause:
        """What is said of "it"; its German form agrees with the antecedent in gender and takes its case from the clause."""
        predicate = riddle.predicate
        it = BilingualPhrase(
            [("it", (pronoun,))], [(IT_FORMS["accusative" if riddle.passive else "nominative", gender], (pronoun,))]
        )
        if isinstance(predicate, Adjective):
            group, what = self.copula(predicate, tense, False, DEGREES)
            return Clause(it, group, what.english, what.german)
        if not riddle.passive:
            completed = "perfect" if tense == "present" else "pluperfect"
            return Clause(it, self.verb_group(predicate, self.pick((tense, completed)), False), [], [])
        subject = self.some("person", "nominative", plain=True)
        tenses = ("want", "perfect", "must") if tense == "present" else ("wanted", "pluperfect", "past")
        return Clause(subject, self.verb_group(predicate, self.pick(tenses), False), it.english, it.german)

    def english_second(self, clause: Clause, riddle: PronounTemplate) -> Words:
        """ "Switched it on", where a noun would make "switched on the lamp"."""
        if riddle.passive:
            return clause.subject.english + clause.group.english + clause.after + clause.group.tail
        return english_clause(clause)
