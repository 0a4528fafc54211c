"""Statements in words, with the place of every noun phrase in the text and in the picture."""

from dataclasses import dataclass
from random import Random

from regard.worlds.shapes.observe import sample_statement
from regard.worlds.shapes.scene import Box, Scene, choose
from regard.worlds.shapes.statement import Description, NounPhrase, Statement
from regard.worlds.shapes.words import NOUN, OPENINGS, SYNONYMS, form_of_be, indefinite_article


@dataclass(frozen=True, slots=True)
class GroundedPhrase:
    """The words start … end - 1 of a caption, and the boxes of the shapes that they mean."""

    start: int
    end: int
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class GroundedCaption:
    """Words are what spaces separate, punctuation riding on them."""

    text: str
    phrases: tuple[GroundedPhrase, ...]


def captions(scene: Scene, number: int, draws: Random) -> tuple[GroundedCaption, ...]:
    """Different true captions. Of a scene with held-out combinations of colour and kind, each of them names one."""
    found: dict[str, GroundedCaption] = {}
    while len(found) < number:
        statement = sample_statement(scene, draws)
        if statement.names_held_out() == scene.novel:
            caption = ground(statement, scene, draws)
            found.setdefault(caption.text, caption)
    return tuple(found.values())


def ground(statement: Statement, scene: Scene, draws: Random) -> GroundedCaption:
    """A true statement said, and what it is about."""
    speech = realise(statement, draws)
    places = statement.whole.looks.among(scene) if statement.whole else None
    return GroundedCaption(
        " ".join(speech.words),
        tuple(
            GroundedPhrase(start, end, tuple(scene.shapes[place].box for place in phrase.looks.among(scene, places)))
            for start, end, phrase in speech.named
        ),
    )


def realise(statement: Statement, draws: Random) -> "CaptionBuilder":
    """A statement in one of the ways of saying it."""
    speech, first = CaptionBuilder(draws), statement.phrases[0]
    if statement.quality:
        speech.name(first).add("is").ascribe(statement.quality, first)
    elif statement.whole:
        speech.open(statement.whole).name(statement.whole).mark(":").list(statement.phrases)
    elif not statement.relations:
        speech.open(first).list(statement.phrases)
    elif len(statement.relations) == 1 and draws.random() < 0.3:
        there = "there " if first.determiner != "the" and draws.random() < 0.4 else ""
        speech.relate(statement).add(there + form_of_be(first.singular)).name(first)
    elif first.determiner == "the" or draws.random() < 0.3:
        speech.name(first).add(form_of_be(first.singular)).relate(statement)
    else:
        speech.open(first).name(first).relate(statement)
    return speech


class CaptionBuilder:
    """Words so far, and which of them name what."""

    def __init__(self, draws: Random):
        self.draws = draws
        self.words: list[str] = []
        self.named: list[tuple[int, int, NounPhrase]] = []

    def add(self, text: str) -> "CaptionBuilder":
        self.words += text.split()
        return self

    def mark(self, sign: str) -> "CaptionBuilder":
        self.words[-1] += sign
        return self

    def open(self, first: NounPhrase) -> "CaptionBuilder":
        opening = choose(self.draws, OPENINGS)
        return self.add(f"there {form_of_be(first.singular)}" if opening == "there" else opening)

    def name(self, phrase: NounPhrase, meant: NounPhrase | None = None) -> "CaptionBuilder":
        """A noun phrase; it may mean what another one named."""
        words = [*self.adjectives(phrase.looks), NOUN[phrase.singular, phrase.looks.kind]]
        start = len(self.words)
        self.add(indefinite_article(words[0]) if phrase.determiner == "a" else phrase.determiner)
        self.words += words
        self.named.append((start, len(self.words), meant or phrase))
        return self

    def adjectives(self, looks: Description) -> list[str]:
        """Size first; texture and colour in either order."""
        inner = [looks.texture, looks.colour] if self.draws.random() < 0.5 else [looks.colour, looks.texture]
        return [choose(self.draws, SYNONYMS[value]) for value in (looks.size, *inner) if value]

    def list(self, phrases: tuple[NounPhrase, ...]) -> "CaptionBuilder":
        for rank, phrase in enumerate(phrases):
            if rank:
                self.add("and") if rank == len(phrases) - 1 else self.mark(",")
            self.name(phrase)
        return self

    def relate(self, statement: Statement) -> "CaptionBuilder":
        for rank, (relation, phrase) in enumerate(zip(statement.relations, statement.phrases[1:])):
            self.add("and" if rank else "").add(choose(self.draws, SYNONYMS[relation])).name(phrase)
        return self

    def ascribe(self, quality: Description, subject: NounPhrase) -> "CaptionBuilder":
        if quality.kind:
            return self.name(NounPhrase("a", quality), subject)
        return self.add(" and ".join(self.adjectives(quality)))
