"""Statements in words, with the place of every noun phrase in the text and in the picture."""

from dataclasses import dataclass
from random import Random

from regard.worlds.shapes.observe import observe
from regard.worlds.shapes.scene import Box, Scene, pick
from regard.worlds.shapes.statement import Description, Phrase, Statement
from regard.worlds.shapes.words import NOUN, OPENINGS, SAID, an, be


@dataclass(frozen=True, slots=True)
class Named:
    """The words start … end - 1 of a caption, and the boxes of the shapes that they mean."""

    start: int
    end: int
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Caption:
    """Words are what spaces separate, punctuation riding on them."""

    text: str
    phrases: tuple[Named, ...]


def captions(scene: Scene, number: int, draws: Random) -> tuple[Caption, ...]:
    """Different true captions. Of a scene with held-out combinations of colour and kind, each of them names one."""
    found: dict[str, Caption] = {}
    while len(found) < number:
        statement = observe(scene, draws)
        if statement.names_held_out() == scene.novel:
            caption = grounded(statement, scene, draws)
            found.setdefault(caption.text, caption)
    return tuple(found.values())


def grounded(statement: Statement, scene: Scene, draws: Random) -> Caption:
    """A true statement said, and what it is about."""
    speech = say(statement, draws)
    places = statement.whole.looks.among(scene) if statement.whole else None
    return Caption(
        " ".join(speech.words),
        tuple(
            Named(start, end, tuple(scene.shapes[place].box for place in phrase.looks.among(scene, places)))
            for start, end, phrase in speech.named
        ),
    )


def say(statement: Statement, draws: Random) -> "Speech":
    """A statement in one of the ways of saying it."""
    speech, first = Speech(draws), statement.phrases[0]
    if statement.quality:
        speech.name(first).add("is").ascribe(statement.quality, first)
    elif statement.whole:
        speech.open(statement.whole).name(statement.whole).mark(":").list(statement.phrases)
    elif not statement.relations:
        speech.open(first).list(statement.phrases)
    elif len(statement.relations) == 1 and draws.random() < 0.3:
        there = "there " if first.determiner != "the" and draws.random() < 0.4 else ""
        speech.relate(statement).add(there + be(first.singular)).name(first)
    elif first.determiner == "the" or draws.random() < 0.3:
        speech.name(first).add(be(first.singular)).relate(statement)
    else:
        speech.open(first).name(first).relate(statement)
    return speech


class Speech:
    """Words so far, and which of them name what."""

    def __init__(self, draws: Random):
        self.draws = draws
        self.words: list[str] = []
        self.named: list[tuple[int, int, Phrase]] = []

    def add(self, text: str) -> "Speech":
        self.words += text.split()
        return self

    def mark(self, sign: str) -> "Speech":
        self.words[-1] += sign
        return self

    def open(self, first: Phrase) -> "Speech":
        opening = pick(self.draws, OPENINGS)
        return self.add(f"there {be(first.singular)}" if opening == "there" else opening)

    def name(self, phrase: Phrase, meant: Phrase | None = None) -> "Speech":
        """A noun phrase; it may mean what another one named."""
        words = [*self.adjectives(phrase.looks), NOUN[phrase.singular, phrase.looks.kind]]
        start = len(self.words)
        self.add(an(words[0]) if phrase.determiner == "a" else phrase.determiner)
        self.words += words
        self.named.append((start, len(self.words), meant or phrase))
        return self

    def adjectives(self, looks: Description) -> list[str]:
        """Size first; texture and colour in either order."""
        inner = [looks.texture, looks.colour] if self.draws.random() < 0.5 else [looks.colour, looks.texture]
        return [pick(self.draws, SAID[value]) for value in (looks.size, *inner) if value]

    def list(self, phrases: tuple[Phrase, ...]) -> "Speech":
        for rank, phrase in enumerate(phrases):
            if rank:
                self.add("and") if rank == len(phrases) - 1 else self.mark(",")
            self.name(phrase)
        return self

    def relate(self, statement: Statement) -> "Speech":
        for rank, (relation, phrase) in enumerate(zip(statement.relations, statement.phrases[1:])):
            self.add("and" if rank else "").add(pick(self.draws, SAID[relation])).name(phrase)
        return self

    def ascribe(self, quality: Description, subject: Phrase) -> "Speech":
        if quality.kind:
            return self.name(Phrase("a", quality), subject)
        return self.add(" and ".join(self.adjectives(quality)))
