"""Captions read: the statement that a text makes, if it is one of the grammar's.

caption    [opening] phrase {"," phrase} ["and" phrase]         a red circle, two stars and a cross
           [opening] number noun ":" phrase …                   there are two shapes: a circle and a ring
           [opening] phrase relation phrase ["and" relation phrase]
           phrase is|are relation phrase ["and" relation phrase]
           relation phrase ["there"] is|are phrase              left of a star is a small cross
           "the" … is adjective ["and" adjective] | is a …      the circle is red; the red shape is a circle
opening    there is|are, this picture shows, a picture of, we see
phrase     a|an|the|one noun, two|three|four nouns, with adjectives of size, texture and colour in any order
"""

import re

from regard.worlds.shapes.scene import COLOURS, RELATIONS, SIZES, TEXTURES
from regard.worlds.shapes.statement import NUMBERS, SINGULAR, Description, NounPhrase, Statement
from regard.worlds.shapes.words import MEANINGS, OPENINGS, PLURALS, SINGULARS, VOCABULARY, form_of_be, indefinite_article

PROPERTY = {value: name for name, values in (("size", SIZES), ("texture", TEXTURES), ("colour", COLOURS)) for value in values}
WAYS = [(said.split(), meaning) for said, meaning in MEANINGS.items() if meaning in RELATIONS]


class NotACaption(Exception):
    """What is read is no caption."""


def parse_caption(caption: str) -> Statement | None:
    """The statement that a caption makes, or None if the grammar has no such caption; capitals and a last full stop
    count for nothing."""
    words = re.findall(r"[^\s,:]+|[,:]", caption.lower().strip().removesuffix("."))
    if not all(word in VOCABULARY or word in ",:" for word in words):
        return None
    try:
        return CaptionParser(words).caption()
    except NotACaption:
        return None


class CaptionParser:
    """Words, and how far they are read."""

    def __init__(self, words: list[str]):
        self.words = words
        self.at = 0

    def take(self, *words: str) -> bool:
        """Read these words if they come next."""
        found = self.words[self.at : self.at + len(words)] == list(words)
        self.at += len(words) * found
        return found

    def word(self) -> str:
        if self.at == len(self.words):
            raise NotACaption
        self.at += 1
        return self.words[self.at - 1]

    def caption(self) -> Statement:
        relation = self.relation()
        statement = self.inverted(relation) if relation else self.straight()
        if self.at < len(self.words):
            raise NotACaption
        return statement

    def straight(self) -> Statement:
        opened, verb = self.opening()
        first = self.phrase()
        if verb and verb != form_of_be(first.singular):
            raise NotACaption
        if first.determiner in NUMBERS and self.take(":"):
            return Statement(self.several(self.phrase()), whole=first)
        if not opened and self.take(form_of_be(first.singular)):
            relation = self.relation()
            return self.related(first, relation) if relation else Statement((first,), quality=self.quality(first))
        relation = self.relation()
        return self.related(first, relation) if relation else Statement(self.several(first))

    def opening(self) -> tuple[bool, str]:
        """Whether there is one; and its verb, if it has one that must agree."""
        for said in filter(None, OPENINGS):
            if self.take(*said.split()):
                return True, self.word() if said == "there" else ""
        return False, ""

    def inverted(self, relation: str) -> Statement:
        other = self.phrase()
        self.take("there")
        verb = self.word()
        first = self.phrase()
        if verb != form_of_be(first.singular):
            raise NotACaption
        return Statement((first, other), (relation,))

    def related(self, first: NounPhrase, relation: str) -> Statement:
        second = self.phrase()
        if not self.take("and"):
            return Statement((first, second), (relation,))
        another = self.relation()
        if another is None:
            raise NotACaption
        return Statement((first, second, self.phrase()), (relation, another))

    def several(self, first: NounPhrase) -> tuple[NounPhrase, ...]:
        phrases = [first]
        while self.take(","):
            phrases.append(self.phrase())
        if self.take("and"):
            phrases.append(self.phrase())
        elif len(phrases) > 1:
            raise NotACaption
        return tuple(phrases)

    def quality(self, first: NounPhrase) -> Description:
        if first.determiner != "the":
            raise NotACaption
        if self.words[self.at : self.at + 1] in (["a"], ["an"]):
            said = self.phrase().looks
            if said.kind is None:
                raise NotACaption
            return said
        adjectives = [self.word()]
        while self.take("and"):
            adjectives.append(self.word())
        return Description(**properties(adjectives))

    def relation(self) -> str | None:
        for said, meaning in WAYS:
            if self.take(*said):
                return meaning
        return None

    def phrase(self) -> NounPhrase:
        determiner = self.word()
        start = self.at
        if determiner in ("a", "an"):
            if self.at == len(self.words) or determiner != indefinite_article(self.words[self.at]):
                raise NotACaption
            determiner = "a"
        elif determiner not in ("the", *NUMBERS):
            raise NotACaption
        nouns = SINGULARS if determiner in SINGULAR else PLURALS
        while (noun := self.word()) not in nouns:
            pass
        return NounPhrase(determiner, Description(**properties(self.words[start : self.at - 1]), kind=nouns[noun]))


def properties(adjectives: list[str]) -> dict[str, str]:
    """Size, texture and colour, each at most once."""
    found: dict[str, str] = {}
    for adjective in adjectives:
        meaning = MEANINGS.get(adjective, "")
        name = PROPERTY.get(meaning)
        if name is None or name in found:
            raise NotACaption
        found[name] = meaning
    return found
