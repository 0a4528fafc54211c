"""Statements: the meaning of a caption, whether it is true of a scene, and random true ones.

"a" means at least one; "one", "two", "three" and "four" mean exactly that many; "the" means that there is no other. The
phrases of a statement refer to different shapes; after a colon, only to those named before it. What is said of several
shapes is said of each.
"""

from collections.abc import Callable, Sequence
from itertools import product
from random import Random
from typing import NamedTuple

from regard.worlds.shapes.scene import HELD_OUT, RELATIONS, Scene, Shape, choose, has_relation

NUMBERS = ("one", "two", "three", "four")
SINGULAR = ("a", "the", "one")
ShapeIndices = tuple[int, ...]  # of shapes in their scene
RELATION_MARGIN = 3 / 16  # of the image width: the least distance between centres in the direction of a relation
MENTION = {"size": 0.4, "texture": 0.4, "colour": 0.85, "kind": 0.9}  # probability that each property is mentioned
MENTION_PLAIN = 0.25  # probability that "plain" is kept where another texture would be mentioned
ONE = 0.15  # probability of "one" instead of "a"
THE = 0.3  # probability that a relation is between "the" shapes


class Description(NamedTuple):
    """The properties of shapes that are mentioned."""

    size: str | None = None
    texture: str | None = None
    colour: str | None = None
    kind: str | None = None

    def fits(self, shape: Shape) -> bool:
        """Return whether a shape has all mentioned properties."""
        size, texture, colour, kind = self
        return (
            (kind is None or kind == shape.kind)
            and (colour is None or colour == shape.colour)
            and (size is None or size == shape.size)
            and (texture is None or texture == shape.texture)
        )

    def mentioned(self) -> list[str]:
        """Return the names of the mentioned properties."""
        return [name for name, value in zip(self._fields, self) if value is not None]

    def among(self, scene: Scene, indices: ShapeIndices | None = None) -> ShapeIndices:
        """Return the shapes that it fits, of the whole scene or among some of them."""
        return tuple([i for i, shape in enumerate(scene.shapes) if self.fits(shape) and (indices is None or i in indices)])


class NounPhrase(NamedTuple):
    """A reference to some shapes: "two small circles"."""

    determiner: str  # a, the, or one of NUMBERS
    looks: Description

    @property
    def singular(self) -> bool:
        """Whether the determiner takes a singular noun."""
        return self.determiner in SINGULAR

    def referents(self, scene: Scene, indices: ShapeIndices | None = None) -> list[ShapeIndices]:
        """Return the groups of shapes that it may refer to, of the whole scene or among some of them."""
        found = self.looks.among(scene, indices)
        if self.determiner == "a":
            return [(i,) for i in found]
        number = 1 if self.determiner == "the" else NUMBERS.index(self.determiner) + 1
        return [found] if len(found) == number else []


class Statement(NamedTuple):
    """The claim that such shapes exist, and possibly how they are related."""

    phrases: tuple[NounPhrase, ...]
    relations: tuple[str, ...] = ()  # of the first phrase to the second, the third …: "a circle above a square"
    whole: NounPhrase | None = None  # what the phrases together make up: "two shapes: a circle and a square"
    quality: Description | None = None  # of the first phrase: "the circle is red"

    def names_held_out(self) -> bool:
        """Return whether it ascribes a held-out combination of colour and kind to something."""
        for phrase in self.phrases[:1] if self.quality else self.phrases:
            colour, kind = phrase.looks.colour, phrase.looks.kind
            if self.quality:
                colour, kind = self.quality.colour or colour, self.quality.kind or kind
            if self.whole:
                colour, kind = colour or self.whole.looks.colour, kind or self.whole.looks.kind
            if (colour, kind) in HELD_OUT:
                return True
        return False


def is_true(statement: Statement, scene: Scene, margin: float | None = None) -> bool:
    """Return whether the phrases can refer to different shapes for which everything holds; `margin` is that of relations, in
    pixels."""
    margin = scene.size * RELATION_MARGIN if margin is None else margin
    wholes = [None] if statement.whole is None else statement.whole.referents(scene)
    return any(
        _is_true_for(statement, groups, scene, margin) and (whole is None or len(whole) == sum(map(len, groups)))
        for whole in wholes
        for groups in product(*(phrase.referents(scene, whole) for phrase in statement.phrases))
    )


def _is_true_for(statement: Statement, groups: tuple[ShapeIndices, ...], scene: Scene, margin: float) -> bool:
    """Return whether a statement holds if its phrases refer to these groups of shapes."""
    if len(groups) > 1 and len(set().union(*groups)) < sum(map(len, groups)):
        return False
    if statement.quality and not all(statement.quality.fits(scene.shapes[i]) for i in groups[0]):
        return False
    return all(all_related(scene, groups[0], relation, group, margin) for relation, group in zip(statement.relations, groups[1:]))


def all_related(scene: Scene, ones: ShapeIndices, relation: str, others: ShapeIndices, margin: float) -> bool:
    """Return whether each shape of one group has a relation to each shape of another."""
    for one in ones:
        for other in others:
            if not has_relation(scene.shapes[one], relation, scene.shapes[other], margin):
                return False
    return True


