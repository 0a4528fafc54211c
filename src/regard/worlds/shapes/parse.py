"""A parser for captions: the statement that a text makes, if it belongs to the grammar.

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

from regard.worlds.shapes.caption import MEANINGS, OPENINGS, PLURALS, SINGULARS, VOCABULARY, form_of_be, indefinite_article
from regard.worlds.shapes.scene import COLOURS, RELATIONS, SIZES, TEXTURES
from regard.worlds.shapes.statement import NUMBERS, SINGULAR, Description, NounPhrase, Statement

PROPERTY = {value: name for name, values in (("size", SIZES), ("texture", TEXTURES), ("colour", COLOURS)) for value in values}
RELATION_WORDINGS = [(wording.split(), meaning) for wording, meaning in MEANINGS.items() if meaning in RELATIONS]


class NotACaption(Exception):
    """The text does not belong to the grammar."""


def parse_caption(caption: str) -> Statement | None:
    """Return the statement of a caption, or None if the grammar has no such caption; capitals and a final full stop are
    ignored."""
    words = re.findall(r"[^\s,:]+|[,:]", caption.lower().strip().removesuffix("."))
    if not all(word in VOCABULARY or word in ",:" for word in words):
        return None
    try:
        return CaptionParser(words).caption()
    except NotACaption:
        return None


class CaptionParser:
    """A recursive-descent parser: the words, and the position of the next one."""

    def __init__(self, words: list[str]):
        self.words = words
        self.position = 0

    def accept(self, *words: str) -> bool:
        """Consume these words if they come next."""
        found = self.words[self.position : self.position + len(words)] == list(words)
        self.position += len(words) * found
        return found

    def next_word(self) -> str:
        _require(self.position < len(self.words))
        self.position += 1
        return self.words[self.position - 1]

    def caption(self) -> Statement:
        relation = self.relation()
        statement = self.inverted(relation) if relation else self.uninverted()
        _require(self.position == len(self.words))
        return statement

    def uninverted(self) -> Statement:
        opened, verb = self.opening()
        first = self.phrase()
        _require(verb in ("", form_of_be(first.singular)))
        if first.determiner in NUMBERS and self.accept(":"):
            return Statement(self.enumeration(self.phrase()), whole=first)
        if not opened and self.accept(form_of_be(first.singular)):
            relation = self.relation()
            return self.related(first, relation) if relation else Statement((first,), quality=self.quality(first))
        relation = self.relation()
        return self.related(first, relation) if relation else Statement(self.enumeration(first))

    def opening(self) -> tuple[bool, str]:
        """Return whether there is an opening, and its verb if it has one that must agree."""
        for opening in filter(None, OPENINGS):
            if self.accept(*opening.split()):
                return True, self.next_word() if opening == "there" else ""
        return False, ""

    def inverted(self, relation: str) -> Statement:
        other = self.phrase()
        self.accept("there")
        verb = self.next_word()
        first = self.phrase()
        _require(verb == form_of_be(first.singular))
        return Statement((first, other), (relation,))

    def related(self, first: NounPhrase, relation: str) -> Statement:
        second = self.phrase()
        if not self.accept("and"):
            return Statement((first, second), (relation,))
        another = self.relation()
        if another is None:
            raise NotACaption
        return Statement((first, second, self.phrase()), (relation, another))

    def enumeration(self, first: NounPhrase) -> tuple[NounPhrase, ...]:
        phrases = [first]
        while self.accept(","):
            phrases.append(self.phrase())
        if self.accept("and"):
            phrases.append(self.phrase())
        else:
            _require(len(phrases) == 1)
        return tuple(phrases)

    def quality(self, first: NounPhrase) -> Description:
        _require(first.determiner == "the")
        if self.words[self.position : self.position + 1] in (["a"], ["an"]):
            looks = self.phrase().looks
            _require(looks.kind is not None)
            return looks
        adjectives = [self.next_word()]
        while self.accept("and"):
            adjectives.append(self.next_word())
        return Description(**_properties(adjectives))

    def relation(self) -> str | None:
        return next((meaning for wording, meaning in RELATION_WORDINGS if self.accept(*wording)), None)

    def phrase(self) -> NounPhrase:
        determiner = self.next_word()
        start = self.position
        _require(determiner in ("a", "an", "the", *NUMBERS) and start < len(self.words))
        if determiner in ("a", "an"):
            _require(determiner == indefinite_article(self.words[start]))
            determiner = "a"
        nouns = SINGULARS if determiner in SINGULAR else PLURALS
        while (noun := self.next_word()) not in nouns:
            pass
        adjectives = self.words[start : self.position - 1]
        return NounPhrase(determiner, Description(**_properties(adjectives), kind=nouns[noun]))


def _require(condition: bool) -> None:
    if not condition:
        raise NotACaption


def _properties(adjectives: list[str]) -> dict[str, str]:
    """Return size, texture and colour, each at most once."""
    found: dict[str, str] = {}
    for adjective in adjectives:
        meaning = MEANINGS.get(adjective, "")
        name = PROPERTY.get(meaning)
        if name is None or name in found:
            raise NotACaption
        found[name] = meaning
    return found
