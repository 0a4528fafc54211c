"""Statements as text, with the position of every noun phrase in the text and in the image."""

from dataclasses import dataclass
from random import Random

from regard.worlds.shapes.observe import sample_statement
from regard.worlds.shapes.scene import Box, Scene, choose
from regard.worlds.shapes.statement import Description, NounPhrase, Statement
from regard.worlds.shapes.words import NOUN, OPENINGS, SYNONYMS, form_of_be, indefinite_article


@dataclass(frozen=True, slots=True)
class GroundedPhrase:
    """The words start … end - 1 of a caption, and the boxes of the shapes that they refer to."""

    start: int
    end: int
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class GroundedCaption:
    """A caption and its noun phrases; words are separated by spaces, with punctuation attached."""

    text: str
    phrases: tuple[GroundedPhrase, ...]


def sample_captions(scene: Scene, number: int, rng: Random) -> tuple[GroundedCaption, ...]:
    """Return distinct true captions. If the scene has held-out combinations of colour and kind, every caption names one."""
    found: dict[str, GroundedCaption] = {}
    while len(found) < number:
        statement = sample_statement(scene, rng)
        if statement.names_held_out() == scene.novel:
            caption = _ground(statement, scene, rng)
            found.setdefault(caption.text, caption)
    return tuple(found.values())


def _ground(statement: Statement, scene: Scene, rng: Random) -> GroundedCaption:
    """Return a true statement as text, with the boxes of its noun phrases."""
    built = realise(statement, rng)
    indices = statement.whole.looks.among(scene) if statement.whole else None
    return GroundedCaption(
        " ".join(built.words),
        tuple(
            GroundedPhrase(start, end, tuple(scene.shapes[i].box for i in phrase.looks.among(scene, indices)))
            for start, end, phrase in built.spans
        ),
    )


def realise(statement: Statement, rng: Random) -> "CaptionBuilder":
    """Return a statement in words, in one of its possible wordings (surface realisation)."""
    built, first = CaptionBuilder(rng), statement.phrases[0]
    if statement.quality:
        built.noun_phrase(first).add("is").ascribe(statement.quality, first)
    elif statement.whole:
        built.opening(statement.whole).noun_phrase(statement.whole).punctuate(":").enumeration(statement.phrases)
    elif not statement.relations:
        built.opening(first).enumeration(statement.phrases)
    elif len(statement.relations) == 1 and rng.random() < 0.3:
        there = "there " if first.determiner != "the" and rng.random() < 0.4 else ""
        built.relations(statement).add(there + form_of_be(first.singular)).noun_phrase(first)
    elif first.determiner == "the" or rng.random() < 0.3:
        built.noun_phrase(first).add(form_of_be(first.singular)).relations(statement)
    else:
        built.opening(first).noun_phrase(first).relations(statement)
    return built


class CaptionBuilder:
    """The words so far, and the spans of its noun phrases."""

    def __init__(self, rng: Random):
        self.rng = rng
        self.words: list[str] = []
        self.spans: list[tuple[int, int, NounPhrase]] = []

    def add(self, text: str) -> "CaptionBuilder":
        self.words += text.split()
        return self

    def punctuate(self, sign: str) -> "CaptionBuilder":
        self.words[-1] += sign
        return self

    def opening(self, first: NounPhrase) -> "CaptionBuilder":
        opening = choose(self.rng, OPENINGS)
        return self.add(f"there {form_of_be(first.singular)}" if opening == "there" else opening)

    def noun_phrase(self, phrase: NounPhrase, referent: NounPhrase | None = None) -> "CaptionBuilder":
        """Add a noun phrase; it may refer to the same shapes as another one."""
        words = [*self._adjectives(phrase.looks), NOUN[phrase.singular, phrase.looks.kind]]
        start = len(self.words)
        self.add(indefinite_article(words[0]) if phrase.determiner == "a" else phrase.determiner)
        self.words += words
        self.spans.append((start, len(self.words), referent or phrase))
        return self

    def _adjectives(self, looks: Description) -> list[str]:
        """Return the adjectives: size first, texture and colour in either order."""
        inner = [looks.texture, looks.colour] if self.rng.random() < 0.5 else [looks.colour, looks.texture]
        return [choose(self.rng, SYNONYMS[value]) for value in (looks.size, *inner) if value]

    def enumeration(self, phrases: tuple[NounPhrase, ...]) -> "CaptionBuilder":
        for i, phrase in enumerate(phrases):
            if i:
                self.add("and") if i == len(phrases) - 1 else self.punctuate(",")
            self.noun_phrase(phrase)
        return self

    def relations(self, statement: Statement) -> "CaptionBuilder":
        for i, (relation, phrase) in enumerate(zip(statement.relations, statement.phrases[1:])):
            self.add("and" if i else "").add(choose(self.rng, SYNONYMS[relation])).noun_phrase(phrase)
        return self

    def ascribe(self, quality: Description, subject: NounPhrase) -> "CaptionBuilder":
        """Add what is said of the subject: a noun phrase or adjectives."""
        if quality.kind:
            return self.noun_phrase(NounPhrase("a", quality), subject)
        return self.add(" and ".join(self._adjectives(quality)))
