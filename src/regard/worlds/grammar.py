"""The sentences without "it": simple ones, relative and subordinate clauses, indirect speech and pairs of clauses."""

from regard.worlds.german import RELATIVE_PRONOUNS, Verb
from regard.worlds.lexicon import Adjective, TimeAdverbial
from regard.worlds.phrases import (
    BilingualPhrase,
    Clause,
    PhraseGrammar,
    Words,
    add_comma,
    english_clause,
    main_clause,
    verb_final_clause,
)

TENSES = ("present",) * 5 + ("past",) * 5 + ("perfect",) * 2 + ("future", "can", "must", "want", "wanted")
MODALS = frozenset({"can", "must", "want"})
VAGUE = frozenset({"every", "all", "many", "some"})  # "every man does not sleep" means two things
DEFINITE = frozenset({"the", "this", "these", "my", "our", "his", "her"})
DEGREES = {True: (("very", "sehr"), ("too", "zu"), ("still", "noch")), False: (("already", "schon"), ("really", "wirklich"))}
INSTEAD = {"present": "perfect", "past": "perfect"}

Sentence = tuple[Words, Words]


class SentenceGrammar(PhraseGrammar):
    """Draws whole clauses and sentences."""

    def sentence(self) -> Sentence:
        share = self.random()
        if share < 0.40:
            return self.simple()
        if share < 0.58:
            return self.with_relative()
        if share < 0.80:
            return self.subordinate()
        return self.reported() if share < 0.92 else self.coordinated()

    def simple(self) -> Sentence:
        """One main clause; a time may stand first, and then the subject follows the verb: "Heute kauft der Mann …"."""
        clause = self.clause(self.pick(TENSES), timed=self.chance(0.2))
        return self.fronted(clause, 0.35) if not clause.timed else (english_clause(clause), main_clause(clause))

    def fronted(self, clause: Clause, share: float) -> Sentence:
        fitting = self.times(clause.tense)
        if fitting and self.chance(share):
            time = self.when(self.pick(fitting))
            return time.english + english_clause(clause), main_clause(clause, time.german)
        return english_clause(clause), main_clause(clause)

    def with_relative(self) -> Sentence:
        """A relative clause on the subject or on the object."""
        tense = self.pick(TENSES)
        if self.chance(0.5):
            subject = self.subject()
            return self.fronted(self.clause(tense, subject=self.relative(subject)), 0.2)
        subject = self.subject()
        # A prefix would be left alone behind the relative clause: "hebt das Buch, das die Frau liest, auf".
        verb = self.pick([verb for verb in self.words.acting["transitive", subject.kind] if not verb.prefix])
        return self.fronted(self.transitive(subject, verb, tense, relative=True), 0.2)

    def subordinate(self) -> Sentence:
        """Two clauses and a conjunction; the second is verb-final in German, and may stand first."""
        tense = self.pick(("present", "past"))
        name, conjunction = self.pick(self.words.subordinators[tense])
        key = (self.meaning(),)
        main, side = self.clause(tense), self.clause(tense)
        dependent = (
            [*((part, key) for part in name.split()), *english_clause(side)],
            [(conjunction, key), *verb_final_clause(side)],
        )
        if self.chance(0.4):
            return add_comma(dependent[0]) + english_clause(main), main_clause(main, add_comma(dependent[1]))
        source = english_clause(main)
        return (add_comma(source) if name == "although" else source) + dependent[0], add_comma(main_clause(main)) + dependent[1]

    def reported(self) -> Sentence:
        """The queen says that …"""
        tense = self.pick(("present", "past"))
        subject = self.some("person", "nominative")
        main = Clause(subject, self.verb_group(self.pick(self.words.verbs["saying"]), tense, subject.plural), [], [])
        side = self.clause(self.pick(TENSES) if tense == "present" else "past")
        key = (self.meaning(),)
        return (
            [*english_clause(main), ("that", key), *english_clause(side)],
            [*add_comma(main_clause(main)), ("dass", key), *verb_final_clause(side)],
        )

    def coordinated(self) -> Sentence:
        tense = self.pick(("present", "past"))
        name, conjunction = self.pick((("and", "und"), ("but", "aber")))
        key = (self.meaning(),)
        first, second = self.clause(tense), self.clause(tense)
        ours, theirs = english_clause(first), main_clause(first)
        if name == "but":
            ours, theirs = add_comma(ours), add_comma(theirs)
        return [*ours, (name, key), *english_clause(second)], [*theirs, (conjunction, key), *main_clause(second)]

    def subject(self) -> BilingualPhrase:
        return self.some("person" if self.chance(0.7) else "animal", "nominative")

    def clause(self, tense: str, subject: BilingualPhrase | None = None, timed: bool = False) -> Clause:
        """Any clause about a person or an animal, or of what a thing is like."""
        share = self.random()
        if subject is None:
            if share < 0.12:
                return self.quality("past" if tense in {"past", "wanted", "perfect"} else "present")
            subject = self.subject()
        if share < 0.50:
            return self.transitive(subject, self.pick(self.words.acting["transitive", subject.kind]), tense, timed=timed)
        if share < 0.62 and subject.kind == "person":
            return self.giving(subject, tense, timed)
        if share < 0.76:
            return self.alone(subject, tense, timed)
        return self.placed(subject, tense, timed)

    def times(self, tense: str) -> tuple[TimeAdverbial, ...]:
        return self.words.times.get("modal" if tense in MODALS else "past" if tense == "wanted" else tense, ())

    def when_within(self, tense: str, timed: bool) -> tuple[Words, Words]:
        """A time that stands within the clause: last in English, after the finite verb in German."""
        fitting = self.times(tense) if timed else ()
        phrase = self.when(self.pick(fitting)) if fitting else BilingualPhrase([], [])
        return phrase.english, phrase.german

    def settle(self, verb: Verb, tense: str, plural: bool) -> str:
        """ "They read" would be present or past: say "have read"."""
        return INSTEAD.get(tense, tense) if plural and verb.past == verb.base else tense

    def negation(self, subject: BilingualPhrase, tense: str, share: float) -> int:
        """The meaning of a "not", or 0 for none."""
        vague = tense in MODALS or tense == "wanted" or subject.english[0][0] in VAGUE
        return self.meaning() if not vague and self.chance(share) else 0

    def transitive(
        self, subject: BilingualPhrase, verb: Verb, tense: str, *, timed: bool = False, relative: bool = False
    ) -> Clause:
        tense = self.settle(verb, tense, subject.plural)
        thing = self.some(self.pick(verb.objects), verb.governs)
        if relative:
            thing = self.relative(thing)
        denied = 0
        if not timed and not relative and thing.english[0][0] in DEFINITE:
            denied = self.negation(subject, tense, 0.2)
        last, first = self.when_within(tense, timed)
        group = self.verb_group(verb, tense, subject.plural, denied)
        rest = BilingualPhrase([], [("nicht", (denied,))] if denied else [])
        if verb.place == "for" and not denied and not relative and self.chance(0.2):
            rest = self.prepositional(("for",), "für", self.some("person", "accusative", plain=True))
        return Clause(subject, group, thing.english + rest.english + last, first + thing.german + rest.german, tense, timed)

    def giving(self, subject: BilingualPhrase, tense: str, timed: bool) -> Clause:
        verb = self.pick(self.words.verbs["giving"])
        getter = self.some("person", "dative", plain=True)
        thing = self.some(self.pick(verb.objects), "accusative")
        group = self.verb_group(verb, tense, subject.plural)
        last, first = self.when_within(tense, timed)
        return Clause(subject, group, getter.english + thing.english + last, first + getter.german + thing.german, tense, timed)

    def alone(self, subject: BilingualPhrase, tense: str, timed: bool) -> Clause:
        """An intransitive verb, with company, a manner or a "not"."""
        verb = self.pick(self.words.acting["alone", subject.kind])
        denied = 0 if timed else self.negation(subject, tense, 0.2)
        last, first = self.when_within(tense, timed)
        how = BilingualPhrase([], [("nicht", (denied,))] if denied else [])
        if not denied and self.chance(0.35):
            name, manner = self.pick(self.words.manners)
            key = (self.meaning(),)
            how = BilingualPhrase([(name, key)], [(manner, key)])
        elif not denied and self.chance(0.3):
            how = self.prepositional(("with",), "mit", self.some(self.pick(("person", "animal")), "dative", plain=True))
        group = self.verb_group(verb, tense, subject.plural, denied)
        return Clause(subject, group, how.english + last, first + how.german, tense, timed)

    def placed(self, subject: BilingualPhrase, tense: str, timed: bool) -> Clause:
        """Where (dative) or where to (accusative)."""
        moving = self.chance(0.45)
        verb = self.pick(self.words.acting["moving" if moving else "resting", subject.kind])
        place = self.where(self.pick(self.words.places), "accusative" if moving else "dative", moving)
        last, first = self.when_within(tense, timed)
        group = self.verb_group(verb, tense, subject.plural)
        return Clause(subject, group, place.english + last, first + place.german, tense, timed)

    def quality(self, tense: str) -> Clause:
        """The coat is still wrinkled."""
        adjective = self.pick(self.words.predicates)
        subject = self.some(self.pick(self.fitting(adjective)), "nominative")
        group, what = self.copula(adjective, tense, subject.plural, DEGREES[adjective.kinds == ("person",)])
        return Clause(subject, group, what.english, what.german, tense)

    def fitting(self, adjective: Adjective) -> tuple[str, ...]:
        """The classes an adjective fits that have nouns on this level."""
        return tuple(kind for kind in adjective.kinds if self.words.nouns[kind])

    def relative(self, phrase: BilingualPhrase) -> BilingualPhrase:
        """The phrase with a relative clause: "der Hund, der schläft," or "das Buch, das der Mann liest,"."""
        agents = [verb for verb in self.words.verbs["transitive"] if phrase.kind in verb.objects]
        tense = self.pick(("present", "past"))
        key = (self.meaning(),)
        person = phrase.kind == "person"
        if phrase.kind in {"person", "animal"} and self.chance(0.5):
            pronoun = BilingualPhrase(
                [("who" if person else "that", key)],
                [(RELATIVE_PRONOUNS["nominative", phrase.genus], key)],
                plural=phrase.plural,
                kind=phrase.kind,
            )
            side = self.clause(tense, subject=pronoun)
            source, target = english_clause(side), verb_final_clause(side)
        else:
            verb = self.pick(agents)
            subject = self.some(self.pick(verb.subjects), "nominative", plain=True)
            side = Clause(subject, self.verb_group(verb, self.settle(verb, tense, False), subject.plural), [], [])
            source = [("whom" if person else "that", key), *english_clause(side)]
            target = [(RELATIVE_PRONOUNS[verb.governs, phrase.genus], key), *verb_final_clause(side)]
        return phrase._replace(english=phrase.english + source, german=add_comma(phrase.german) + add_comma(target))
