"""Sentences with "it": two or three nouns of different genders, and a second clause that fits only one of them.

"The fox dragged the jacket behind the castle because it was hungry": only the fox (der Fuchs) can be hungry, so German says
"weil er hungrig war". If it were knitted, it would be the jacket (sie); if dilapidated, the castle (es). Nothing in the first
clause reveals which: each of its nouns is the antecedent about equally often, and has each gender equally often.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from regard.worlds.grammar import DEGREES, Sentence, SentenceGrammar
from regard.worlds.inflection import IT_FORMS, Verb
from regard.worlds.lexicon import GROUPS, Adjective, Lexicon, Preposition, lexicon
from regard.worlds.phrases import BilingualPhrase, Clause, Words, add_comma, english_clause, main_clause, verb_final_clause

CONNECTIVES = (("because", "weil"), ("because", "weil"), ("although", "obwohl"), ("but", "aber"))
BETWEEN = ("animal", *(kind for kind in GROUPS["thing"] if kind not in {"part", "room"}))
# How often each candidate is the antecedent; the middle of three is neither the nearest noun nor the subject.
POSITIONS = {2: (0, 1), 3: (0, 0, 0, 1, 1, 1, 1, 2, 2, 2)}
ORDERS = ("mfn", "mnf", "fmn", "fnm", "nmf", "nfm")


class ClauseFrame(NamedTuple):
    """A first clause: its verb, its preposition if it has one, and the classes that each candidate may come from."""

    verb: Verb
    agent: bool  # the subject is a person and not a candidate
    place: Preposition | None  # None: "between X and Y"
    slots: tuple[tuple[str, ...], ...]


class PronounTemplate(NamedTuple):
    """A first clause, the slot of the antecedent, and a predicate that fits the antecedent alone."""

    frame: ClauseFrame
    gold: int
    predicate: Adjective | Verb
    passive: bool  # "it" is the object of the predicate
    slots: tuple[tuple[str, ...], ...]  # remaining classes: fitting ones for the antecedent, unfitting ones for the others


class Coreference(NamedTuple):
    """The concepts of "it" and of the candidates in English order, the index of the antecedent, and the German genders."""

    pronoun: int
    candidates: tuple[int, ...]
    gold: int
    genders: tuple[str, ...]


def fitting_classes(predicate: Adjective | Verb) -> tuple[str, ...]:
    """Return the classes that a predicate fits well."""
    return predicate.kinds if isinstance(predicate, Adjective) else predicate.subjects


def clause_frames(words: Lexicon) -> Iterator[ClauseFrame]:
    """Yield every first clause of a level."""
    known = tuple(kind for kind in BETWEEN if words.nouns[kind])
    for verb in words.verbs["handling"]:
        for subject in verb.subjects:
            agent = subject == "person"
            first = () if agent else (("animal",),)
            yield from (ClauseFrame(verb, agent, place, (*first, verb.objects, place.kinds)) for place in words.prepositions)
            if verb.complement == "at" and agent:
                yield ClauseFrame(verb, True, None, (verb.objects, known, known))
    for verb in words.verbs["resting"]:
        if "animal" in verb.subjects:
            yield from (ClauseFrame(verb, False, place, (("animal",), place.kinds)) for place in words.prepositions)
            yield ClauseFrame(verb, False, None, (("animal",), known, known))


@cache
def pronoun_templates(level: int) -> dict[tuple[int, int], tuple[PronounTemplate, ...]]:
    """Return every frame, antecedent and predicate that give exactly one reading, by number of candidates and antecedent."""
    words = lexicon(level)
    predicates: list[tuple[Adjective | Verb, bool]] = [(a, False) for a in words.predicates if a.kinds != ("person",)]
    predicates += [(v, False) for v in words.verbs["it_does"]] + [(v, True) for v in words.verbs["it_undergoes"]]
    templates: dict[tuple[int, int], list[PronounTemplate]] = {}
    for frame in clause_frames(words):
        for gold in range(len(frame.slots)):
            for predicate, passive in predicates:
                good = fitting_classes(predicate)
                slots = tuple(
                    tuple(kind for kind in slot if (kind in good if i == gold else kind not in good + predicate.marginal))
                    for i, slot in enumerate(frame.slots)
                )
                if all(slots):
                    key = len(slots), gold
                    templates.setdefault(key, []).append(PronounTemplate(frame, gold, predicate, passive, slots))
    return {key: tuple(found) for key, found in templates.items()}


class CoreferenceGrammar:
    """Samples sentences with "it", using a sentence grammar's phrases and its stream of random numbers."""

    def __init__(self, level: int, grammar: SentenceGrammar):
        self.grammar = grammar
        self.templates = pronoun_templates(level)

    def pronoun_sentence(self) -> tuple[Sentence, Coreference]:
        """Return a sentence with one "it", and what it refers to."""
        g = self.grammar
        number = 3 if g.chance(0.7) else 2
        template = g.choose(self.templates[number, g.choose(POSITIONS[number])])
        tense = g.choose(("present", "past"))
        genders = g.choose(ORDERS)[:number]
        first, candidates = self._first_clause(template, tense, genders)
        second, pronoun = self._second_clause(template, tense, genders[template.gold])
        name, conjunction = g.choose(CONNECTIVES)
        link = g.aligned((name, conjunction))
        source = english_clause(first) if name == "because" else add_comma(english_clause(first))
        source += link.english + _english_second(second, template)
        target = add_comma(main_clause(first)) + link.german
        target += main_clause(second) if name == "but" else verb_final_clause(second)
        return (source, target), Coreference(pronoun, candidates, template.gold, tuple(genders))

    def _first_clause(self, template: PronounTemplate, tense: str, genders: str) -> tuple[Clause, tuple[int, ...]]:
        """Return the first clause and the concepts of its candidates."""
        g, frame = self.grammar, template.frame
        moving = frame.verb.complement in {"into", "put"}
        cases = [] if frame.agent else ["nominative"]
        cases += ["accusative"] if frame.verb.objects else []
        cases += ["accusative" if moving else "dative"] * (len(genders) - len(cases))
        nouns = [g.choose(g.lexicon.gendered[g.choose(kinds), gender]) for kinds, gender in zip(template.slots, genders)]
        phrases = [g.noun_phrase(noun, case, plain=True) for noun, case in zip(nouns, cases)]
        heads = tuple(phrase.head for phrase in phrases)
        subject = g.sample_noun_phrase("person", "nominative", plain=True) if frame.agent else phrases.pop(0)
        thing = phrases.pop(0) if frame.verb.objects else BilingualPhrase([], [])
        if frame.place is None:
            where = self._between(*phrases)
        else:
            names = frame.place.motion if frame.verb.complement == "into" else frame.place.rest
            where = g.prepositional(names, frame.place.german, phrases[0])
        group = g.verb_group(frame.verb, tense, subject.plural)
        return Clause(subject, group, thing.english + where.english, thing.german + where.german), heads

    def _between(self, left: BilingualPhrase, right: BilingualPhrase) -> BilingualPhrase:
        link = self.grammar.aligned(("and", "und"))
        joined = BilingualPhrase(left.english + link.english + right.english, left.german + link.german + right.german)
        return self.grammar.prepositional("between", "zwischen", joined)

    def _second_clause(self, template: PronounTemplate, tense: str, gender: str) -> tuple[Clause, int]:
        """Return the clause about "it", whose German form takes its gender from the antecedent and its case from the clause; and
        the concept of "it"."""
        g, predicate = self.grammar, template.predicate
        it = g.aligned(("it", IT_FORMS["accusative" if template.passive else "nominative", gender]))
        pronoun = g.concepts
        if isinstance(predicate, Adjective):
            group, quality = g.copula(predicate, tense, False, DEGREES[False])
            return Clause(it, group, quality.english, quality.german), pronoun
        if not template.passive:
            completed = "perfect" if tense == "present" else "pluperfect"
            return Clause(it, g.verb_group(predicate, g.choose((tense, completed)), False), [], []), pronoun
        subject = g.sample_noun_phrase("person", "nominative", plain=True)
        tenses = ("want", "perfect", "must") if tense == "present" else ("wanted", "pluperfect", "past")
        return Clause(subject, g.verb_group(predicate, g.choose(tenses), False), it.english, it.german), pronoun


def _english_second(clause: Clause, template: PronounTemplate) -> Words:
    """Return the English words of a second clause: "switched it on", where a noun would give "switched on the lamp"."""
    if template.passive:
        return clause.subject.english + clause.group.english + clause.after + clause.group.tail
    return english_clause(clause)
