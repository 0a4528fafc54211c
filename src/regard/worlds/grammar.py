"""Sentences without "it": simple ones, relative and subordinate clauses, indirect speech and coordinated clauses."""

from regard.worlds.inflection import RELATIVE_PRONOUNS, Verb
from regard.worlds.lexicon import Pair
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
QUANTIFIERS = frozenset({"every", "all", "many", "some"})  # ambiguous under negation: "every man does not sleep"
DEFINITE = frozenset({"the", "this", "these", "my", "our", "his", "her"})
DEGREES = {True: (("very", "sehr"), ("too", "zu"), ("still", "noch")), False: (("already", "schon"), ("really", "wirklich"))}
UNAMBIGUOUS_TENSE = {"present": "perfect", "past": "perfect"}

Sentence = tuple[Words, Words]


class SentenceGrammar(PhraseGrammar):
    """Samples whole clauses and sentences."""

    def sentence(self) -> Sentence:
        """Return a random sentence of any construction."""
        draw = self.random()
        if draw < 0.40:
            return self._simple()
        if draw < 0.58:
            return self._with_relative()
        if draw < 0.80:
            return self._subordinate()
        return self._reported() if draw < 0.92 else self._coordinated()

    def _simple(self) -> Sentence:
        """Return one main clause; a time may come first, and then the subject follows the verb: "Heute kauft der Mann …"."""
        clause = self._clause(self.choose(TENSES), timed=self.chance(0.2))
        return self._fronted(clause, 0.35) if not clause.timed else (english_clause(clause), main_clause(clause))

    def _fronted(self, clause: Clause, probability: float) -> Sentence:
        fitting = self._times(clause.tense)
        if fitting and self.chance(probability):
            time = self.aligned(*self.choose(fitting))
            return time.english + english_clause(clause), main_clause(clause, time.german)
        return english_clause(clause), main_clause(clause)

    def _with_relative(self) -> Sentence:
        """Return a sentence with a relative clause on the subject or on the object."""
        tense = self.choose(TENSES)
        on_subject, subject = self.chance(0.5), self._subject()
        if on_subject:
            return self._fronted(self._clause(tense, subject=self._relative(subject)), 0.2)
        # A separable prefix would be stranded behind the relative clause: "hebt das Buch, das die Frau liest, auf".
        verb = self.choose([verb for verb in self.lexicon.acting["transitive", subject.kind] if not verb.prefix])
        return self._fronted(self._transitive(subject, verb, tense, relative=True), 0.2)

    def _subordinate(self) -> Sentence:
        """Return a main and a subordinate clause, which is verb-final in German and may come first."""
        tense = self.choose(("present", "past"))
        name, conjunction = self.choose(self.lexicon.subordinators[tense])
        link = self.aligned((name, conjunction))
        main, side = self._clause(tense), self._clause(tense)
        source, target = link.english + english_clause(side), link.german + verb_final_clause(side)
        if self.chance(0.4):
            return add_comma(source) + english_clause(main), main_clause(main, add_comma(target))
        first = english_clause(main)
        return (add_comma(first) if name == "although" else first) + source, add_comma(main_clause(main)) + target

    def _reported(self) -> Sentence:
        """Return indirect speech: "The queen says that …"."""
        tense = self.choose(("present", "past"))
        subject = self.sample_noun_phrase("person", "nominative")
        main = Clause(subject, self.verb_group(self.choose(self.lexicon.verbs["saying"]), tense, subject.plural), [], [])
        side = self._clause(self.choose(TENSES) if tense == "present" else "past")
        link = self.aligned(("that", "dass"))
        return (
            english_clause(main) + link.english + english_clause(side),
            add_comma(main_clause(main)) + link.german + verb_final_clause(side),
        )

    def _coordinated(self) -> Sentence:
        tense = self.choose(("present", "past"))
        name, conjunction = self.choose((("and", "und"), ("but", "aber")))
        link = self.aligned((name, conjunction))
        first, second = self._clause(tense), self._clause(tense)
        source, target = english_clause(first), main_clause(first)
        if name == "but":
            source, target = add_comma(source), add_comma(target)
        return source + link.english + english_clause(second), target + link.german + main_clause(second)

    def _subject(self) -> BilingualPhrase:
        return self.sample_noun_phrase("person" if self.chance(0.7) else "animal", "nominative")

    def _clause(self, tense: str, subject: BilingualPhrase | None = None, timed: bool = False) -> Clause:
        """Return a clause about a person or an animal, or about a quality of a thing."""
        draw = self.random()
        if subject is None:
            if draw < 0.12:
                return self._quality("past" if tense in {"past", "wanted", "perfect"} else "present")
            subject = self._subject()
        if draw < 0.50:
            return self._transitive(subject, self.choose(self.lexicon.acting["transitive", subject.kind]), tense, timed=timed)
        if draw < 0.62 and subject.kind == "person":
            return self._ditransitive(subject, tense, timed)
        if draw < 0.76:
            return self._intransitive(subject, tense, timed)
        return self._located(subject, tense, timed)

    def _times(self, tense: str) -> tuple[tuple[Pair, ...], ...]:
        return self.lexicon.times.get("modal" if tense in MODALS else "past" if tense == "wanted" else tense, ())

    def _time_inside(self, tense: str, timed: bool) -> BilingualPhrase:
        """Return a time inside the clause, empty if none fits: last in English, after the finite verb in German."""
        fitting = self._times(tense) if timed else ()
        return self.aligned(*(self.choose(fitting) if fitting else ()))

    def _disambiguate(self, verb: Verb, tense: str, plural: bool) -> str:
        """Return the perfect where the English form is present or past at once: "they read" becomes "they have read"."""
        return UNAMBIGUOUS_TENSE.get(tense, tense) if plural and verb.past == verb.base else tense

    def _negation(self, subject: BilingualPhrase, tense: str, probability: float) -> int:
        """Return the concept of a "not", or 0 for none."""
        ambiguous = tense in MODALS or tense == "wanted" or subject.english[0][0] in QUANTIFIERS
        return self.new_concept() if not ambiguous and self.chance(probability) else 0

    def _transitive(
        self, subject: BilingualPhrase, verb: Verb, tense: str, *, timed: bool = False, relative: bool = False
    ) -> Clause:
        tense = self._disambiguate(verb, tense, subject.plural)
        thing = self.sample_noun_phrase(self.choose(verb.objects), verb.object_case)
        if relative:
            thing = self._relative(thing)
        negation = 0
        if not timed and not relative and thing.english[0][0] in DEFINITE:
            negation = self._negation(subject, tense, 0.2)
        time, group = self._time_inside(tense, timed), self.verb_group(verb, tense, subject.plural, negation)
        rest = BilingualPhrase([], [("nicht", (negation,))] if negation else [])
        if verb.complement == "for" and not negation and not relative and self.chance(0.2):
            rest = self.prepositional("for", "für", self.sample_noun_phrase("person", "accusative", plain=True))
        english, german = thing.english + rest.english + time.english, time.german + thing.german + rest.german
        return Clause(subject, group, english, german, tense, timed)

    def _ditransitive(self, subject: BilingualPhrase, tense: str, timed: bool) -> Clause:
        verb = self.choose(self.lexicon.verbs["giving"])
        recipient = self.sample_noun_phrase("person", "dative", plain=True)
        thing = self.sample_noun_phrase(self.choose(verb.objects), "accusative")
        time, group = self._time_inside(tense, timed), self.verb_group(verb, tense, subject.plural)
        english, german = recipient.english + thing.english + time.english, time.german + recipient.german + thing.german
        return Clause(subject, group, english, german, tense, timed)

    def _intransitive(self, subject: BilingualPhrase, tense: str, timed: bool) -> Clause:
        """Return a clause with an intransitive verb, and company, a manner or a "not"."""
        verb = self.choose(self.lexicon.acting["alone", subject.kind])
        negation = 0 if timed else self._negation(subject, tense, 0.2)
        time, group = self._time_inside(tense, timed), self.verb_group(verb, tense, subject.plural, negation)
        how = BilingualPhrase([], [("nicht", (negation,))] if negation else [])
        if not negation and self.chance(0.35):
            how = self.aligned(self.choose(self.lexicon.manners))
        elif not negation and self.chance(0.3):
            company = self.sample_noun_phrase(self.choose(("person", "animal")), "dative", plain=True)
            how = self.prepositional("with", "mit", company)
        return Clause(subject, group, how.english + time.english, time.german + how.german, tense, timed)

    def _located(self, subject: BilingualPhrase, tense: str, timed: bool) -> Clause:
        """Return a clause that says where (dative) or where to (accusative)."""
        moving = self.chance(0.45)
        verb = self.choose(self.lexicon.acting["moving" if moving else "resting", subject.kind])
        place = self.place_phrase(self.choose(self.lexicon.prepositions), moving)
        time, group = self._time_inside(tense, timed), self.verb_group(verb, tense, subject.plural)
        return Clause(subject, group, place.english + time.english, time.german + place.german, tense, timed)

    def _quality(self, tense: str) -> Clause:
        """Return a clause with a predicative adjective: "The coat is still wrinkled."."""
        adjective = self.choose(self.lexicon.predicates)
        kinds = [kind for kind in adjective.kinds if self.lexicon.nouns[kind]]  # that have nouns on this level
        subject = self.sample_noun_phrase(self.choose(kinds), "nominative")
        group, quality = self.copula(adjective, tense, subject.plural, DEGREES[adjective.kinds == ("person",)])
        return Clause(subject, group, quality.english, quality.german, tense)

    def _relative(self, phrase: BilingualPhrase) -> BilingualPhrase:
        """Return the phrase with a relative clause: "der Hund, der schläft," or "das Buch, das der Mann liest,"."""
        verbs = [verb for verb in self.lexicon.verbs["transitive"] if phrase.kind in verb.objects]
        tense = self.choose(("present", "past"))
        person = phrase.kind == "person"
        if phrase.kind in {"person", "animal"} and self.chance(0.5):
            pronoun = self.aligned(("who" if person else "that", RELATIVE_PRONOUNS["nominative", phrase.genus]))
            side = self._clause(tense, subject=pronoun._replace(plural=phrase.plural, kind=phrase.kind))
            source, target = english_clause(side), verb_final_clause(side)
        else:
            verb = self.choose(verbs)
            subject = self.sample_noun_phrase(self.choose(verb.subjects), "nominative", plain=True)
            side = Clause(subject, self.verb_group(verb, self._disambiguate(verb, tense, False), subject.plural), [], [])
            pronoun = self.aligned(("whom" if person else "that", RELATIVE_PRONOUNS[verb.object_case, phrase.genus]))
            source, target = pronoun.english + english_clause(side), pronoun.german + verb_final_clause(side)
        return phrase._replace(english=phrase.english + source, german=add_comma(phrase.german) + add_comma(target))