def sample_statement(scene: Scene, rng: Random) -> Statement:
    """Return a true statement. A phrase refers to all shapes that it fits, so its referents are unambiguous."""
    while True:
        statement = choose(rng, STATEMENT_FORMS if len(scene.shapes) > 1 else SINGLE_SHAPE_FORMS)(scene, rng)
        if statement is not None:
            return statement


def _existence(scene: Scene, rng: Random) -> Statement:
    """Return a statement such as "two red circles"."""
    looks = _sample_description(choose(rng, scene.shapes), rng)
    return Statement((_counted_phrase(looks, len(looks.among(scene)), rng),))


def _enumeration(scene: Scene, rng: Random) -> Statement | None:
    """Return a statement such as "two red circles and a star"."""
    phrases = _sample_phrases(scene, tuple(range(len(scene.shapes))), 2 + int(rng.random() * 3), rng)
    return Statement(phrases) if len(phrases) > 1 else None


def _whole(scene: Scene, rng: Random) -> Statement | None:
    """Return a statement such as "three shapes: two red circles and a star" or "two red shapes: a circle and a star"."""
    looks = Description()
    if rng.random() < 0.3:
        name = choose(rng, ("size", "texture", "colour"))
        looks = Description(**{name: getattr(choose(rng, scene.shapes), name)})
    indices = looks.among(scene)
    phrases = _sample_phrases(scene, indices, len(indices), rng, known=looks.mentioned())
    covered = sum(len(phrase.looks.among(scene, indices)) for phrase in phrases)
    if covered < len(indices) or covered > 1 == len(phrases) or any(phrase.looks.kind is None for phrase in phrases):
        return None
    return Statement(phrases, whole=NounPhrase(NUMBERS[covered - 1], looks))


def _sample_phrases(
    scene: Scene, indices: ShapeIndices, limit: int, rng: Random, known: Sequence[str] = ()
) -> tuple[NounPhrase, ...]:
    """Return at most `limit` phrases about different shapes among these, without the properties known of all of them."""
    left = set(indices)
    phrases: list[NounPhrase] = []
    while left and len(phrases) < limit:
        looks = _sample_description(scene.shapes[choose(rng, sorted(left))], rng, known)
        group = looks.among(scene, indices)
        if not left.issuperset(group):
            break
        left.difference_update(group)
        phrases.append(_counted_phrase(looks, len(group), rng))
    return tuple(phrases)


def _relation(scene: Scene, rng: Random) -> Statement | None:
    """Return a statement such as "a red circle above two stars" or "… and left of a cross"."""
    number = 3 if len(scene.shapes) > 2 and rng.random() < 0.2 else 2
    looks = [_sample_description(shape, rng) for shape in sorted(scene.shapes, key=lambda _: rng.random())[:number]]
    groups = [look.among(scene) for look in looks]
    if len(set().union(*groups)) < sum(map(len, groups)):
        return None
    margin = scene.size * RELATION_MARGIN
    options = [[way for way in RELATIONS if all_related(scene, groups[0], way, group, margin)] for group in groups[1:]]
    if not all(options):
        return None
    definite = rng.random() < THE
    phrases = [_counted_phrase(look, len(group), rng) for look, group in zip(looks, groups)]
    if definite:
        phrases = [NounPhrase("the", phrase.looks) if phrase.singular else phrase for phrase in phrases]
    return Statement(tuple(phrases), tuple(choose(rng, relations) for relations in options))


def _quality(scene: Scene, rng: Random) -> Statement | None:
    """Return a statement such as "the circle is red" or "the red shape is a circle"."""
    shape = choose(rng, scene.shapes)
    mentioned = _sample_description(shape, rng).mentioned()
    predicated = [name for name in mentioned if rng.random() < 0.5]
    subject = Description(**{name: getattr(shape, name) for name in mentioned if name not in predicated})
    if not 0 < len(predicated) < len(mentioned) or len(subject.among(scene)) > 1:
        return None
    quality = Description(**{name: getattr(shape, name) for name in predicated})
    return Statement((NounPhrase("the", subject),), quality=quality)


StatementForm = Callable[[Scene, Random], Statement | None]
STATEMENT_FORMS: list[StatementForm] = [_existence, _enumeration, _enumeration, _whole, *[_relation] * 4, _quality]
SINGLE_SHAPE_FORMS: list[StatementForm] = [_existence, _existence, _existence, _whole, _quality]


def _sample_description(shape: Shape, rng: Random, known: Sequence[str] = ()) -> Description:
    """Return some of a shape's properties, at least its colour or kind, but none that is known."""
    random = rng.random
    while True:
        size = shape.size if "size" not in known and random() < MENTION["size"] else None
        texture = shape.texture if "texture" not in known and random() < MENTION["texture"] else None
        colour = shape.colour if "colour" not in known and random() < MENTION["colour"] else None
        kind = shape.kind if "kind" not in known and random() < MENTION["kind"] else None
        if texture == "plain" and random() > MENTION_PLAIN:
            texture = None
        if colour or kind:
            return Description(size, texture, colour, kind)


def _counted_phrase(looks: Description, number: int, rng: Random) -> NounPhrase:
    """Return a phrase for all shapes of this description, which are so many."""
    return NounPhrase("a" if number == 1 and rng.random() > ONE else NUMBERS[number - 1], looks)
