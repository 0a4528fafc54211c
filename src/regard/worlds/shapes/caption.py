"""Captions: their vocabulary, statements as text with the position of every noun phrase, and false captions, which are true ones
with one thing changed or captions of other scenes."""

from dataclasses import dataclass
from random import Random

from regard.worlds.shapes.scene import COLOURS, KINDS, OPPOSITE, RELATIONS, SIZES, TEXTURES, Box, Scene, choose, sample_scene
from regard.worlds.shapes.statement import NUMBERS, Description, NounPhrase, Statement, is_true, sample_statement

SYNONYMS = {  # the wordings of each property and relation, frequent ones repeated
    "small": ("small", "small", "little"),
    "large": ("large", "large", "big"),
    "plain": ("plain",),
    "striped": ("striped",),
    "dotted": ("dotted", "spotted"),
    "above": ("above", "above", "over"),
    "below": ("below", "below", "under"),
    "left of": ("left of", "to the left of"),
    "right of": ("right of", "to the right of"),
    **{colour: (colour,) for colour in COLOURS},
}
MEANINGS = {wording: meaning for meaning, wordings in SYNONYMS.items() for wording in wordings}
SINGULARS = {kind: kind for kind in KINDS} | {"shape": None}
PLURALS = {(kind + "es" if kind.endswith("ss") else kind + "s"): kind for kind in KINDS} | {"shapes": None}
NOUN = {(True, kind): noun for noun, kind in SINGULARS.items()} | {(False, kind): noun for noun, kind in PLURALS.items()}
OPENINGS = ("", "", "there", "there", "this picture shows", "a picture of", "we see")  # there is, there are
VOWELS = "aeiou"
VOCABULARY = frozenset(
    word
    for wordings in (*SYNONYMS.values(), SINGULARS, PLURALS, OPENINGS, NUMBERS, ["a an the and is are"])
    for wording in wordings
    for word in wording.split()
)
VALUES = {"size": tuple(SIZES), "texture": TEXTURES, "colour": COLOURS, "kind": KINDS}


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


def indefinite_article(following: str) -> str:
    """Return a or an, by spelling: all words of the captions are pronounced as they are spelt."""
    return "an" if following[0] in VOWELS else "a"


def form_of_be(singular: bool) -> str:
    """Return is or are."""
    return "is" if singular else "are"


def false_captions(scene: Scene, number: int, rng: Random, near: float = 0.5) -> list[str]:
    """Return distinct captions that are false of a scene with any margin: a fraction `near` are its own with one thing changed
    (hard negatives), the rest belong to other scenes. They name no held-out combination unless the scene has one."""
    bounds, novel = (len(scene.shapes), len(scene.shapes)), scene.novel
    found: dict[str, None] = {}
    hard = rng.random() < near
    while len(found) < number:
        statement = sample_statement(scene if hard else sample_scene(rng, scene.size, bounds, held_out=novel), rng)
        changed = perturb(statement, rng) if hard else statement
        if (
            statement.names_held_out() == novel  # as the true captions do
            and changed
            and (novel or not changed.names_held_out())
            and not is_true(changed, scene, margin=0)
        ):
            found[" ".join(realise(changed, rng).words)] = None
            hard = rng.random() < near
    return list(found)


def perturb(statement: Statement, rng: Random) -> Statement | None:
    """Change a property, a number or a relation, or swap a property between two phrases."""
    return choose(rng, CHANGES)(statement, rng)


def _change_property(statement: Statement, rng: Random) -> Statement | None:
    """Return the statement with another size, texture, colour or kind; an unmentioned one may be added."""
    if statement.quality:
        name = choose(rng, statement.quality.mentioned())
        return statement._replace(quality=_with_other_value(statement.quality, name, rng))
    i = int(rng.random() * len(statement.phrases))
    name = choose(rng, tuple(VALUES))
    if statement.whole and getattr(statement.whole.looks, name):
        return None
    return _with_description(statement, i, _with_other_value(statement.phrases[i].looks, name, rng))


def _change_number(statement: Statement, rng: Random) -> Statement | None:
    """Return the statement with another number; not where a whole is named, since its parts would contradict it."""
    if statement.whole or statement.quality:
        return None
    i = int(rng.random() * len(statement.phrases))
    phrase = statement.phrases[i]
    return _with_phrase(statement, i, NounPhrase(choose(rng, [n for n in NUMBERS if n != phrase.determiner]), phrase.looks))


def _change_relation(statement: Statement, rng: Random) -> Statement | None:
    """Return the statement with the opposite relation, or any other."""
    if not statement.relations:
        return None
    i = int(rng.random() * len(statement.relations))
    old = statement.relations[i]
    new = OPPOSITE[old] if rng.random() < 0.6 else choose(rng, [relation for relation in RELATIONS if relation != old])
    return statement._replace(relations=(*statement.relations[:i], new, *statement.relations[i + 1 :]))


def _swap_property(statement: Statement, rng: Random) -> Statement | None:
    """Swap a property of two phrases: "a red circle and a blue star" becomes "a blue circle and a red star"."""
    if len(statement.phrases) < 2:
        return None
    i, j = sorted(range(len(statement.phrases)), key=lambda _: rng.random())[:2]
    one, other = statement.phrases[i].looks, statement.phrases[j].looks
    shared = [name for name in one.mentioned() if name in other.mentioned()]
    if not shared:
        return None
    name = choose(rng, shared)
    changed = _with_description(statement, i, one._replace(**{name: getattr(other, name)}))
    return _with_description(changed, j, other._replace(**{name: getattr(one, name)}))


CHANGES = (
    _change_property,
    _change_property,
    _change_number,
    _change_relation,
    _change_relation,
    _swap_property,
    _swap_property,
)


def _with_other_value(looks: Description, name: str, rng: Random) -> Description:
    return looks._replace(**{name: choose(rng, [value for value in VALUES[name] if value != getattr(looks, name)])})


def _with_description(statement: Statement, i: int, looks: Description) -> Statement:
    return _with_phrase(statement, i, NounPhrase(statement.phrases[i].determiner, looks))


def _with_phrase(statement: Statement, i: int, phrase: NounPhrase) -> Statement:
    return statement._replace(phrases=(*statement.phrases[:i], phrase, *statement.phrases[i + 1 :]))
